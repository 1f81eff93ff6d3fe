//! A shard whose values are the pushes that are in them, so that it can be seen which are. What may be done with a
//! request is decided by the production gate; here are the connections' threads, the open round and the reading of a cut,
//! each in pieces that others come between.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use windlass_core::admission::{
    Contribution, CopyOnCut, CutSide, Gate, Request, RequestKind, Skip, TooLate, Turn, Verdict,
};
use windlass_core::checkpoint::{CutPoint, Notes};
use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::ledger::{Acquaintance, Incarnation, PushId};
use windlass_core::run::{LearningRate, RunSpec};

/// How long a request may be ahead of the coordinator's word that its process plays the worker.
const ANNOUNCEMENT_WAIT: Duration = Duration::from_secs(5);

/// A push as it is seen in values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pushed {
    /// Whose it is.
    pub worker: u32,
    /// Of which process, and its number there.
    pub push: (Incarnation, u64),
    /// Which of the worker's batches it was computed from.
    pub batch: u64,
}

/// The pushes that are in a block.
pub type Values = Vec<Pushed>;

/// A request as it travels: what the gate asks, and which batch a push is of.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// What decisions depend on.
    pub request: Request,
    /// The batch of a push.
    pub batch: u64,
}

impl Asked {
    /// As it is seen in values.
    pub fn pushed(&self) -> Pushed {
        let PushId { worker, incarnation, sequence } = self.request.push;
        Pushed { worker: worker.0, push: (incarnation, sequence), batch: self.batch }
    }
}

/// What an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// Values of now; a push is in them.
    Values,
    /// The push was dropped as stale.
    Stale,
    /// The push came after the last step.
    Over,
    /// The process was declared dead.
    Fenced,
    /// The request was refused.
    Refused,
}

/// An answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// What it is.
    pub kind: AnswerKind,
    /// True once the last step has been applied.
    pub over: bool,
    /// True if versions are rounds.
    pub rounds: bool,
    /// The version of the values.
    pub version: u64,
}

/// What arrives on a stream.
#[derive(Debug, Clone, Copy)]
pub enum Frame {
    /// A request begins.
    Request(Asked),
    /// The next piece of its values.
    Piece,
}

/// What a shard is to have done for it.
#[derive(Debug)]
pub enum ShardEffect {
    /// Answer on a connection.
    Answer(usize, Asked, Answer),
    /// Close a connection.
    Close(usize),
    /// Look again at this time.
    Poll(Duration),
    /// Apply the next block of the complete round in a moment.
    RoundPiece,
    /// Read the next block of this cut in a moment.
    ReadPiece(u64),
    /// A worker has joined at this clock.
    Joined(WorkerId, u64),
    /// A push was applied to a block, or counted in a round; the last of its blocks if true.
    Applied(Asked, bool),
    /// A cut has been read, or cannot be.
    Read(u64, Option<ShardAtCut>),
}

/// A shard as of a cut.
#[derive(Debug)]
pub struct ShardAtCut {
    /// Where it is.
    pub mark: CutPoint,
    /// The notes of its last pushes.
    pub notes: Notes,
    /// The rate there.
    pub learning_rate: LearningRate,
    /// The blocks there.
    pub blocks: Vec<Values>,
}

#[derive(Debug, Default)]
struct Thread {
    frames: VecDeque<Frame>,
    serving: Option<Serving>,
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
    /// With the version that is answered, if it is not that at the end.
    Apply(Option<u64>),
    Collect,
    Contribute,
    Discard(AnswerKind),
    Turn(AnswerKind),
}

#[derive(Debug)]
struct Reader {
    number: u64,
    found: Option<(CutPoint, Notes, LearningRate)>,
    blocks: Vec<Values>,
}

/// One server's share of the parameters.
#[derive(Debug)]
pub struct Shard {
    /// The decisions.
    pub gate: Gate,
    blocks: Vec<CopyOnCut<Values>>,
    is_async: bool,
    workers: BTreeSet<WorkerId>,
    threads: BTreeMap<usize, Thread>,
    open_round: Values,
    /// The round that is being applied, its side of the cut, and how many blocks have it.
    applying: Option<(Values, CutSide, usize)>,
    leaving: VecDeque<(WorkerId, Incarnation)>,
    readers: Vec<Reader>,
    effects: Vec<ShardEffect>,
    /// The processes that the gate has heard of since the shard was prepared.
    announced: BTreeSet<(WorkerId, Incarnation)>,
}

