//! A task's end of its session as a pure machine: hello, welcome, numbered messages, heartbeats, and when to connect
//! again or give up. It has no clock, socket or channel: its decisions are carried out by the session's runner, or by
//! the simulation on virtual time.

use std::time::Duration;

use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};

use crate::control::outbox::{Heard, Outbox};
use crate::control::proto::coordinator_message::Kind as Told;
use crate::control::proto::task_message::Kind as Report;
use crate::control::proto::{CoordinatorMessage, Goodbye, Heartbeat, Hello, Over, TaskMessage, Welcome};
use crate::retry::{Backoff, CALL_PAUSES, REPORT_EVERY};

const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
/// How long a goodbye may take to reach the coordinator, which then closes the session.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a task waits before it asks a busy coordinator again. At the end of a run, ps 0 stays up for twice as long.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// An event of a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// Time has passed.
    Tick,
    /// A connection was opened.
    Opened,
    /// No connection could be opened, for this reason.
    NotOpened(String),
    /// A message from the coordinator arrived.
    Arrived(CoordinatorMessage),
    /// The connection broke, or the coordinator closed it.
    Broken,
    /// The task sends a message. Only while [`SessionMachine::is_welcomed`].
    Say(Report),
    /// The task has no more messages to send. Only while [`SessionMachine::is_welcomed`].
    Finish,
    /// The task no longer listens.
    Abandoned,
    /// The lookup of this number in the records has ended, with the outcome of the run if it is over.
    Looked(u64, Option<Outcome>),
}

/// An action that a session requests.
#[derive(Debug)]
pub enum SessionEffect {
    /// Connect to the coordinator.
    Open,
    /// Send this on the connection.
    Send(TaskMessage),
    /// Stop sending on the connection, but listen until the other end has closed it, too.
    StopSending,
    /// Drop the connection.
    Close,
    /// Pass this to the task.
    Deliver(Told),
    /// Look up in the records whether the run has ended.
    Look {
        /// The number of the lookup, returned with its result.
        number: u64,
        /// The incarnation of this process, if it has been welcomed.
        incarnation: Option<Incarnation>,
    },
    /// Log this.
    Mention(String),
    /// The session is over.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// Until the time of the next attempt to connect.
    Pausing(Duration),
    Opening,
    /// The hello has been sent. If there is no answer by this time, the wait is logged.
    Greeted(Duration),
    /// Welcomed; the next heartbeat is due at this time.
    Welcomed(Duration),
    /// Everything has been sent. The coordinator has until this time to close the connection.
    Parting(Duration, Next),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    Reconnect,
    End,
}

/// The configuration of a session.
#[derive(Debug)]
pub struct SessionConfig {
    /// The first message on every connection.
    pub hello: Hello,
    /// How long to keep trying to reach the coordinator.
    pub patience: Duration,
    /// Where the coordinator is, as appended to its name in logs; empty if it is in this process.
    pub place: String,
}

/// A task's end of its session.
#[derive(Debug)]
pub struct SessionMachine {
    config: SessionConfig,
    stage: Stage,
    /// The incarnation of the last welcome; zero before the first.
    incarnation: u64,
    outbox: Outbox<Report>,
    heard: Heard,
    /// Since when the coordinator has been unreachable.
    away: Option<Duration>,
    backoff: Backoff,
    /// Why the last attempt failed.
    error: String,
    /// Why the coordinator could not let this task in yet.
    busy: Option<String>,
    /// What the coordinator itself waits for, by its last message.
    reason: Option<String>,
    /// When a long wait was last logged.
    spoken: Duration,
    /// The number of the last lookup in the records, and whether it is in progress.
    looks: u64,
    looking: bool,
    /// The contents of heartbeats.
    pub progress: Heartbeat,
}

impl SessionMachine {
    /// A session that has not been opened yet.
    pub fn new(config: SessionConfig, now: Duration) -> Self {
        let mut backoff = Backoff::new(CALL_PAUSES);
        Self {
            config,
            stage: Stage::Pausing(now + backoff.pause()),
            incarnation: 0,
            outbox: Outbox::default(),
            heard: Heard::default(),
            away: Some(now),
            backoff,
            error: closed_at_once(),
            busy: None,
            reason: None,
            spoken: now,
            looks: 0,
            looking: false,
            progress: Heartbeat::default(),
        }
    }

