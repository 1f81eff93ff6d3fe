//! One joined worker as its client sees it: the connection, while there is one, and what the worker knows.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use windlass_core::lifecycle::Outcome;
use windlass_instruments::Site;
use windlass_wire::compute::{self, ComputeError, Connection};

use super::counts::Counts;
use crate::joined::protocol::{
    Answer, Ask, Assignment, Capacity, PING_EVERY, PlacedStages, answer_limits, is_answer, read, written,
};

/// The most replicas that a worker can have.
const MOST_TOWERS: usize = 256;
/// Before it is tried again to have a seat that somebody holds for a moment.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How much a new measurement of a worker's speed counts.
const NEW: f64 = 0.2;

/// One worker's place among all of a run.
pub(super) struct Seat {
    pub(super) index: usize,
    pub(super) address: String,
    /// The stages that it computes; none if it computes all of the model.
    pub(super) stages: Vec<String>,
    /// Whether a step of this run needs the worker.
    pub(super) is_needed: bool,
    /// Apart from the rest, which is held while the worker computes: batches are divided meanwhile.
    pace: Mutex<Pace>,
    /// Whether the worker has last said that it computes for another client.
    pub(super) is_taken: AtomicBool,
    /// How often a worker has come. It changes only while the state is held.
    joined: AtomicU64,
    /// Set while the worker has, or is about to get, an assignment but no link: the end of the run waits for it.
    is_being_assigned: Mutex<bool>,
    /// Apart from the rest for the same reason: they are read whenever somebody looks at the run.
    counts: Mutex<Counts>,
    /// Whether it computes for a replica of this process, which then holds its state.
    is_computing: AtomicBool,
    state: Mutex<SeatState>,
}

/// How much a worker can be given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Its replicas; one for a worker that has never come.
    pub(crate) towers: usize,
    /// Samples a second, as measured there.
    pub(crate) speed: Option<f64>,
}

/// Who is there.
#[derive(Default)]
pub(super) struct SeatState {
    pub(super) link: Option<Link>,
    /// Why nobody is.
    pub(super) why: String,
    /// Why the worker refuses, if it always will.
    pub(super) refused: Option<String>,
}

/// A worker that is ready.
pub(super) struct Link {
    pub(super) connection: Connection,
    /// The versions of the values that it has.
    pub(super) has: Vec<u64>,
    pub(super) capacity: Capacity,
    pub(super) spoken: Instant,
    /// Whether an answer is still to come that nobody waits for any more. Then it is only told that the run is over.
    pub(super) owes: bool,
}

/// Why a worker has not joined.
pub(super) enum Absence {
    /// It may later.
    NotNow(String),
    /// It may when another client has left.
    Taken(String),
    /// It never will.
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

    /// What whoever looks at the run is told of its worker.
    pub(super) fn site(&self) -> Site {
        Site {
            name: self.to_string(),
            replicas: self.pace().towers as u32,
            // Whoever holds it computes.
            reachable: self.try_lock().is_none_or(|state| state.link.is_some()),
            joined: Some(self.counts().told(self)),
        }
    }

    pub(super) fn pace(&self) -> Pace {
        *self.lock_pace()
    }

    pub(super) fn set_towers(&self, towers: usize) {
        self.lock_pace().towers = towers;
    }

    /// Notes that so many samples took so long there.
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

    /// The same, if nobody holds it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, SeatState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The same, unless it computes: whoever else holds it soon has done with it.
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

    /// Notes whether it computes for a replica of this process.
    pub(super) fn set_computing(&self, is_computing: bool) {
        self.is_computing.store(is_computing, Ordering::Relaxed);
    }

    /// How often a worker has come.
    pub(super) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// Counts a worker that has come; the state is held.
    pub(super) fn joins(&self) {
        self.joined.fetch_add(1, Ordering::Relaxed);
    }

    /// As if it had not come; the state is held.
    pub(super) fn joins_not(&self) {
        self.joined.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the end of the run waits for the call to the worker.
    pub(super) fn is_being_assigned(&self) -> bool {
        *self.lock_assigning()
    }

    pub(super) fn set_being_assigned(&self, is_being_assigned: bool) {
        *self.lock_assigning() = is_being_assigned;
    }

    /// Whether the worker is to be told what to compute, because the end of the run will wait for that.
    fn may_assign(&self, outcome: &OnceLock<Outcome>) -> bool {
        let mut is_being_assigned = self.lock_assigning();
        *is_being_assigned |= outcome.get().is_none();
        *is_being_assigned
    }

    fn lock_assigning(&self) -> MutexGuard<'_, bool> {
        self.is_being_assigned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the worker, and has it make the model ready. If the run ends meanwhile, the worker is told how.
    pub(super) fn call(
        &self,
        assignment: &Assignment,
        silence: Duration,
        outcome: &OnceLock<Outcome>,
    ) -> Result<Link, Absence> {
        let not_now = |error: ComputeError| Absence::NotNow(error.to_string());
        let mut connection = compute::connect(&self.address).map_err(not_now)?;
        if !self.may_assign(outcome) {
            return Err(not_now(ComputeError::Stopped));
        }
        let mut own = assignment.clone();
        own.worker = self.index;
        let asked = written(&Ask::Assign(Box::new(own)));
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

    /// What a worker's answer to its assignment means.
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
    /// Whether a worker is there that can be asked something.
    pub(super) fn is_ready(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.owes)
    }
}

impl Link {
    /// Asks the worker whether it is there, if it has heard nothing for a while.
    pub(super) fn ping(&mut self, silence: Duration, is_stopped: &dyn Fn() -> bool) -> Result<(), ComputeError> {
        if self.owes || self.spoken.elapsed() < PING_EVERY {
            return Ok(());
        }
        self.connection.send(&written(&Ask::Ping), &[], silence, is_stopped)?;
        let limits = compute::Limits { head: 1 << 10, sections: 0, bytes: 0 };
        match self.connection.receive(&limits, silence, is_stopped) {
            Ok(_) => self.spoken = Instant::now(),
            // It can still be told that the run is over.
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
