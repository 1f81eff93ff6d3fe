//! A network that loses, cuts, repeats and delays messages between a worker and a server, as determined by a seed.
//!
//! A [`Link`] stands in front of one server's port. It receives every request completely, so that it knows what it
//! breaks and where, and it remembers what the worker was told about each push. Nothing here waits for time to pass:
//! what is late waits for another event.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use windlass_core::cluster::WorkerId;
use windlass_core::ledger::Incarnation;
use windlass_core::parameter::ParameterTable;
use windlass_wire::stream::frame::{Answer, AnswerKind, PREFACE_BYTES, Request, RequestKind};

use crate::attempt::Attempt;
use crate::cluster::LIMIT;
use crate::faults::{Fault, Frame, Tally};
use crate::numbers::Random;
use crate::proxy::Door;

/// What a worker was told about a push.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    pub worker: WorkerId,
    pub sequence: u64,
    pub base: u64,
    pub kind: AnswerKind,
}

/// A push that was on its way when its process died.
#[derive(Debug, Clone, Copy)]
pub struct Orphan {
    pub worker: WorkerId,
    pub sequence: u64,
    /// True if its header arrived in time.
    pub began: bool,
    /// How many of its pieces wholly arrived in time.
    pub pieces: usize,
}

/// A bad link to one server. It ends when it is dropped.
pub struct Link {
    door: Door,
    shared: Arc<SharedLink>,
}

/// The state of a link that its connections share.
pub struct SharedLink {
    seed: u64,
    server: usize,
    to: String,
    table: ParameterTable,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ended: bool,
    attempts: BTreeMap<RequestId, u64>,
    /// The progress of each worker's latest process.
    reached: BTreeMap<WorkerId, (Incarnation, Milestone)>,
    told: BTreeMap<RequestId, Told>,
    /// Whether the server has ever said that a push counts, even if the worker did not receive it.
    said: BTreeMap<RequestId, bool>,
    /// The version of the values that a worker was given last.
    version: u64,
    /// How many requests of each worker the server may still be at work on, without the worker.
    late: BTreeMap<WorkerId, usize>,
    /// Workers whose late requests arrive now.
    settling: BTreeSet<WorkerId>,
    /// The push whose process will die.
    last_of: Option<(WorkerId, u64)>,
    orphan: Option<Orphan>,
    faults: BTreeMap<Fault, u64>,
    contradictions: Vec<String>,
}

/// Identifies a request of a process; the last number is its kind. Pulls between two pushes count as one.
type RequestId = (WorkerId, Incarnation, u64, u8);

/// A push, by number (0 for the first values), and what has become of it.
type Milestone = (u64, Stage);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Sent,
    Answered,
}

impl Link {
    /// A link to the server at an address.
    pub fn start(seed: u64, server: usize, to: &str, table: &ParameterTable) -> Self {
        let (to, table) = (to.to_owned(), table.clone());
        let shared = Arc::new(SharedLink { seed, server, to, table, state: Mutex::default(), changed: Condvar::new() });
        let serving = shared.clone();
        let door = Door::open(move |client| {
            let shared = serving.clone();
            // Connections break here on purpose, and the workers notice.
            std::thread::spawn(move || drop(shared.carry(client)));
        });
        Self { door, shared }
    }

    pub fn address(&self) -> &str {
        self.door.address()
    }

    /// Delivers all late requests of a worker, and waits until the server has handled them.
    pub fn settle(&self, worker: WorkerId) {
        self.shared.lock().settling.insert(worker);
        self.shared.changed.notify_all();
        self.shared.wait_until("what is late is served", |state| state.late.get(&worker).is_none_or(|late| *late == 0));
        self.shared.lock().settling.remove(&worker);
    }

    /// Keeps that push of a worker's first process, or all of it but a beginning, until a successor has pushed.
    pub fn orphan(&self, worker: WorkerId, sequence: u64) {
        self.shared.lock().last_of = Some((worker, sequence));
    }

    /// Waits until that push is on its way.
    pub fn wait_for_orphan(&self) {
        self.shared.wait_until("the last push of a process", |state| state.orphan.is_some());
    }

    pub fn orphaned(&self) -> Option<Orphan> {
        self.shared.lock().orphan
    }

    /// Returns what the workers were told about their pushes.
    pub fn told(&self) -> Vec<Told> {
        self.shared.lock().told.values().copied().collect()
    }

    /// The version of the values that a worker was given last.
    pub fn version(&self) -> u64 {
        self.shared.lock().version
    }

    /// Returns the pushes on which the server contradicted itself.
    pub fn contradictions(&self) -> Vec<String> {
        self.shared.lock().contradictions.clone()
    }

