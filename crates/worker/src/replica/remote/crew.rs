//! The joined workers of a run. A lost worker is called repeatedly, and used again when it is back. What they are asked
//! for is in `split`, if a batch is split among them, and in `pieces`, if the model is divided.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_instruments::{Site, Sites};
use windlass_wire::compute::Section;

use super::CrewError;
use super::keeping::Shared;
use super::seat::{Pace, Seat, SeatState};
use crate::joined::protocol::{Assignment, SIGN_OF_LIFE};
use crate::summary::JoinedSummary;

/// The lower limit of [`CrewConfig::silence`]: a worker that computes reports every second, if all goes well.
pub(super) const LEAST_SILENCE: Duration = SIGN_OF_LIFE.saturating_mul(3);

/// The configuration of a crew.
#[derive(Debug, Clone)]
pub struct CrewConfig {
    /// The addresses of the workers.
    pub addresses: Vec<String>,
    /// What they are to compute.
    pub assignment: Assignment,
    /// A worker that is silent for this long while a request is pending is lost. At least three seconds.
    pub silence: Duration,
    /// How long to wait for absent workers before giving up.
    pub peer_timeout: Duration,
}

/// The joined workers of a run.
pub struct Crew {
    pub(super) shared: Arc<Shared>,
}

impl Crew {
    /// Starts calling the workers.
    pub fn call(config: CrewConfig) -> std::io::Result<Self> {
        let config = CrewConfig { silence: config.silence.max(LEAST_SILENCE), ..config };
        let addresses = config.addresses.iter().cloned();
        let seats = addresses
            .enumerate()
            .map(|(index, address)| Seat::new(index, address, config.assignment.placed.as_ref()))
            .collect();
        let (changes, changed) = (Mutex::new(0), Condvar::new());
        let (outcome, has_begun) = (OnceLock::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { config, seats, outcome, has_begun, changes, changed });
        for index in 0..shared.seats.len() {
            let shared = shared.clone();
            let keep = move || shared.keep(&shared.seats[index]);
            std::thread::Builder::new().name(format!("joined-{index}")).spawn(keep)?;
        }
        Ok(Self { shared })
    }

    /// The number of workers.
    pub fn len(&self) -> usize {
        self.shared.seats.len()
    }

    /// Whether there are no workers.
    pub fn is_empty(&self) -> bool {
        self.shared.seats.is_empty()
    }

    /// Waits until every worker that has something to compute has joined.
    pub fn gather(&self, is_stopped: &dyn Fn() -> bool) -> Result<(), CrewError> {
        self.shared.wait(is_stopped, |absent| absent.is_empty())?;
        self.shared.begin();
        Ok(())
    }

    /// How much work a worker can be given. Never waits.
    pub(crate) fn pace(&self, seat: usize) -> Pace {
        self.shared.seats[seat].pace()
    }

    /// Whether a worker is present, as far as that is known without waiting.
    pub(crate) fn is_present(&self, seat: usize) -> bool {
        self.shared.seats[seat].is_present()
    }

    /// The devices that a worker computes on, if it is present.
    pub(crate) fn devices(&self, seat: usize, is_stopped: &dyn Fn() -> bool) -> Vec<String> {
        let state = self.shared.seats[seat].lock_until(is_stopped);
        let devices = |state: &SeatState| state.link.as_ref().map(|link| link.capacity.devices.clone());
        state.and_then(|state| devices(&state)).unwrap_or_default()
    }

    /// What each worker has done, for the final summary. Never waits.
    pub fn tally(&self) -> Vec<JoinedSummary> {
        let told = |seat: &Seat| {
            let counts = seat.counts();
            let (sent_bytes, received_bytes) = counts.traffic();
            let (worker, joined) = (seat.to_string(), seat.joined());
            JoinedSummary { worker, steps: counts.steps, joined, sent_bytes, received_bytes }
        };
        self.shared.seats.iter().map(told).collect()
    }

    /// The status of a worker, as shown to observers of the run. Never waits.
    pub(crate) fn site(&self, seat: usize) -> Site {
        self.shared.seats[seat].site()
    }

    /// Returns a function for the current status of all workers that have something to compute.
    pub fn sites(&self) -> Sites {
        let shared = self.shared.clone();
        Arc::new(move || shared.seats.iter().filter(|seat| seat.is_needed).map(Seat::site).collect())
    }

    /// The name of a worker.
    pub(crate) fn name(&self, seat: usize) -> String {
        self.shared.seats[seat].to_string()
    }

    /// Tells the workers that the run is over, and how it ended.
    pub fn leave(&self, outcome: &Outcome) {
        // A second call has nothing new to tell, since the run is already over.
        let is_first = self.shared.outcome.set(outcome.clone()).is_ok();
        let outcome = self.shared.outcome.get().unwrap_or(outcome);
        for seat in &self.shared.seats {
            // A worker that is still computing for a waiting replica learns of it when the connection closes.
            if let Some(link) = seat.lock_unless_computing().and_then(|mut state| state.link.take()) {
                link.leave(outcome);
            }
        }
        if is_first {
            self.shared.end_calls();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.leave(&Outcome { exit_code: exit_code::INTERNAL, reason: "its client has ended".to_owned() });
    }
}

/// Why a worker has not computed what it was asked for.
pub(crate) enum AskError {
    /// The worker is at fault or has been lost.
    Worker(String),
    /// The model could not compute it, and would fail elsewhere, too.
    Model(String),
    Stopped,
}

/// The size of a message.
pub(super) fn size(head: &[u8], sections: &[Section<'_>]) -> u64 {
    head.len() as u64 + sections.iter().map(Section::size).sum::<u64>()
}
