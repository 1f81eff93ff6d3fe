//! The seats of a crew. Each has a thread that checks that its worker is present and calls it when it is not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use windlass_core::lifecycle::Outcome;
use windlass_wire::compute::{Heard, Message, Waiting};
use windlass_wire::retry::{Backoff, REPORT_EVERY};

use super::CrewError;
use super::crew::CrewConfig;
use super::seat::{Absence, Link, Seat, SeatState};
use crate::event::NOTICE;
use crate::joined::protocol::{PING_EVERY, is_answer};

/// The range of pauses between calls to an absent worker.
const CALL_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The pause before calling a worker again that has refused this run. Another may be started in its place.
const REFUSED_AGAIN: Duration = Duration::from_secs(15);
/// How often to check that workers are present.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a wait checks whether it is over.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The seats of a crew, shared with the threads that keep workers at them.
pub(super) struct Shared {
    pub(super) config: CrewConfig,
    pub(super) seats: Vec<Seat>,
    /// How the run has ended, once it is over.
    pub(super) outcome: OnceLock<Outcome>,
    /// Whether all needed workers have been present at the same time.
    pub(super) has_begun: AtomicBool,
    /// Counts joins, losses and computed shares. Waiting threads watch it.
    pub(super) changes: Mutex<u64>,
    pub(super) changed: Condvar,
}

impl Shared {
    /// Keeps a worker connected until the run is over.
    pub(super) fn keep(&self, seat: &Seat) {
        let mut backoff = Backoff::new(CALL_AGAIN);
        while !self.is_over() || seat.is_being_assigned() {
            if !seat.is_needed && !self.has_begun() {
                self.await_change(self.changes());
                continue;
            }
            if self.gives_way(seat) {
                self.let_go(seat);
                self.nap(LOOK_EVERY);
                continue;
            }
            if self.is_there(seat) {
                backoff.reset();
                self.nap(LOOK_EVERY);
                continue;
            }
            self.nap(backoff.pause());
            if self.is_over() && !seat.is_being_assigned() {
                return;
            }
            let called = seat.call(&self.config.assignment, self.config.silence, &self.outcome);
            let is_refused = matches!(called, Err(Absence::Refused(_)));
            match called {
                Ok(link) => self.joined(seat, link),
                Err(absence) => self.absent(seat, absence),
            }
            seat.set_being_assigned(false);
            self.note_change();
            self.nap(if is_refused { REFUSED_AGAIN } else { Duration::ZERO });
        }
    }

    /// Begins the run: workers that it does not need are called as well, so that each learns how the run ends.
    pub(super) fn begin(&self) {
        if !self.has_begun() {
            self.seats.iter().filter(|seat| !seat.is_needed).for_each(|seat| seat.set_being_assigned(true));
            self.has_begun.store(true, Ordering::Release);
            self.note_change();
        }
    }

    /// Waits for calls in progress, so that their workers learn how the run has ended. The outcome must be set.
    pub(super) fn end_calls(&self) {
        let began = Instant::now();
        while self.seats.iter().any(Seat::is_being_assigned) && began.elapsed() < PING_EVERY {
            self.await_change(self.changes());
        }
        self.seats.iter().for_each(|seat| seat.set_being_assigned(false));
    }

    fn absent(&self, seat: &Seat, absence: Absence) {
        seat.is_taken.store(matches!(absence, Absence::Taken(_)), Ordering::Relaxed);
        let mut state = seat.lock();
        match absence {
            Absence::NotNow(why) | Absence::Taken(why) => state.why = why,
            Absence::Refused(why) => (state.why, state.refused) = (why.clone(), Some(why)),
        }
    }

    /// Whether a worker is left to others while an earlier one that the run needs computes for another client. All
    /// clients take workers in the order of their addresses, so no two clients each hold a worker that the other waits
    /// for.
    fn gives_way(&self, seat: &Seat) -> bool {
        let is_before = |other: &Seat| (&other.address, other.index) < (&seat.address, seat.index);
        let is_earlier = |other: &&Seat| other.is_needed && is_before(other);
        let mut earlier = self.seats.iter().filter(is_earlier);
        !self.has_begun() && earlier.any(|other| other.is_taken.load(Ordering::Relaxed))
    }

    /// Releases a worker to other clients, as if it had never joined.
    fn let_go(&self, seat: &Seat) {
        let Some(mut state) = seat.try_lock() else { return };
        if state.link.take().is_some() {
            seat.joins_not();
            info!("released {seat} to other clients until an earlier worker is free");
        }
        state.why = "released until the workers before it, by address, are free".to_owned();
    }