    pub fn tally(&self) -> Tally {
        let state = self.shared.lock();
        let is_push = |kind: u8| kind == RequestKind::Push as u8;
        let pushes = || state.attempts.iter().filter(|((.., kind), _)| is_push(*kind)).map(|(_, attempts)| *attempts);
        Tally {
            faults: state.faults.clone(),
            pushes: pushes().count() as u64,
            retried: pushes().filter(|attempts| *attempts > 1).count() as u64,
            retried_twice: pushes().filter(|attempts| *attempts > 2).count() as u64,
            dropped: state.told.values().filter(|told| told.kind != AnswerKind::Values).count() as u64,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

impl SharedLink {
    /// Carries the requests of one connection, until it breaks.
    fn carry(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut preface = [0; PREFACE_BYTES];
        client.read_exact(&mut preface)?;
        let server = TcpStream::connect(&self.to)?;
        server.set_nodelay(true)?;
        server.set_read_timeout(Some(LIMIT))?;
        (&server).write_all(&preface)?;
        while let Some(frame) = Frame::read(&mut client, &self.table)? {
            let (fault, mut random) = self.begin(&frame.request);
            let attempt = Attempt { link: self, frame: &frame, client: &client, server: &server };
            match fault {
                None => attempt.deliver()?,
                Some(fault) => return attempt.meet(fault, &mut random),
            }
        }
        Ok(())
    }

    /// Counts an attempt at a request, and draws its fate.
    fn begin(&self, request: &Request) -> (Option<Fault>, Random) {
        let mut state = self.lock();
        let worker = request.worker;
        let first =
            state.attempts.keys().filter(|(of, ..)| *of == worker).map(|(_, incarnation, ..)| *incarnation).min();
        // Incarnations are numbered in the order in which processes join, which is not the seed's to say.
        let succeeds = first.is_some_and(|first| first != request.incarnation);
        let attempts = state.attempts.entry(id(request)).or_default();
        let attempt = *attempts;
        *attempts += 1;
        let is_push = request.kind == RequestKind::Push;
        let is_last = is_push && !succeeds && state.last_of == Some((worker, request.sequence));
        let (server, worker) = (self.server as u64, u64::from(worker.0));
        let key = [self.seed, server, worker, u64::from(succeeds), request.sequence, request.kind as u64, attempt];
        let mut random = Random::of(&key);
        let fault = if is_last { Some(Fault::Orphaned) } else { Fault::draw(&mut random, attempt) };
        fault.into_iter().for_each(|fault| *state.faults.entry(fault).or_default() += 1);
        (fault, random)
    }

    pub fn reach(&self, request: &Request, stage: Stage) {
        if request.kind == RequestKind::Pull {
            return;
        }
        let reached = (request.incarnation, (request.sequence, stage));
        let mut state = self.lock();
        let furthest = state.reached.entry(request.worker).or_insert(reached);
        *furthest = reached.max(*furthest);
        self.changed.notify_all();
    }

    /// Waits until a late request may arrive.
    pub fn wait_for(&self, request: &Request, fault: Fault) {
        let milestone = match fault {
            Fault::LateBesideRetry => (request.sequence, Stage::Sent),
            Fault::LateAfterRetry => (request.sequence, Stage::Answered),
            _ => (request.sequence + 1, Stage::Answered),
        };
        self.wait_until("what is late arrives", |state| {
            let reached = state.reached.get(&request.worker);
            let due = reached.is_some_and(|(incarnation, reached)| match fault {
                Fault::Orphaned => *incarnation > request.incarnation && *reached >= (1, Stage::Answered),
                _ => (*incarnation, *reached) >= (request.incarnation, milestone),
            });
            due || state.settling.contains(&request.worker) || state.ended
        });
    }

    /// Notes the server's verdict on a push. The answer may be lost, but the verdict must not change.
    pub fn says(&self, request: &Request, answer: &Answer, is_told: bool) {
        let mut state = self.lock();
        if is_told {
            state.version = answer.version;
        }
        if request.kind != RequestKind::Push || !answer.kind.has_values() {
            return;
        }
        let counts = answer.kind == AnswerKind::Values;
        if *state.said.entry(id(request)).or_insert(counts) != counts {
            state.contradictions.push(format!("{request:?} is said to count and not to count"));
        }
        if is_told {
            let Request { worker, sequence, base, .. } = *request;
            state.told.insert(id(request), Told { worker, sequence, base, kind: answer.kind });
        }
    }

    /// Notes that the server may be processing a worker's request without the worker, until the result is dropped.
    pub fn late(&self, worker: WorkerId) -> Late<'_> {
        *self.lock().late.entry(worker).or_default() += 1;
        Late { link: self, worker }
    }

    /// Notes a push whose process is about to die.
    pub fn note_orphan(&self, orphan: Orphan) {
        self.lock().orphan = Some(orphan);
        self.changed.notify_all();
    }

    fn wait_until(&self, what: &str, done: impl Fn(&State) -> bool) {
        let waited = self.changed.wait_timeout_while(self.lock(), LIMIT, |state| !done(state)).unwrap();
        let timed_out = waited.1.timed_out();
        drop(waited);
        assert!(!timed_out, "in time: {what}");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// A request that the server may be processing without its worker.
pub struct Late<'a> {
    link: &'a SharedLink,
    worker: WorkerId,
}

impl Drop for Late<'_> {
    fn drop(&mut self) {
        *self.link.lock().late.entry(self.worker).or_default() -= 1;
        self.link.changed.notify_all();
    }
}

fn id(request: &Request) -> RequestId {
    (request.worker, request.incarnation, request.sequence, request.kind as u8)
}
