//! What a worker does and when, as a pure machine: which instructions are still valid for which incarnation, what is
//! reported to the coordinator, and how the worker ends. It knows no tensors, clock or connection: the work itself, the
//! session and the log belong to its shell.

use std::collections::VecDeque;
use std::time::Duration;

use windlass_core::cluster::{ServerId, TaskId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};

use crate::control::proto::coordinator_message::Kind as Told;
use crate::control::proto::task_message::Kind as Report;
use crate::control::proto::{
    AllFinished, Concluded, Endpoint, Failure, Initialised, Start, Waiting, WorkerLeft, WorkerReport,
};

/// How long the coordinator has to end the run after a failure was reported.
const FAILURE_HEARD_WITHIN: Duration = Duration::from_secs(2);

/// An event for a worker.
#[derive(Debug)]
pub enum WorkerEvent {
    /// A message from the coordinator.
    Told(Told),
    /// The worker's session is over.
    SessionEnded,
    /// The assigned work has succeeded or failed.
    Completed(Result<Achievement, Setback>),
    /// The process was told to stop.
    Stop,
    /// Time has passed.
    Tick,
}

/// An action that a worker requests.
#[derive(Debug)]
pub enum WorkerEffect {
    /// Start this work, as this incarnation. No other work is in progress.
    Work(Incarnation, Work),
    /// The coordinator has welcomed this process as this incarnation: an earlier one must stop waiting for servers, and
    /// its connections may be dead.
    Welcomed(Incarnation),
    /// The run is over: requests that still wait for servers will not be answered.
    RunIsOver,
    /// Report this to the coordinator.
    Report(Report),
    /// Log this.
    Mention(String),
    /// Log this as a warning.
    Warn(String),
    /// Log which tasks the run waits for.
    MentionWaiting(Waiting),
    /// Say goodbye, unless the run is over, and end with this outcome.
    End(Outcome),
}

/// Work that takes a while.
#[derive(Debug)]
pub enum Work {
    /// Push the initial values to these servers.
    Initialise(Vec<Endpoint>),
    /// Train.
    Train(Start),
    /// Score the final values on these servers, sum up the run and let the model conclude.
    Summarise(Vec<Endpoint>, AllFinished),
}

/// Work that has succeeded.
#[derive(Debug)]
pub enum Achievement {
    /// The servers have the initial values.
    Initialised,
    /// Training has ended, with this report.
    Trained(Box<WorkerReport>),
    /// The run has been summed up. The outcome is that of the model's own conclusion, which may have failed.
    Concluded(Outcome),
}

/// Work that has failed.
#[derive(Debug)]
pub struct Setback {
    /// The cause.
    pub cause: Cause,
    /// The error, in words.
    pub error: String,
}

/// Why work failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A server has fenced off this incarnation, or the coordinator has given the process another.
    DeclaredDead,
    /// The server in this process has released its parameters: the run has ended, or is rolling back.
    Released(ServerId),
    /// The run is over, or the process was told to stop.
    Interrupted,
    /// A server could not be reached in time, or refused a request.
    Unreachable,
    /// A loss, gradient or statistic is not finite.
    NotFinite,
    /// The model failed.
    Model,
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// Working as this incarnation.
    Working(Incarnation),
    /// The failure has been reported; the coordinator has until this time to end the run.
    Failed(Outcome, Duration),
    Ended,
}

/// The decisions of a worker.
#[derive(Debug)]
pub struct WorkerMachine {
    id: WorkerId,
    /// The task that people see: the worker itself, or the client of joined workers, which is one worker or several to
    /// the servers.
    shown_as: TaskId,
    stage: Stage,
    /// The incarnation of the last welcome; zero before the first.
    incarnation: Incarnation,
    is_chief: bool,
    servers: Vec<Endpoint>,
    /// The work still to be done, each with the incarnation that it was assigned to.
    instructions: VecDeque<(Incarnation, Work)>,
    /// How the run ended.
    outcome: Option<Outcome>,
    /// How the model's conclusion went.
    concluded: Outcome,
    session_ended: bool,
    stopped: bool,
}

