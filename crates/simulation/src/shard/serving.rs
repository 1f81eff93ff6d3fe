//! The threads of a shard's connections: each serves one request after another, stage by stage, and waits where the
//! gate blocks it.

use std::collections::VecDeque;
use std::time::Duration;

use windlass_core::admission::{Contribution, RequestKind, Skip, TooLate, Turn, Verdict};
use windlass_core::ledger::Acquaintance;

use super::{Answer, AnswerKind, Asked, Frame, Shard, ShardEffect};

/// How long a request may wait for the coordinator's announcement that its process plays the worker.
const ANNOUNCEMENT_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Thread {
    frames: VecDeque<Frame>,
    serving: Option<Serving>,
    /// True if the other end has closed: what has arrived is served, and nothing more follows.
    left_alone: bool,
}

#[derive(Debug)]
struct Serving {
    asked: Asked,
    stage: Stage,
    pieces: usize,
    may_skip: bool,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Announce(Duration),
    Initialise,
    Admit,
    /// With the version to answer with, if it is not the version at the end.
    Apply(Option<u64>),
    Collect,
    Contribute,
    Discard(AnswerKind),
    Turn(AnswerKind),
}

impl Thread {
    /// True if the thread waits for something that cannot arrive any more.
    fn is_over(&self) -> bool {
        let reads = self.serving.as_ref().is_none_or(|serving| match serving.stage {
            Stage::Initialise | Stage::Apply(_) | Stage::Collect | Stage::Discard(_) => true,
            Stage::Announce(_) | Stage::Admit | Stage::Contribute | Stage::Turn(_) => false,
        });
        self.left_alone && reads && self.frames.is_empty()
    }
}

enum Progress {
    Blocked,
    Moved,
    Done,
}

impl Shard {
    /// Handles a frame that arrives on a connection.
    pub fn arrive(&mut self, connection: usize, frame: Frame, now: Duration) {
        self.threads.entry(connection).or_default().frames.push_back(frame);
        self.poll_thread(connection, now);
    }

    /// Handles a closed connection. Its thread notices when it next reads or answers.
    pub fn disconnected(&mut self, connection: usize, now: Duration) {
        if let Some(thread) = self.threads.get_mut(&connection) {
            thread.left_alone = true;
            self.poll_thread(connection, now);
        }
    }

    /// Closes the connection from this side.
    pub fn hang_up(&mut self, connection: usize) {
        self.threads.remove(&connection);
    }

    /// Ends every wait. Returns the connections with a request being served, which are to be closed.
    pub fn close(&mut self) -> Vec<usize> {
        self.gate.close();
        self.threads.iter().filter(|(_, thread)| thread.serving.is_some()).map(|(connection, _)| *connection).collect()
    }

    /// Lets a thread continue as far as it can.
    pub(super) fn poll_thread(&mut self, connection: usize, now: Duration) {
        let Some(mut thread) = self.threads.remove(&connection) else { return };
        let mut changed = false;
        loop {
            if thread.serving.is_none() {
                match thread.frames.pop_front() {
                    Some(Frame::Request(asked)) => {
                        let stage = Stage::Announce(now + ANNOUNCEMENT_WAIT);
                        let may_skip = asked.request.kind == RequestKind::Pull;
                        thread.serving = Some(Serving { asked, stage, pieces: 0, may_skip });
                        self.effects.push(ShardEffect::Poll(now + ANNOUNCEMENT_WAIT));
                    }
                    Some(Frame::Piece) => continue,
                    None => break,
                }
            }
            match self.step(connection, &mut thread, now, &mut changed) {
                Progress::Moved => {}
                Progress::Done => thread.serving = None,
                Progress::Blocked => break,
            }
        }
        if !thread.is_over() {
            self.threads.insert(connection, thread);
        }
        if changed {
            self.poll(now);
        }
    }

    /// Advances the request of a thread by one stage. Sets `changed` if others may continue because of it.
    fn step(&mut self, connection: usize, thread: &mut Thread, now: Duration, changed: &mut bool) -> Progress {
        let Thread { frames, serving: Some(serving), .. } = thread else { return Progress::Blocked };
        match serving.stage {
            Stage::Announce(until) => self.get_acquainted(connection, serving, now >= until),
            Stage::Admit => self.admit(serving, now),
            Stage::Contribute => self.contribute(connection, serving, now),
            Stage::Turn(kind) => self.take_turn((connection, kind), serving, now, changed),
            Stage::Initialise | Stage::Apply(_) | Stage::Collect | Stage::Discard(_) => match frames.pop_front() {
                Some(_) => self.take_piece(connection, serving, changed),
                None => Progress::Blocked,
            },
        }
    }

    fn get_acquainted(&mut self, connection: usize, serving: &mut Serving, too_late: bool) -> Progress {
        let (asked, request) = (serving.asked, serving.asked.request);
        let acquaintance = self.gate.acquaintance(&request);
        if acquaintance == Acquaintance::Unannounced {
            if self.gate.is_closed() || too_late {
                self.effects.push(ShardEffect::Close(connection));
            }
            return Progress::Blocked;
        }
        serving.stage = match request.kind {
            RequestKind::Initialise => Stage::Initialise,
            RequestKind::Pull if acquaintance == Acquaintance::Former => {
                return self.answer(connection, asked, AnswerKind::Fenced, None);
            }
            RequestKind::Pull => Stage::Turn(AnswerKind::Values),
            RequestKind::Push => Stage::Admit,
        };
        Progress::Moved
    }

