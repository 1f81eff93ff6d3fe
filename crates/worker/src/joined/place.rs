//! The single place at a joined worker, and the client that occupies it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windlass_wire::stream::Socket;

/// A client that is silent for this long gives way to another: a live client sends something every two seconds.
const SILENT: Duration = Duration::from_secs(8);

/// The number of refused clients that are logged while the place is taken: anyone who can connect can invent any number
/// of them, and each retries.
const MOST_REFUSED: usize = 64;

/// A place for one client. Clones refer to the same place.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientPlace(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    taken: u64,
    occupant: Option<Occupant>,
    /// Clients that were refused while this one was there.
    refused: BTreeSet<String>,
}

#[derive(Debug)]
struct Occupant {
    number: u64,
    run: u64,
    /// The worker's number in that run.
    worker: usize,
    client: String,
    handle: Socket,
    heard: Instant,
    /// Whether the worker is busy for the client, which then waits and need not send anything.
    is_served: bool,
}

/// A client's hold on the place, released on drop.
#[derive(Debug)]
pub(super) struct Seated {
    place: ClientPlace,
    number: u64,
}

/// Why a client is not seated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Denied {
    pub(super) reason: String,
    /// Whether the client may retry later.
    pub(super) is_busy: bool,
}

impl ClientPlace {
    /// Seats a client. `handle` can end its connection, and `worker` is this worker's number in its run. If another
    /// client is there, the error names it.
    pub(super) fn take(
        &self,
        client: &str,
        (run, worker): (u64, usize),
        handle: Socket,
        now: Instant,
    ) -> Result<Seated, Denied> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Denied { reason: "it is about to end".to_owned(), is_busy: true });
        }
        if let Some(occupant) = &state.occupant {
            let silent = now.saturating_duration_since(occupant.heard);
            let gives_way = !occupant.is_served && silent > SILENT;
            if occupant.run == run && occupant.worker != worker {
                let reason = format!("it is worker {} of this run already, under another name", occupant.worker);
                return Err(Denied { reason, is_busy: false });
            }
            if occupant.run != run && !gives_way {
                return Err(Denied { reason: format!("it computes for {}", occupant.client), is_busy: true });
            }
            occupant.handle.shutdown();
            if occupant.run != run {
                state.refused.clear();
            }
        }
        state.taken += 1;
        let number = state.taken;
        let client = client.to_owned();
        state.occupant = Some(Occupant { number, run, worker, client, handle, heard: now, is_served: false });
        Ok(Seated { place: self.clone(), number })
    }

    /// Whether to log that this client was refused: once for each of the first clients while the place is taken.
    pub(super) fn is_news(&self, client: &str) -> bool {
        let refused = &mut self.lock().refused;
        refused.len() < MOST_REFUSED && refused.insert(client.to_owned())
    }

    /// Admits no more clients, and ends the current client's connection.
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
    /// Records a message from the client, and whether the worker is now busy for it.
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
            state.refused.clear();
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
        let (place, now) = (ClientPlace::default(), Instant::now());
        let first = place.take("the first", (1, 0), handle(), now).unwrap();
        let denied = place.take("the second", (2, 0), handle(), now).unwrap_err();
        assert_eq!(denied, Denied { reason: "it computes for the first".to_owned(), is_busy: true });
        let later = now + SILENT + Duration::from_secs(1);
        first.heard(true);
        assert!(place.take("the second", (2, 0), handle(), later).is_err(), "the first waits for an answer");
        first.heard(false);
        let second = place.take("the second", (2, 0), handle(), later).unwrap();
        drop(first);
        assert!(place.take("the third", (3, 0), handle(), now).is_err(), "the place is the second's");
        drop(second);
        assert!(place.take("the third", (3, 0), handle(), now).is_ok());
    }

    #[test]
    fn a_client_that_connects_again_takes_its_own_place() {
        let (place, now) = (ClientPlace::default(), Instant::now());
        let _first = place.take("the first", (1, 0), handle(), now).unwrap();
        assert!(place.take("the first", (1, 0), handle(), now).is_ok());
    }

    #[test]
    fn each_of_the_first_clients_that_are_refused_is_news_once_while_the_place_is_taken() {
        let place = ClientPlace::default();
        for run in 0..2 {
            let _seated = place.take("a client", (run, 0), handle(), Instant::now()).unwrap();
            let news = (0..1000).filter(|client| place.is_news(&(client / 2).to_string())).count();
            assert_eq!(news, MOST_REFUSED);
        }
    }

    #[test]
    fn one_worker_under_two_names_is_refused_to_the_second_for_good() {
        let (place, now) = (ClientPlace::default(), Instant::now());
        let _first = place.take("the run", (1, 0), handle(), now).unwrap();
        let denied = place.take("the run", (1, 1), handle(), now + 2 * SILENT).unwrap_err();
        let reason = "it is worker 0 of this run already, under another name".to_owned();
        assert_eq!(denied, Denied { reason, is_busy: false });
    }
}
