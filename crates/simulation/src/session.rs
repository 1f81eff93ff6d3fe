//! A task's end of its session with the coordinator, as a pure machine: hello, welcome, numbered messages, heartbeats,
//! and how long and how often it tries to connect.

use std::collections::VecDeque;
use std::time::Duration;

use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_wire::control::outbox::{Heard, Outbox};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{CoordinatorMessage, Goodbye, Heartbeat, Hello, Over, TaskMessage, task_message};

const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_millis(150);
const REPORT_EVERY: Duration = Duration::from_secs(3);
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What happens on a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// Time has passed.
    Tick,
    /// There is a connection.
    Opened,
    /// There is none.
    NotOpened,
    /// The coordinator says something.
    Arrived(CoordinatorMessage),
    /// The connection broke.
    Broken,
    /// The task says something.
    Say(task_message::Kind),
    /// The task has nothing more to say.
    Finish,
    /// What the records tell of the end of the run.
    Looked(Option<Outcome>),
}

/// What a session is to do.
#[derive(Debug)]
pub enum SessionEffect {
    /// Connect to the coordinator.
    Open,
    /// Say this on the connection.
    Send(TaskMessage),
    /// Hand this to the task.
    Deliver(Kind),
    /// Close the connection.
    Close,
    /// Look in the records whether the run has ended; the incarnation is zero if it was never let in.
    Look(u64),
    /// The session is over.
    End,
}

#[derive(Debug, PartialEq)]
enum Stage {
    Pausing(Duration),
    Opening,
    /// The hello has been said. The records are looked at every while.
    Greeted(Duration),
    /// With the time of the next heartbeat.
    Welcomed(Duration),
    Parting(Duration),
    Ended,
}

/// A task's end of its session.
#[derive(Debug)]
pub struct Session {
    hello: Hello,
    patience: Duration,
    /// As the last welcome gave it; zero before the first.
    incarnation: u64,
    outbox: Outbox<task_message::Kind>,
    heard: Heard,
    away: Option<Duration>,
    pause: Duration,
    spoken: Duration,
    looking: bool,
    stage: Stage,
    /// What the task says before it is welcomed.
    waiting: VecDeque<task_message::Kind>,
    finishing: bool,
    /// What heartbeats tell.
    pub progress: Heartbeat,
}

impl Session {
    /// A session that has yet to be opened.
    pub fn new(hello: Hello, patience: Duration, now: Duration) -> Self {
        Self {
            hello,
            patience,
            incarnation: 0,
            outbox: Outbox::default(),
            heard: Heard::default(),
            away: Some(now),
            pause: Duration::ZERO,
            spoken: now,
            looking: false,
            stage: Stage::Pausing(now),
            waiting: VecDeque::new(),
            finishing: false,
            progress: Heartbeat::default(),
        }
    }

    /// When it is to be told of the time, if that is of interest.
    pub fn deadline(&self) -> Option<Duration> {
        match &self.stage {
            Stage::Pausing(until) | Stage::Parting(until) | Stage::Welcomed(until) => Some(*until),
            Stage::Greeted(next) => Some((*next).min(self.away.unwrap_or_default() + self.patience)),
            Stage::Opening | Stage::Ended => None,
        }
    }

    /// True once the session is over.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Takes an event, and says what is to be done.
    pub fn handle(&mut self, event: SessionEvent, now: Duration) -> Vec<SessionEffect> {
        let mut effects = Vec::new();
        match event {
            SessionEvent::Tick => self.tick(now, &mut effects),
            SessionEvent::Opened if self.stage == Stage::Opening => {
                let (begun, global_step) = (self.incarnation != 0, self.progress.global_step);
                let hello = Hello { begun, global_step, ..self.hello.clone() };
                effects.push(self.envelope(0, task_message::Kind::Hello(hello)));
                self.stage = Stage::Greeted(now + REPORT_EVERY);
            }
            SessionEvent::NotOpened if self.stage == Stage::Opening => {
                if now.saturating_sub(self.spoken) >= REPORT_EVERY {
                    self.spoken = now;
                    self.look(&mut effects);
                }
                self.try_again(now, &mut effects);
            }
            SessionEvent::Arrived(message) => self.take(message, now, &mut effects),
            SessionEvent::Broken => match self.stage {
                Stage::Parting(_) => self.end(&mut effects),
                Stage::Greeted(_) | Stage::Welcomed(_) => self.broke(now, &mut effects),
                _ => {}
            },
            SessionEvent::Say(kind) => match self.stage {
                Stage::Welcomed(_) => self.say(kind, &mut effects),
                _ => self.waiting.push_back(kind),
            },
            SessionEvent::Finish => {
                self.finishing = true;
                self.part_if_done(now, &mut effects);
            }
            SessionEvent::Looked(found) => {
                self.looking = false;
                let away = matches!(self.stage, Stage::Pausing(_) | Stage::Opening | Stage::Greeted(_));
                if let Some(outcome) = found.filter(|_| away) {
                    self.tell_end(outcome, &mut effects);
                }
            }
            SessionEvent::Opened | SessionEvent::NotOpened => {}
        }
        effects
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<SessionEffect>) {
        match self.stage {
            Stage::Pausing(until) if now >= until => {
                self.pause = (self.pause * 2).clamp(RETRY_FIRST, RETRY_MOST);
                self.stage = Stage::Opening;
                effects.push(SessionEffect::Open);
            }
            Stage::Greeted(_) if now >= self.away.unwrap_or_default() + self.patience => self.give_up(effects),
            Stage::Greeted(next) if now >= next => {
                self.stage = Stage::Greeted(now + REPORT_EVERY);
                self.look(effects);
            }
            Stage::Welcomed(next) if now >= next => {
                self.stage = Stage::Welcomed(now + HEARTBEAT_EVERY);
                effects.push(self.heartbeat());
            }
            Stage::Parting(until) if now >= until => {
                effects.push(SessionEffect::Close);
                self.end(effects);
            }
            _ => {}
        }
    }