    fn admit(&mut self, serving: &mut Serving, now: Duration) -> Progress {
        if !self.gate.has_rounds()
            && let Some(left) = self.gate.held_for(now)
        {
            self.effects.push(ShardEffect::Poll(now + left));
            return Progress::Blocked;
        }
        let verdict = self.gate.admit(&serving.asked.request, serving.asked.batch.to_string(), now);
        serving.stage = match verdict {
            Verdict::Apply { .. } => Stage::Apply(self.is_async.then(|| self.gate.version())),
            Verdict::Collect => Stage::Collect,
            Verdict::Skip(Skip::Counted) => Stage::Discard(AnswerKind::Values),
            Verdict::Skip(Skip::Stale) => Stage::Discard(AnswerKind::Stale),
            Verdict::Skip(Skip::Over) => Stage::Discard(AnswerKind::Over),
            Verdict::Fenced => Stage::Discard(AnswerKind::Fenced),
            Verdict::Refused(_) => Stage::Discard(AnswerKind::Refused),
        };
        Progress::Moved
    }

    /// Takes the next piece of a request's values. After the last piece, does what follows from having them all.
    fn take_piece(&mut self, connection: usize, serving: &mut Serving, changed: &mut bool) -> Progress {
        let (asked, request, piece) = (serving.asked, serving.asked.request, serving.pieces);
        let last = piece + 1 == self.blocks.len();
        if matches!(serving.stage, Stage::Apply(_))
            && let Some(side) = self.gate.claim(&request, piece)
        {
            self.blocks[piece].change(side, Clone::clone, |block| block.push(asked.pushed()));
            self.effects.push(ShardEffect::Applied(asked, last));
        }
        serving.pieces += 1;
        if !last {
            return Progress::Moved;
        }
        serving.stage = match serving.stage {
            Stage::Initialise => {
                let kind = match self.gate.refuses_first_values(&request) {
                    None => AnswerKind::Values,
                    Some(TooLate::Fenced) => AnswerKind::Fenced,
                    Some(TooLate::Begun) => AnswerKind::Refused,
                };
                return self.answer(connection, asked, kind, None);
            }
            Stage::Apply(version) => {
                self.gate.applied(&request, serving.pieces);
                *changed = true;
                if version.is_some() {
                    return self.answer(connection, asked, AnswerKind::Values, version);
                }
                Stage::Turn(AnswerKind::Values)
            }
            Stage::Discard(kind @ (AnswerKind::Fenced | AnswerKind::Refused)) => {
                return self.answer(connection, asked, kind, None);
            }
            Stage::Discard(kind) => Stage::Turn(kind),
            Stage::Collect => Stage::Contribute,
            stage @ (Stage::Announce(_) | Stage::Admit | Stage::Contribute | Stage::Turn(_)) => stage,
        };
        Progress::Moved
    }

    fn contribute(&mut self, connection: usize, serving: &mut Serving, now: Duration) -> Progress {
        if !self.is_free(now) {
            return Progress::Blocked;
        }
        let asked = serving.asked;
        serving.stage = match self.gate.arrived(&asked.request) {
            Contribution::Counted { complete } => {
                self.open_round.push(asked.pushed());
                self.effects.push(ShardEffect::Applied(asked, true));
                if complete {
                    self.begin_round();
                }
                Stage::Turn(AnswerKind::Values)
            }
            Contribution::Again => Stage::Turn(AnswerKind::Values),
            Contribution::Late => Stage::Turn(AnswerKind::Stale),
            Contribution::Fenced => return self.answer(connection, asked, AnswerKind::Fenced, None),
        };
        Progress::Moved
    }

    fn take_turn(
        &mut self,
        (connection, kind): (usize, AnswerKind),
        serving: &mut Serving,
        now: Duration,
        changed: &mut bool,
    ) -> Progress {
        let (asked, request) = (serving.asked, serving.asked.request);
        match self.gate.turn(&request, serving.may_skip) {
            Turn::Answer => self.answer(connection, asked, kind, None),
            Turn::Fenced => self.answer(connection, asked, AnswerKind::Fenced, None),
            Turn::Closed => {
                self.effects.push(ShardEffect::Close(connection));
                Progress::Blocked
            }
            Turn::Wait(_) => Progress::Blocked,
            Turn::SkipRound if !self.is_free(now) => Progress::Blocked,
            Turn::SkipRound => {
                serving.may_skip = false;
                if self.gate.skip_to(&request) {
                    self.begin_round();
                }
                *changed = true;
                Progress::Moved
            }
        }
    }

    /// Answers the request and ends its thread's work on it.
    fn answer(&mut self, connection: usize, asked: Asked, kind: AnswerKind, version: Option<u64>) -> Progress {
        let answer = Answer {
            kind,
            over: self.gate.is_over(),
            rounds: self.gate.has_rounds(),
            version: version.unwrap_or(self.gate.version()),
        };
        self.effects.push(ShardEffect::Answer(connection, asked, answer));
        Progress::Done
    }
}