    /// Whether a worker is at a seat. A worker that has not been asked anything for a while is pinged.
    fn is_there(&self, seat: &Seat) -> bool {
        // A locked seat is in use.
        let Some(mut state) = seat.try_lock() else { return true };
        let Some(link) = &mut state.link else { return false };
        match link.ping(self.config.silence, &|| self.is_over()) {
            Ok(()) => {
                seat.counts().hears();
                true
            }
            Err(error) => {
                self.lost(seat, &mut state, error.to_string());
                false
            }
        }
    }

    fn joined(&self, seat: &Seat, link: Link) {
        let mut state = seat.lock();
        // The end of the run has already looked for its link, or will when the lock is free.
        if let Some(outcome) = self.outcome.get() {
            return link.leave(outcome);
        }
        let capacity = &link.capacity;
        let how =
            format!("{} on {}, via {}", towers(capacity.towers), capacity.devices.join(", "), link.connection.kind());
        seat.joins();
        if seat.joined() > 1 {
            warn!(target: NOTICE, "{seat} rejoined: {how}");
        } else {
            info!("{seat} joined: {how}");
        }
        seat.set_towers(capacity.towers);
        seat.counts().joins();
        seat.is_taken.store(false, Ordering::Relaxed);
        state.refused = None;
        state.why.clear();
        state.link = Some(link);
    }

    pub(super) fn lost(&self, seat: &Seat, state: &mut SeatState, why: String) {
        if !self.is_over() {
            let then = match self.config.assignment.placed {
                Some(_) if !seat.is_needed => "no step needs it",
                Some(_) => "the step is repeated when it is back",
                None => "others compute its share until it is back",
            };
            warn!(target: NOTICE, "lost {seat}: {why}; {then}");
        }
        (state.link, state.why) = (None, why);
        self.note_change();
    }

    /// Returns how to wait for an answer.
    pub(super) fn waiting<'a>(
        &self,
        is_stopped: &'a dyn Fn() -> bool,
        heard: &'a dyn Fn(usize, Heard),
        meanwhile: Option<(&'a [u8], Duration)>,
    ) -> Waiting<'a> {
        let is_answer = &|message: &Message| is_answer(&message.head);
        Waiting { patience: self.config.silence, is_answer, is_stopped, heard, meanwhile }
    }

    /// Waits until `is_enough` accepts the list of needed workers that are absent. Logs which workers it waits for.
    pub(super) fn wait(
        &self,
        is_stopped: &dyn Fn() -> bool,
        is_enough: impl Fn(&[&Seat]) -> bool,
    ) -> Result<(), CrewError> {
        let began = Instant::now();
        let mut spoken = began;
        loop {
            let before = self.changes();
            let (mut absent, mut names, mut is_sure) = (Vec::new(), Vec::new(), true);
            for seat in self.seats.iter().filter(|seat| seat.is_needed) {
                let Some(state) = seat.try_lock() else {
                    // A seat that computes has its worker; any other holder releases the lock soon, unless the worker
                    // does not answer.
                    if !seat.is_computing() {
                        is_sure = false;
                        names.push(format!("{seat} (does not answer)"));
                    }
                    continue;
                };
                if let Some(reason) = state.refused.clone().filter(|_| seat.joined() == 0) {
                    return Err(CrewError::Refused { worker: seat.to_string(), reason });
                }
                if !state.is_ready() {
                    seat.counts().is_awaited_since(began);
                    absent.push(seat);
                    names.push(format!("{seat} ({})", state.why));
                }
            }
            if is_sure && is_enough(&absent) {
                absent.iter().for_each(|seat| seat.counts().is_awaited_no_more());
                return Ok(());
            }
            if is_stopped() {
                return Err(CrewError::Interrupted);
            }
            let waited = began.elapsed();
            if waited > self.config.peer_timeout {
                return Err(CrewError::GaveUp(format!("{} after {} s", names.join(", "), waited.as_secs())));
            }
            if spoken.elapsed() >= REPORT_EVERY {
                spoken = Instant::now();
                info!("waiting for {} ({} s)", names.join(", "), waited.as_secs());
            }
            self.await_change(before);
        }
    }

    /// Returns the number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits briefly for a change after the first `before` ones.
    pub(super) fn await_change(&self, before: u64) {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(changes, CHECK_EVERY, |changes| *changes == before));
    }

    pub(super) fn note_change(&self) {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    fn nap(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_over() && Instant::now() < until {
            std::thread::sleep(CHECK_EVERY.min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    fn is_over(&self) -> bool {
        self.outcome.get().is_some()
    }
}

fn towers(count: usize) -> String {
    if count == 1 { "1 tower".to_owned() } else { format!("{count} towers") }
}
