//! One joined worker as its client sees it: the connection, while there is one, and the values that the worker has.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use windlass_core::lifecycle::Outcome;
use windlass_instruments::Site;
use windlass_wire::compute::{self, ComputeError, Connection};

use super::counts::Counts;
use crate::joined::protocol::{
    Answer, Ask, Assignment, Capacity, PING_EVERY, PlacedStages, answer_limits, assignment_limits, is_answer, read,
    written,
};

/// The most replicas that a worker can have.
const MOST_TOWERS: usize = 256;
/// The pause before retrying a lock that is held only briefly.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long a share waits for a worker that is being pinged before another worker computes it.
const BRIEFLY: Duration = Duration::from_millis(100);
/// The weight of a new measurement of a worker's speed.
const NEW: f64 = 0.2;

/// The place of one worker in a run.
pub(super) struct Seat {
    pub(super) index: usize,
    pub(super) address: String,
    /// The stages that the worker computes; none if it computes the whole model.
    pub(super) stages: Vec<String>,
    /// Whether a step of this run needs the worker.
    pub(super) is_needed: bool,
    /// Has its own lock, because the state is locked while the worker computes and batches are divided meanwhile.
    pace: Mutex<Pace>,
    /// Whether the worker last answered that it is busy: it computes for another client, or is short of memory.
    pub(super) is_taken: AtomicBool,
    /// How many times the worker has joined. Changes only while the state is locked.
    joined: AtomicU64,
    /// Set while the worker has, or is about to get, an assignment but no link: the end of the run waits for it.
    is_being_assigned: Mutex<bool>,
    /// Has its own lock for the same reason: the counts are read whenever the run is observed.
    counts: Mutex<Counts>,
    /// Whether the worker computes for a replica of this process, which then holds the lock on its state.
    is_computing: AtomicBool,
    state: Mutex<SeatState>,
}

/// How much work a worker can be given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The number of its replicas; one if it has never joined.
    pub(crate) towers: usize,
    /// Samples per second, as measured by the worker.
    pub(crate) speed: Option<f64>,
}

/// The presence of a worker.
#[derive(Default)]
pub(super) struct SeatState {
    pub(super) link: Option<Link>,
    /// Why the worker is absent.
    pub(super) why: String,
    /// Why the worker refuses, if it always will.
    pub(super) refused: Option<String>,
}

/// A worker that is ready.
pub(super) struct Link {
    pub(super) connection: Connection,
    /// The versions of the values that the worker has.
    pub(super) has: Vec<u64>,
    pub(super) capacity: Capacity,
    pub(super) spoken: Instant,
    /// Whether an abandoned answer is still to come. The worker can then only be told that the run is over.
    pub(super) owes: bool,
}

/// Why a worker has not joined.
pub(super) enum Absence {
    /// The worker may join later.
    NotNow(String),
    /// The worker may join when another client has left, or when it has enough memory.
    Taken(String),
    /// The worker will never join.
    Refused(String),
}

impl Seat {
    pub(super) fn new(index: usize, address: String, placed: Option<&PlacedStages>) -> Self {
        let stages: Vec<String> =
            placed.iter().flat_map(|placed| placed.of(index)).map(|stage| stage.stage.clone()).collect();
        let state = SeatState { why: "not called yet".to_owned(), ..SeatState::default() };
        let is_needed = placed.is_none() || !stages.is_empty();
        Self {
            index,
            address,
            stages,
            is_needed,
            pace: Mutex::new(Pace { towers: 1, speed: None }),
            is_taken: AtomicBool::new(false),
            joined: AtomicU64::new(0),
            is_being_assigned: Mutex::new(false),
            counts: Mutex::default(),
            is_computing: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status of the worker, as shown to observers of the run.
    pub(super) fn site(&self) -> Site {
        Site {
            name: self.to_string(),
            replicas: self.pace().towers as u32,
            reachable: self.is_present(),
            joined: Some(self.counts().told(self)),
        }
    }

    /// Whether the worker is present. Never waits: a locked seat is in use.
    pub(super) fn is_present(&self) -> bool {
        self.try_lock().is_none_or(|state| state.link.is_some())
    }

    pub(super) fn pace(&self) -> Pace {
        *self.lock_pace()
    }

    pub(super) fn set_towers(&self, towers: usize) {
        self.lock_pace().towers = towers;
    }

    /// Updates the speed: the worker took this long for this many samples.
    pub(super) fn measured(&self, samples: usize, micros: u64) {
        let measured = samples as f64 / (micros.max(1) as f64 * 1e-6);
        let mut pace = self.lock_pace();
        pace.speed = Some(pace.speed.map_or(measured, |speed| speed + NEW * (measured - speed)));
    }

    fn lock_pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SeatState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`Seat::lock`], but returns `None` if the lock is held.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, SeatState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Like [`Seat::lock`], but returns `None` once `is_stopped`: a worker that does not answer a ping holds the lock for
    /// as long as its silence is tolerated.
    pub(super) fn lock_until(&self, is_stopped: &dyn Fn() -> bool) -> Option<MutexGuard<'_, SeatState>> {
        loop {
            match self.try_lock() {
                None if !is_stopped() => std::thread::sleep(LOOK_AGAIN),
                state => return state,
            }
        }
    }