enum Progress {
    Blocked,
    Moved,
    Done,
}

impl Shard {
    /// A shard of so many blocks, without a push in it.
    pub fn new(run: &RunSpec, workers: &[WorkerId], blocks: Vec<Values>) -> Self {
        Self {
            gate: Gate::new(run, workers),
            blocks: blocks.into_iter().map(CopyOnCut::new).collect(),
            is_async: run.mode == Mode::Async,
            workers: workers.iter().copied().collect(),
            threads: BTreeMap::new(),
            open_round: Vec::new(),
            applying: None,
            leaving: VecDeque::new(),
            readers: Vec::new(),
            effects: Vec::new(),
            announced: BTreeSet::new(),
        }
    }

    /// What is to be done, in this order.
    pub fn take_effects(&mut self) -> Vec<ShardEffect> {
        std::mem::take(&mut self.effects)
    }

    /// The blocks of now.
    pub fn blocks(&self) -> impl Iterator<Item = &Values> {
        self.blocks.iter().map(CopyOnCut::get)
    }

    /// Something arrives on a connection.
    pub fn arrive(&mut self, connection: usize, frame: Frame, now: Duration) {
        self.threads.entry(connection).or_default().frames.push_back(frame);
        self.poll_thread(connection, now);
    }

    /// A connection is gone.
    pub fn disconnected(&mut self, connection: usize) {
        self.threads.remove(&connection);
    }

    /// Ends every wait, and closes the connections of those who are being served.
    pub fn close(&mut self) -> Vec<usize> {
        self.gate.close();
        self.threads.iter().filter(|(_, thread)| thread.serving.is_some()).map(|(connection, _)| *connection).collect()
    }

    /// Takes pushes of a process.
    pub fn join(
        &mut self,
        worker: WorkerId,
        incarnation: Incarnation,
        clock: u64,
        now: Duration,
    ) -> windlass_core::checkpoint::Standing {
        self.workers.insert(worker);
        let standing = self.announce(worker, incarnation, clock);
        self.poll(now);
        standing
    }

    /// Lets the gate know of a process that is here from the first step on.
    pub fn announce_living(&mut self, worker: WorkerId, incarnation: Incarnation) {
        self.announced.insert((worker, incarnation));
        self.gate.fence(worker, incarnation);
    }

    /// Lets the gate know of a process. Those who wait are looked at later.
    pub fn announce(
        &mut self,
        worker: WorkerId,
        incarnation: Incarnation,
        clock: u64,
    ) -> windlass_core::checkpoint::Standing {
        let is_new = self.announced.insert((worker, incarnation));
        if is_new {
            self.effects.push(ShardEffect::Joined(worker, clock));
        }
        self.gate.join(worker, incarnation, clock)
    }

    /// Waits no more for a process.
    pub fn leave(&mut self, worker: WorkerId, incarnation: Incarnation, now: Duration) {
        self.leaving.push_back((worker, incarnation));
        self.poll(now);
    }

    /// True while somebody is about to leave a round that is being applied or held.
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Begins to read a cut that was made, or is to come.
    pub fn read(&mut self, number: u64, now: Duration) {
        self.readers.push(Reader { number, found: None, blocks: Vec::new() });
        self.poll(now);
    }

    /// Gives a cut up. Whoever reads it finds out.
    pub fn abandon(&mut self, number: u64, now: Duration) {
        if self.gate.end_cut(number) {
            self.blocks.iter_mut().for_each(|block| drop(block.forget()));
            self.poll(now);
        }
    }

    /// Applies the complete round to the next block.
    pub fn round_piece(&mut self, now: Duration) {
        let Some((round, side, done)) = &mut self.applying else { return };
        if let Some(block) = self.blocks.get_mut(*done) {
            block.change(*side, Clone::clone, |block| block.extend_from_slice(round));
            *done += 1;
            return self.effects.push(ShardEffect::RoundPiece);
        }
        self.applying = None;
        self.gate.end_round(now);
        self.poll(now);
    }

