//! The one place at a joined worker, and who has it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windlass_wire::stream::Socket;

/// A client that has said nothing for so long, though it has something to say every two seconds, gives way to another.
const SILENT: Duration = Duration::from_secs(8);

/// A place for one client. Clones are the same place.
#[derive(Debug, Clone, Default)]
pub(super) struct Place(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    taken: u64,
    occupant: Option<Occupant>,
}

#[derive(Debug)]
struct Occupant {
    number: u64,
    run: u64,
    client: String,
    handle: Socket,
    heard: Instant,
    /// Whether the worker is busy for it: then it waits, and need not say anything.
    is_served: bool,
}

/// A client's hold on the place, which ends with this.
#[derive(Debug)]
pub(super) struct Seated {
    place: Place,
    number: u64,
}

impl Place {
    /// Seats a client whose connection `handle` ends. If somebody else is there, says who.
    pub(super) fn take(&self, client: &str, run: u64, handle: Socket, now: Instant) -> Result<Seated, String> {
        let mut state = self.lock();
        if state.is_closed {
            return Err("it is about to end".to_owned());
        }
        if let Some(occupant) = &state.occupant {
            let silent = now.saturating_duration_since(occupant.heard);
            let gives_way = occupant.run == run || (!occupant.is_served && silent > SILENT);
            if !gives_way {
                return Err(format!("it computes for {}", occupant.client));
            }
            occupant.handle.shutdown();
        }
        state.taken += 1;
        let number = state.taken;
        let client = client.to_owned();
        state.occupant = Some(Occupant { number, run, client, handle, heard: now, is_served: false });
        Ok(Seated { place: self.clone(), number })
    }

    /// Lets nobody in any more, and ends the connection of whoever is there.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.occupant.iter().for_each(|occupant| occupant.handle.shutdown());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seated {
    /// Notes that the client was heard, and that the worker is busy for it, or has answered.
    pub(super) fn heard(&self, is_served: bool) {
        let mut state = self.place.lock();
        if let Some(occupant) = state.occupant.as_mut().filter(|occupant| occupant.number == self.number) {
            (occupant.heard, occupant.is_served) = (Instant::now(), is_served);
        }
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let mut state = self.place.lock();
        if state.occupant.as_ref().is_some_and(|occupant| occupant.number == self.number) {
            state.occupant = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn handle() -> Socket {
        Socket::Unix(UnixStream::pair().unwrap().0)
    }

    #[test]
    fn the_second_client_hears_who_the_first_is_unless_that_is_silent() {
        let (place, now) = (Place::default(), Instant::now());
        let first = place.take("the first", 1, handle(), now).unwrap();
        assert_eq!(place.take("the second", 2, handle(), now).unwrap_err(), "it computes for the first");
        let later = now + SILENT + Duration::from_secs(1);
        first.heard(true);
        assert!(place.take("the second", 2, handle(), later).is_err(), "the first waits for an answer");
        first.heard(false);
        let second = place.take("the second", 2, handle(), later).unwrap();
        drop(first);
        assert!(place.take("the third", 3, handle(), now).is_err(), "the place is the second's");
        drop(second);
        assert!(place.take("the third", 3, handle(), now).is_ok());
    }

    #[test]
    fn a_client_that_connects_again_takes_its_own_place() {
        let (place, now) = (Place::default(), Instant::now());
        let _first = place.take("the first", 1, handle(), now).unwrap();
        assert!(place.take("the first", 1, handle(), now).is_ok());
    }
}