    /// Like [`Seat::lock`], but returns `None` if the worker computes, or does not answer a ping at once.
    pub(super) fn lock_if_free(&self, is_stopped: &dyn Fn() -> bool) -> Option<MutexGuard<'_, SeatState>> {
        let began = Instant::now();
        self.lock_until(&|| self.is_computing() || began.elapsed() > BRIEFLY || is_stopped())
    }

    /// Like [`Seat::lock`], but returns `None` if the worker computes. At the end of a run, any other holder releases the
    /// lock soon.
    pub(super) fn lock_unless_computing(&self) -> Option<MutexGuard<'_, SeatState>> {
        loop {
            match self.try_lock() {
                None if !self.is_computing() => std::thread::sleep(LOOK_AGAIN),
                state => return state,
            }
        }
    }

    pub(super) fn is_computing(&self) -> bool {
        self.is_computing.load(Ordering::Relaxed)
    }

    /// Sets whether the worker computes for a replica of this process.
    pub(super) fn set_computing(&self, is_computing: bool) {
        self.is_computing.store(is_computing, Ordering::Relaxed);
    }

    /// How many times the worker has joined.
    pub(super) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// Counts a join. The state must be locked.
    pub(super) fn joins(&self) {
        self.joined.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a join back. The state must be locked.
    pub(super) fn joins_not(&self) {
        self.joined.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the end of the run waits for the call to this worker.
    pub(super) fn is_being_assigned(&self) -> bool {
        *self.lock_assigning()
    }

    pub(super) fn set_being_assigned(&self, is_being_assigned: bool) {
        *self.lock_assigning() = is_being_assigned;
    }

    /// Whether the worker may still get its assignment: the end of the run will wait for it.
    fn may_assign(&self, outcome: &OnceLock<Outcome>) -> bool {
        let mut is_being_assigned = self.lock_assigning();
        *is_being_assigned |= outcome.get().is_none();
        *is_being_assigned
    }

    fn lock_assigning(&self) -> MutexGuard<'_, bool> {
        self.is_being_assigned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the worker and lets it prepare the model. If the run ends meanwhile, the worker is told how.
    pub(super) fn call(
        &self,
        assignment: &Assignment,
        silence: Duration,
        outcome: &OnceLock<Outcome>,
    ) -> Result<Link, Absence> {
        let mut own = assignment.clone();
        own.worker = self.index;
        let asked = written(&Ask::Assign(Box::new(own)));
        // The worker would close the connection without a word.
        let too_large = |error| {
            let what = "the description of the model, with its files and list of parameters, is too large";
            Absence::Refused(format!("{what}: {error}"))
        };
        assignment_limits().check(&asked, &[]).map_err(too_large)?;
        let not_now = |error: ComputeError| Absence::NotNow(error.to_string());
        let mut connection = compute::connect(&self.address).map_err(not_now)?;
        if !self.may_assign(outcome) {
            return Err(not_now(ComputeError::Stopped));
        }
        connection.send(&asked, &[], silence, &|| false).map_err(not_now)?;
        let limits = answer_limits(&assignment.parameters);
        let answer = loop {
            match connection.receive(&limits, silence, &|| outcome.get().is_some()) {
                Ok(message) if is_answer(&message.head) => break message.head,
                Ok(_) => {}
                Err(error) => {
                    outcome.get().into_iter().for_each(|outcome| leave(&mut connection, outcome));
                    return Err(not_now(error));
                }
            }
        };
        self.answered(&answer, connection, assignment)
    }

    /// Interprets a worker's answer to its assignment.
    fn answered(&self, answer: &[u8], connection: Connection, assignment: &Assignment) -> Result<Link, Absence> {
        match read(answer) {
            Ok(Answer::Assigned(capacity)) if !(1..=MOST_TOWERS).contains(&capacity.towers) => {
                Err(Absence::NotNow(format!("it says that it has {} towers", capacity.towers)))
            }
            Ok(Answer::Assigned(capacity)) => {
                let has = vec![0; assignment.parameters.len()];
                Ok(Link { connection, has, capacity, spoken: Instant::now(), owes: false })
            }
            Ok(Answer::Refused { reason, is_busy: true }) => Err(Absence::Taken(reason)),
            Ok(Answer::Refused { reason, is_busy: false }) => Err(Absence::Refused(reason)),
            Ok(_) => Err(Absence::NotNow("it did not answer what it was asked".to_owned())),
            Err(error) => Err(Absence::NotNow(error.to_string())),
        }
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "worker {} at {}", self.index, self.address)?;
        match &self.stages[..] {
            [] => Ok(()),
            [stage] => write!(formatter, " (stage {stage})"),
            stages => write!(formatter, " (stages {})", stages.join(", ")),
        }
    }
}

impl SeatState {
    /// Whether a worker is present and can be asked something.
    pub(super) fn is_ready(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.owes)
    }
}

impl Link {
    /// Pings the worker if nothing has been sent to it for a while.
    pub(super) fn ping(&mut self, silence: Duration, is_stopped: &dyn Fn() -> bool) -> Result<(), ComputeError> {
        if self.owes || self.spoken.elapsed() < PING_EVERY {
            return Ok(());
        }
        self.connection.send(&written(&Ask::Ping), &[], silence, is_stopped)?;
        let limits = compute::Limits { head: 1 << 10, sections: 0, bytes: 0 };
        match self.connection.receive(&limits, silence, is_stopped) {
            Ok(_) => self.spoken = Instant::now(),
            // The worker can still be told that the run is over.
            Err(ComputeError::Stopped) => self.owes = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Tells the worker that the run is over.
    pub(super) fn leave(mut self, outcome: &Outcome) {
        leave(&mut self.connection, outcome);
    }
}

/// Tells a worker that the run is over.
fn leave(connection: &mut Connection, outcome: &Outcome) {
    let Outcome { exit_code, reason } = outcome.clone();
    let _ = connection.send(&written(&Ask::Leave { reason, exit_code }), &[], PING_EVERY, &|| false);
}