    /// Reads the next block of a cut, the last first.
    pub fn read_piece(&mut self, number: u64) {
        let Some(index) = self.readers.iter().position(|reader| reader.number == number) else { return };
        let reader = &mut self.readers[index];
        let block = self.blocks.len() - reader.blocks.len();
        let taken = match block {
            0 => {
                let whole = self.gate.end_cut(number);
                let Reader { found, mut blocks, .. } = self.readers.remove(index);
                blocks.reverse();
                let cut = found.filter(|_| whole);
                let cut = cut.map(|(mark, notes, learning_rate)| ShardAtCut { mark, notes, learning_rate, blocks });
                return self.effects.push(ShardEffect::Read(number, cut));
            }
            _ if !self.gate.is_cutting(number) => None,
            _ => self.blocks[block - 1].take(number, Clone::clone),
        };
        match taken {
            Some(values) => {
                reader.blocks.push(values);
                self.effects.push(ShardEffect::ReadPiece(number));
            }
            None => {
                self.readers.remove(index);
                self.effects.push(ShardEffect::Read(number, None));
            }
        }
    }

    /// Looks at everyone who waits.
    pub fn poll(&mut self, now: Duration) {
        self.change_rounds(now);
        for connection in self.threads.keys().copied().collect::<Vec<_>>() {
            self.poll_thread(connection, now);
        }
        let mut given_up = Vec::new();
        for reader in self.readers.iter_mut().filter(|reader| reader.found.is_none()) {
            let closed = self.gate.is_closed();
            match self.gate.cut_made(reader.number) {
                Ok(Some(found)) if !closed => {
                    reader.found = Some(found);
                    self.effects.push(ShardEffect::ReadPiece(reader.number));
                }
                Ok(_) if !closed => {}
                _ => given_up.push(reader.number),
            }
        }
        for number in given_up {
            self.readers.retain(|reader| reader.number != number);
            self.effects.push(ShardEffect::Read(number, None));
        }
    }

    /// Lets those leave who are to, when no round is being applied and nothing is held back.
    fn change_rounds(&mut self, now: Duration) {
        while !self.leaving.is_empty() && self.is_free(now) {
            let Some((worker, incarnation)) = self.leaving.pop_front() else { return };
            if self.gate.leave(worker, incarnation) {
                self.begin_round();
            }
        }
    }

    /// True if the open round may change now; else it is looked at again.
    fn is_free(&mut self, now: Duration) -> bool {
        if self.applying.is_some() {
            return false;
        }
        let held = self.gate.held_for(now);
        held.iter().for_each(|left| self.effects.push(ShardEffect::Poll(now + *left)));
        held.is_none()
    }

    fn begin_round(&mut self) {
        let side = self.gate.round_side();
        self.applying = Some((std::mem::take(&mut self.open_round), side, 0));
        self.effects.push(ShardEffect::RoundPiece);
    }

    fn poll_thread(&mut self, connection: usize, now: Duration) {
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
        self.threads.insert(connection, thread);
        if changed {
            self.poll(now);
        }
    }