impl WorkerMachine {
    /// A worker that has not joined yet. People see it as this task, as which it is named.
    pub fn new(id: WorkerId, shown_as: TaskId) -> Self {
        Self {
            id,
            shown_as,
            stage: Stage::Idle,
            incarnation: Incarnation::default(),
            is_chief: false,
            servers: Vec::new(),
            instructions: VecDeque::new(),
            outcome: None,
            concluded: Outcome::done(),
            session_ended: false,
            stopped: false,
        }
    }

    /// The incarnation of the last welcome; `None` before the first.
    pub fn incarnation(&self) -> Option<Incarnation> {
        (self.incarnation != Incarnation::default()).then_some(self.incarnation)
    }

    /// True if this worker is the chief, as far as it knows.
    pub fn is_chief(&self) -> bool {
        self.is_chief
    }

    /// True if assigned work is in progress.
    pub fn is_working(&self) -> bool {
        matches!(self.stage, Stage::Working(_))
    }

    /// When the machine next needs a tick, if at all.
    pub fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::Failed(_, until) => Some(until),
            Stage::Idle | Stage::Working(_) | Stage::Ended => None,
        }
    }

    /// Handles an event, and returns the actions to take.
    pub fn handle(&mut self, event: WorkerEvent, now: Duration) -> Vec<WorkerEffect> {
        let mut effects = Vec::new();
        match event {
            WorkerEvent::Told(told) => self.hear(told, &mut effects),
            WorkerEvent::SessionEnded => self.session_ended = true,
            WorkerEvent::Completed(result) => self.complete(result, now, &mut effects),
            WorkerEvent::Stop => self.stopped = true,
            WorkerEvent::Tick => {}
        }
        self.proceed(now, &mut effects);
        effects
    }

    fn hear(&mut self, told: Told, effects: &mut Vec<WorkerEffect>) {
        match told {
            Told::Welcome(welcome) => {
                self.incarnation = Incarnation(welcome.incarnation);
                effects.push(WorkerEffect::Welcomed(self.incarnation));
            }
            Told::Waiting(waiting) => effects.push(WorkerEffect::MentionWaiting(waiting)),
            Told::Initialise(initialise) => {
                self.servers.clone_from(&initialise.servers);
                self.instruct(Work::Initialise(initialise.servers));
            }
            Told::Start(start) => {
                self.servers.clone_from(&start.servers);
                self.is_chief = start.chief;
                // After a rollback the run is concluded again, perhaps by another chief.
                self.concluded = Outcome::done();
                self.instruct(Work::Train(start));
            }
            Told::WorkerLeft(left) => self.hear_of_leaving(&left, effects),
            Told::AllFinished(finished) if finished.chief == self.id.0 => {
                self.instruct(Work::Summarise(self.servers.clone(), finished));
            }
            Told::Over(over) => {
                self.outcome = Some(Outcome { exit_code: over.exit_code as u8, reason: over.reason });
                effects.push(WorkerEffect::RunIsOver);
            }
            // Other workers have nothing to do at the end; the remaining messages are for servers.
            _ => {}
        }
    }

    fn hear_of_leaving(&mut self, left: &WorkerLeft, effects: &mut Vec<WorkerEffect>) {
        let becomes_chief = left.chief == self.id.0 && !std::mem::replace(&mut self.is_chief, true);
        if self.shown_as == TaskId::CLIENT {
            // The other workers are in the same process, and joined workers have their numbers.
            return;
        }
        if !left.reason.is_empty() {
            effects.push(WorkerEffect::Warn(format!("{} is gone: {}", WorkerId(left.worker), left.reason)));
        }
        if becomes_chief {
            effects.push(WorkerEffect::Mention("this worker is now the chief".to_owned()));
        }
    }

    fn instruct(&mut self, work: Work) {
        self.instructions.push_back((self.incarnation, work));
    }

    fn complete(&mut self, result: Result<Achievement, Setback>, now: Duration, effects: &mut Vec<WorkerEffect>) {
        let Stage::Working(incarnation) = std::mem::replace(&mut self.stage, Stage::Idle) else {
            debug_assert!(false, "only what was begun is completed");
            return;
        };
        match result {
            Ok(achievement) => effects.push(WorkerEffect::Report(self.report(achievement, incarnation))),
            Err(setback) => self.take_setback(setback, incarnation, now, effects),
        }
    }

    /// Each report carries the incarnation that did the work, so that a coordinator ignores work it did not assign.
    fn report(&mut self, achievement: Achievement, Incarnation(incarnation): Incarnation) -> Report {
        match achievement {
            Achievement::Initialised => Report::Initialised(Initialised { incarnation }),
            Achievement::Trained(report) => Report::Finished(WorkerReport { incarnation, ..*report }),
            Achievement::Concluded(outcome) => {
                self.concluded = outcome;
                Report::Concluded(Concluded { incarnation })
            }
        }
    }

    fn take_setback(
        &mut self,
        Setback { cause, error }: Setback,
        incarnation: Incarnation,
        now: Duration,
        effects: &mut Vec<WorkerEffect>,
    ) {
        match cause {
            // The session rejoins by itself; the coordinator then says what to do.
            Cause::DeclaredDead => {
                let line = "declared dead, or the run is rolling back: rejoining".to_owned();
                effects.push(WorkerEffect::Mention(line));
            }
            // The failure of an incarnation that has since been replaced no longer matters.
            _ if self.incarnation != incarnation => {
                effects.push(WorkerEffect::Mention(format!("rejoining (before that: {error})")));
            }
            Cause::Released(server) => {
                effects.push(WorkerEffect::Mention(format!("{server} released its parameters")));
            }
            Cause::Interrupted => self.stopped = true,
            Cause::Unreachable => effects.push(self.fail(exit_code::PEERS, error.clone(), error, now)),
            Cause::NotFinite => {
                effects.push(self.fail(exit_code::NUMERIC, format!("{}: {error}", self.shown_as), error, now))
            }
            Cause::Model => {
                effects.push(self.fail(exit_code::INTERNAL, format!("{}: {error}", self.shown_as), error, now))
            }
        }
    }

    /// Reports a failure, and sets the outcome of this worker in case the run does not end.
    fn fail(&mut self, exit_code: u8, reason: String, error: String, now: Duration) -> WorkerEffect {
        self.stage = Stage::Failed(Outcome { exit_code, reason }, now + FAILURE_HEARD_WITHIN);
        let (exit_code, incarnation) = (u32::from(exit_code), self.incarnation.0);
        WorkerEffect::Report(Report::Failed(Failure { exit_code, reason: error, incarnation, prepare: 0 }))
    }

    /// Starts the next valid piece of work, or ends.
    fn proceed(&mut self, now: Duration, effects: &mut Vec<WorkerEffect>) {
        let ended = match &self.stage {
            Stage::Working(_) | Stage::Ended => return,
            // If the run has ended, its reason takes precedence.
            Stage::Failed(..) | Stage::Idle if self.outcome.is_some() => self.outcome.clone(),
            Stage::Failed(own, until) => (self.session_ended || now >= *until).then(|| own.clone()),
            Stage::Idle if self.stopped => {
                Some(Outcome { exit_code: exit_code::TERMINATED, reason: "told to stop".to_owned() })
            }
            Stage::Idle if self.session_ended => {
                Some(Outcome { exit_code: exit_code::PEERS, reason: "lost the session with ps 0".to_owned() })
            }
            Stage::Idle => None,
        };
        if let Some(outcome) = ended {
            self.stage = Stage::Ended;
            let has_failed = outcome.exit_code == 0 && self.concluded.exit_code != 0;
            let outcome = if has_failed { self.concluded.clone() } else { outcome };
            effects.push(WorkerEffect::End(outcome));
        } else if matches!(self.stage, Stage::Idle) {
            // Work assigned to an earlier incarnation is dropped.
            self.instructions.retain(|(incarnation, _)| *incarnation == self.incarnation);
            if let Some((incarnation, work)) = self.instructions.pop_front() {
                self.stage = Stage::Working(incarnation);
                effects.push(WorkerEffect::Work(incarnation, work));
            }
        }
    }
}

#[cfg(test)]
#[path = "worker_machine_tests.rs"]
mod tests;