    /// When the machine next needs a tick, if at all.
    pub fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::Pausing(until) | Stage::Parting(until, _) | Stage::Welcomed(until) => Some(until),
            Stage::Greeted(report) => Some(report.min(self.gives_up_at())),
            Stage::Opening | Stage::Ended => None,
        }
    }

    /// True while the coordinator accepts messages from the task.
    pub fn is_welcomed(&self) -> bool {
        matches!(self.stage, Stage::Welcomed(_))
    }

    /// True while the coordinator is unreachable, or has not welcomed this task.
    pub fn is_away(&self) -> bool {
        matches!(self.stage, Stage::Pausing(_) | Stage::Opening | Stage::Greeted(_))
    }

    /// True once the session is over.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Handles an event, and returns the actions to take.
    pub fn handle(&mut self, event: SessionEvent, now: Duration) -> Vec<SessionEffect> {
        let mut effects = Vec::new();
        match event {
            SessionEvent::Tick => self.tick(now, &mut effects),
            SessionEvent::Opened if self.stage == Stage::Opening => {
                let (begun, global_step) = (self.incarnation != 0, self.progress.global_step);
                let incarnation = self.incarnation;
                let hello = Hello { begun, global_step, incarnation, ..self.config.hello.clone() };
                effects.push(self.envelope(0, Report::Hello(hello)));
                self.stage = Stage::Greeted(now + REPORT_EVERY);
            }
            SessionEvent::NotOpened(error) if self.stage == Stage::Opening => {
                self.error = error;
                self.try_again(now, &mut effects);
            }
            SessionEvent::Arrived(message) if matches!(self.stage, Stage::Greeted(_) | Stage::Welcomed(_)) => {
                self.take(message, now, &mut effects);
            }
            SessionEvent::Broken => match self.stage {
                Stage::Greeted(_) | Stage::Welcomed(_) => self.reconnect(now, &mut effects),
                Stage::Parting(_, next) => self.part(next, now, &mut effects),
                Stage::Pausing(_) | Stage::Opening | Stage::Ended => {}
            },
            SessionEvent::Say(report) if self.is_welcomed() => self.say(report, &mut effects),
            SessionEvent::Finish if self.is_welcomed() => {
                self.say(Report::Goodbye(Goodbye {}), &mut effects);
                self.stop_sending(Next::End, now, &mut effects);
            }
            SessionEvent::Abandoned if self.is_away() => self.end(&mut effects),
            SessionEvent::Looked(number, found) if self.looking && number == self.looks => {
                self.looking = false;
                if let Some(outcome) = found.filter(|_| self.is_away()) {
                    effects.push(SessionEffect::Mention(outcome.reason.clone()));
                    self.tell_end(outcome, &mut effects);
                }
            }
            // These are from a dropped connection, or for a task that has left.
            SessionEvent::Opened
            | SessionEvent::NotOpened(_)
            | SessionEvent::Arrived(_)
            | SessionEvent::Say(_)
            | SessionEvent::Finish
            | SessionEvent::Abandoned
            | SessionEvent::Looked(..) => {}
        }
        effects
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<SessionEffect>) {
        match self.stage {
            Stage::Pausing(until) if now >= until => {
                self.stage = Stage::Opening;
                effects.push(SessionEffect::Open);
            }
            Stage::Greeted(_) if now >= self.gives_up_at() => {
                let closed = (self.error == closed_at_once()).then(closed_at_once);
                self.error = self.reason.take().or(closed).unwrap_or_else(|| "it does not answer".to_owned());
                self.give_up(now, effects);
            }
            Stage::Greeted(report) if now >= report => {
                self.stage = Stage::Greeted(now + REPORT_EVERY);
                self.speak("it accepts connections, but does not answer", now, effects);
            }
            Stage::Welcomed(heartbeat) if now >= heartbeat => {
                self.stage = Stage::Welcomed(now + HEARTBEAT_EVERY);
                effects.push(self.heartbeat());
            }
            Stage::Parting(until, next) if now >= until => self.part(next, now, effects),
            _ => {}
        }
    }

    /// Handles a message from the coordinator, and passes it to the task unless it is a repetition.
    fn take(&mut self, message: CoordinatorMessage, now: Duration, effects: &mut Vec<SessionEffect>) {
        if let Some(Told::Busy(busy)) = message.kind {
            if self.busy.is_none() || now.saturating_sub(self.spoken) >= REPORT_EVERY {
                self.spoken = now;
                effects.push(SessionEffect::Mention(busy.reason.clone()));
            }
            self.busy = Some(busy.reason);
            // The coordinator is alive, and whatever it waits for has deadlines of its own.
            self.away = Some(now);
            return self.stop_sending(Next::Reconnect, now, effects);
        }
        self.outbox.heard(message.heard);
        let Some(kind) = message.kind else { return };
        match &kind {
            // The coordinator is alive, though it cannot welcome anyone yet.
            Told::Waiting(waiting) => (self.spoken, self.reason) = (now, waiting.notices.last().cloned()),
            Told::Welcome(welcome) => self.welcome(welcome, now, effects),
            _ => {}
        }
        if !matches!(kind, Told::Welcome(_)) && !self.heard.is_new(message.number) {
            return;
        }
        let over = matches!(kind, Told::Over(_));
        effects.push(SessionEffect::Deliver(kind));
        if over {
            // Acknowledges the message, so that the coordinator knows that this task knows.
            effects.push(self.heartbeat());
            self.stop_sending(Next::End, now, effects);
        }
    }

    /// Resends what the coordinator has not acknowledged.
    fn welcome(&mut self, welcome: &Welcome, now: Duration, effects: &mut Vec<SessionEffect>) {
        (self.away, self.busy, self.looking) = (None, None, false);
        self.backoff.reset();
        if self.incarnation != welcome.incarnation {
            self.incarnation = welcome.incarnation;
            (self.outbox, self.heard) = (Outbox::default(), Heard::default());
        }
        self.outbox.heard(welcome.heard);
        effects.extend(self.outbox.kept().map(|(number, kind)| self.envelope(number, kind.clone())));
        if !self.is_welcomed() {
            self.stage = Stage::Welcomed(now);
        }
    }

    fn stop_sending(&mut self, next: Next, now: Duration, effects: &mut Vec<SessionEffect>) {
        effects.push(SessionEffect::StopSending);
        self.stage = Stage::Parting(now + LAST_WORDS, next);
    }

    /// Ends the connection: the coordinator has closed its side too, or has had enough time.
    fn part(&mut self, next: Next, now: Duration, effects: &mut Vec<SessionEffect>) {
        match next {
            Next::Reconnect => {
                self.reconnect(now, effects);
                // Pause longer than usual, because every hello carries the model's files.
                if matches!(self.stage, Stage::Pausing(_)) {
                    self.stage = Stage::Pausing(now + ASK_AGAIN_AFTER);
                }
            }
            Next::End => self.end(effects),
        }
    }

    fn reconnect(&mut self, now: Duration, effects: &mut Vec<SessionEffect>) {
        effects.push(SessionEffect::Close);
        if self.away.is_none() {
            self.spoken = now;
            effects.push(SessionEffect::Mention("lost the session with ps 0, reconnecting".to_owned()));
        }
        self.away.get_or_insert(now);
        self.error = self.busy.clone().unwrap_or_else(closed_at_once);
        self.try_again(now, effects);
    }

    fn try_again(&mut self, now: Duration, effects: &mut Vec<SessionEffect>) {
        if now > self.gives_up_at() {
            return self.give_up(now, effects);
        }
        let error = self.error.clone();
        self.speak(&error, now, effects);
        self.stage = Stage::Pausing(now + self.backoff.pause());
    }

    /// Logs a long wait at intervals, with the reason, and looks up whether the run has ended meanwhile.
    fn speak(&mut self, error: &str, now: Duration, effects: &mut Vec<SessionEffect>) {
        if now.saturating_sub(self.spoken) < REPORT_EVERY {
            return;
        }
        self.spoken = now;
        let waiting = format!("waiting for ps 0{} ({} s): {error}", self.config.place, self.away_for(now).as_secs());
        effects.push(SessionEffect::Mention(waiting));
        if !std::mem::replace(&mut self.looking, true) {
            self.looks += 1;
            let incarnation = (self.incarnation != 0).then_some(Incarnation(self.incarnation));
            effects.push(SessionEffect::Look { number: self.looks, incarnation });
        }
    }

    fn away_for(&self, now: Duration) -> Duration {
        self.away.map_or(Duration::ZERO, |away| now.saturating_sub(away))
    }

    fn gives_up_at(&self) -> Duration {
        self.away.unwrap_or_default() + self.config.patience
    }

    fn say(&mut self, report: Report, effects: &mut Vec<SessionEffect>) {
        let number = self.outbox.push(report.clone());
        effects.push(self.envelope(number, report));
    }

    fn envelope(&self, number: u64, kind: Report) -> SessionEffect {
        SessionEffect::Send(TaskMessage { number, heard: self.heard.highest(), kind: Some(kind) })
    }

    fn heartbeat(&self) -> SessionEffect {
        self.envelope(0, Report::Heartbeat(self.progress.clone()))
    }

    fn give_up(&mut self, now: Duration, effects: &mut Vec<SessionEffect>) {
        let (place, seconds) = (&self.config.place, self.away_for(now).as_secs());
        let reason = format!("gave up waiting for ps 0{place} after {seconds} s: {}", self.error);
        self.tell_end(Outcome { exit_code: exit_code::PEERS, reason }, effects);
    }

    /// Tells the task how the run ended without it.
    fn tell_end(&mut self, Outcome { exit_code, reason }: Outcome, effects: &mut Vec<SessionEffect>) {
        effects.push(SessionEffect::Deliver(Told::Over(Over { exit_code: u32::from(exit_code), reason })));
        self.end(effects);
    }

    fn end(&mut self, effects: &mut Vec<SessionEffect>) {
        self.stage = Stage::Ended;
        effects.extend([SessionEffect::Close, SessionEffect::End]);
    }
}

fn closed_at_once() -> String {
    "it closed the session at once".to_owned()
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