    fn broke(&mut self, now: Duration, effects: &mut Vec<SessionEffect>) {
        if self.away.is_none() {
            self.spoken = now;
        }
        self.away.get_or_insert(now);
        self.try_again(now, effects);
    }

    fn try_again(&mut self, now: Duration, effects: &mut Vec<SessionEffect>) {
        if now.saturating_sub(self.away.unwrap_or(now)) > self.patience {
            self.give_up(effects);
        } else {
            self.stage = Stage::Pausing(now + self.pause);
        }
    }

    fn take(&mut self, message: CoordinatorMessage, now: Duration, effects: &mut Vec<SessionEffect>) {
        if !matches!(self.stage, Stage::Greeted(_) | Stage::Welcomed(_)) {
            return;
        }
        if let Some(Kind::Busy(_)) = message.kind {
            effects.push(SessionEffect::Close);
            return self.broke(now, effects);
        }
        (self.away, self.pause) = (None, Duration::ZERO);
        self.outbox.heard(message.heard);
        let Some(kind) = message.kind else { return };
        if let Kind::Welcome(welcome) = &kind {
            if self.incarnation != welcome.incarnation {
                self.incarnation = welcome.incarnation;
                (self.outbox, self.heard) = (Outbox::default(), Heard::default());
            }
            self.outbox.heard(welcome.heard);
            let again: Vec<_> = self.outbox.kept().map(|(number, kind)| (number, kind.clone())).collect();
            effects.extend(again.into_iter().map(|(number, kind)| self.envelope(number, kind)));
            self.stage = Stage::Welcomed(now);
        } else if !self.heard.is_new(message.number) {
            return;
        }
        let over = matches!(kind, Kind::Over(_));
        effects.push(SessionEffect::Deliver(kind));
        if over {
            // So that the coordinator knows that this task knows.
            effects.extend([self.heartbeat(), SessionEffect::Close]);
            return self.end(effects);
        }
        if matches!(self.stage, Stage::Welcomed(_)) {
            while let Some(kind) = self.waiting.pop_front() {
                self.say(kind, effects);
            }
            self.part_if_done(now, effects);
        }
    }

    fn part_if_done(&mut self, now: Duration, effects: &mut Vec<SessionEffect>) {
        match self.stage {
            Stage::Welcomed(_) if self.finishing => {
                self.say(task_message::Kind::Goodbye(Goodbye {}), effects);
                self.stage = Stage::Parting(now + LAST_WORDS);
            }
            Stage::Pausing(_) | Stage::Opening | Stage::Greeted(_) if self.finishing => {
                effects.push(SessionEffect::Close);
                self.end(effects);
            }
            _ => {}
        }
    }

    fn say(&mut self, kind: task_message::Kind, effects: &mut Vec<SessionEffect>) {
        let number = self.outbox.push(kind.clone());
        effects.push(self.envelope(number, kind));
    }

    fn envelope(&self, number: u64, kind: task_message::Kind) -> SessionEffect {
        SessionEffect::Send(TaskMessage { number, heard: self.heard.highest(), kind: Some(kind) })
    }

    fn heartbeat(&self) -> SessionEffect {
        self.envelope(0, task_message::Kind::Heartbeat(self.progress.clone()))
    }

    fn look(&mut self, effects: &mut Vec<SessionEffect>) {
        if !std::mem::replace(&mut self.looking, true) {
            effects.push(SessionEffect::Look(self.incarnation));
        }
    }

    fn give_up(&mut self, effects: &mut Vec<SessionEffect>) {
        let reason = "gave up waiting for ps 0".to_owned();
        self.tell_end(Outcome { exit_code: exit_code::PEERS, reason }, effects);
    }

    fn tell_end(&mut self, Outcome { exit_code, reason }: Outcome, effects: &mut Vec<SessionEffect>) {
        effects.push(SessionEffect::Deliver(Kind::Over(Over { exit_code: u32::from(exit_code), reason })));
        effects.push(SessionEffect::Close);
        self.end(effects);
    }

    fn end(&mut self, effects: &mut Vec<SessionEffect>) {
        self.stage = Stage::Ended;
        effects.push(SessionEffect::End);
    }
}