    fn step(&mut self, connection: usize, thread: &mut Thread, now: Duration, changed: &mut bool) -> Progress {
        let Thread { frames, serving: Some(serving) } = thread else { return Progress::Blocked };
        let (asked, request) = (serving.asked, serving.asked.request);
        match serving.stage {
            Stage::Announce(until) => match self.gate.acquaintance(&request) {
                Acquaintance::Unannounced if self.gate.is_closed() || now >= until => {
                    self.effects.push(ShardEffect::Close(connection));
                    return Progress::Blocked;
                }
                Acquaintance::Unannounced => return Progress::Blocked,
                known => {
                    serving.stage = match request.kind {
                        RequestKind::Initialise => Stage::Initialise,
                        RequestKind::Pull if known == Acquaintance::Former => {
                            self.answer(connection, asked, AnswerKind::Fenced, None);
                            return Progress::Done;
                        }
                        RequestKind::Pull => Stage::Turn(AnswerKind::Values),
                        RequestKind::Push => Stage::Admit,
                    }
                }
            },
            Stage::Initialise => {
                if frames.pop_front().is_none() {
                    return Progress::Blocked;
                }
                serving.pieces += 1;
                if serving.pieces == self.blocks.len() {
                    let kind = match self.gate.refuses_first_values(&request) {
                        None => AnswerKind::Values,
                        Some(TooLate::Fenced) => AnswerKind::Fenced,
                        Some(TooLate::Begun) => AnswerKind::Refused,
                    };
                    self.answer(connection, asked, kind, None);
                    return Progress::Done;
                }
            }
            Stage::Admit => {
                if !self.gate.has_rounds()
                    && let Some(left) = self.gate.held_for(now)
                {
                    self.effects.push(ShardEffect::Poll(now + left));
                    return Progress::Blocked;
                }
                let verdict = self.gate.admit(&request, asked.batch.to_string(), now);
                serving.stage = match verdict {
                    Verdict::Apply { .. } => Stage::Apply(self.is_async.then(|| self.gate.version())),
                    Verdict::Collect => Stage::Collect,
                    Verdict::Skip(Skip::Counted) => Stage::Discard(AnswerKind::Values),
                    Verdict::Skip(Skip::Stale) => Stage::Discard(AnswerKind::Stale),
                    Verdict::Skip(Skip::Over) => Stage::Discard(AnswerKind::Over),
                    Verdict::Fenced => Stage::Discard(AnswerKind::Fenced),
                    Verdict::Refused(_) => Stage::Discard(AnswerKind::Refused),
                };
            }
            Stage::Apply(version) => {
                if frames.pop_front().is_none() {
                    return Progress::Blocked;
                }
                if let Some(side) = self.gate.claim(&request, serving.pieces) {
                    let pushed = asked.pushed();
                    self.blocks[serving.pieces].change(side, Clone::clone, |block| block.push(pushed));
                    self.effects.push(ShardEffect::Applied(asked, serving.pieces + 1 == self.blocks.len()));
                }
                serving.pieces += 1;
                if serving.pieces == self.blocks.len() {
                    self.gate.applied(&request, serving.pieces);
                    *changed = true;
                    if version.is_some() {
                        self.answer(connection, asked, AnswerKind::Values, version);
                        return Progress::Done;
                    }
                    serving.stage = Stage::Turn(AnswerKind::Values);
                }
            }
            Stage::Collect => {
                if frames.pop_front().is_none() {
                    return Progress::Blocked;
                }
                serving.pieces += 1;
                if serving.pieces == self.blocks.len() {
                    serving.stage = Stage::Contribute;
                }
            }
            Stage::Contribute => {
                if !self.is_free(now) {
                    return Progress::Blocked;
                }
                serving.stage = match self.gate.arrived(&request) {
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
                    Contribution::Fenced => {
                        self.answer(connection, asked, AnswerKind::Fenced, None);
                        return Progress::Done;
                    }
                };
            }
            Stage::Discard(kind) => {
                if frames.pop_front().is_none() {
                    return Progress::Blocked;
                }
                serving.pieces += 1;
                if serving.pieces == self.blocks.len() {
                    if matches!(kind, AnswerKind::Fenced | AnswerKind::Refused) {
                        self.answer(connection, asked, kind, None);
                        return Progress::Done;
                    }
                    serving.stage = Stage::Turn(kind);
                }
            }
            Stage::Turn(kind) => match self.gate.turn(&request, serving.may_skip) {
                Turn::Answer => {
                    self.answer(connection, asked, kind, None);
                    return Progress::Done;
                }
                Turn::Closed => {
                    self.effects.push(ShardEffect::Close(connection));
                    return Progress::Blocked;
                }
                Turn::Fenced => {
                    self.answer(connection, asked, AnswerKind::Fenced, None);
                    return Progress::Done;
                }
                Turn::SkipRound => {
                    if !self.is_free(now) {
                        return Progress::Blocked;
                    }
                    serving.may_skip = false;
                    if self.gate.skip_to(&request) {
                        self.begin_round();
                    }
                    *changed = true;
                }
                Turn::Wait(_) => return Progress::Blocked,
            },
        }
        Progress::Moved
    }

    fn answer(&mut self, connection: usize, asked: Asked, kind: AnswerKind, version: Option<u64>) {
        let answer = Answer {
            kind,
            over: self.gate.is_over(),
            rounds: self.gate.has_rounds(),
            version: version.unwrap_or(self.gate.version()),
        };
        self.effects.push(ShardEffect::Answer(connection, asked, answer));
    }
}
