//! A worker's hold on the parameters: push, wait, pull, over all servers at once.
//!
//! `push` sends a gradient and returns as soon as it has left; `wait` returns the new values. Between the two the
//! worker can prepare its next batch. A server is reached by a socket or, in the same process, by a call; a
//! connection that breaks is made again and the push repeated under its number, so that it is applied once.

mod lane;
mod local;
mod rows;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::{debug, warn};
use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::parameter::{ParameterId, ParameterTable};
use windlass_core::plan::ShardPlan;
use windlass_core::run::LearningRate;

use crate::Socket;
use crate::control::Endpoint;
use crate::exchange::wait_ready;
use crate::frame::{AnswerKind, RequestKind, preface};
use crate::link::Shard;
use lane::{Lane, gather, scatter};

/// How often a long wait is spoken of.
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// How often a long wait looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The pause between two attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Rows of one parameter with their gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct RowGradient {
    /// The parameter.
    pub parameter: ParameterId,
    /// The row numbers.
    pub rows: Vec<u32>,
    /// Their gradients, one after the other.
    pub values: Vec<f32>,
}

/// Rows of one parameter that are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct RowRequest {
    /// The parameter.
    pub parameter: ParameterId,
    /// The row numbers.
    pub rows: Vec<u32>,
}

/// One step's gradients, and the rows wanted for the next.
#[derive(Debug, Default)]
pub struct Push {
    /// One buffer a parameter, in the order of the table; empty for parameters accessed by rows.
    pub dense: Vec<Vec<f32>>,
    /// Gradients of rows.
    pub rows: Vec<RowGradient>,
    /// Rows whose values are wanted in the answer.
    pub wanted: Vec<RowRequest>,
}

/// Values, as the servers gave them.
#[derive(Debug)]
pub struct Pulled {
    /// One buffer a parameter, in the order of the table; empty for parameters accessed by rows.
    pub dense: Vec<Vec<f32>>,
    /// The wanted rows' values, in the order they were asked for.
    pub rows: Vec<Vec<f32>>,
    /// The global step: how many updates the first server's values have had.
    pub step: u64,
    /// True once the run's last step has been applied.
    pub over: bool,
    /// True if the push was counted, false if it was dropped as stale or late.
    pub applied: bool,
}

/// Why the parameters could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The worker was declared dead; it may join again.
    #[error("this process was declared dead by {0}")]
    Fenced(ServerId),
    /// A server refused a request.
    #[error("{server} refused: {reason}")]
    Refused {
        /// Which one.
        server: ServerId,
        /// What it said.
        reason: String,
    },
    /// A server did not come back in time.
    #[error("gave up on {server} at {address} after {seconds:.0} s: {source}")]
    GaveUp {
        /// Which one.
        server: ServerId,
        /// Where it was.
        address: String,
        /// How long it was tried.
        seconds: f64,
        /// The last error.
        source: io::Error,
    },
    /// The run ended elsewhere.
    #[error("the run has ended")]
    Interrupted,
}

/// Set by whoever learns that the run is over, to end a wait.
#[derive(Debug, Default)]
pub struct Interrupt(AtomicBool);

impl Interrupt {
    /// Ends the waits of every client that holds this.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True once it has been set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a server is reached.
pub enum Route {
    /// Within this process.
    Local(Arc<dyn Shard>),
    /// By a socket.
    Remote(Endpoint),
}

impl std::fmt::Debug for Route {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Route::Local(_) => formatter.write_str("Local"),
            Route::Remote(endpoint) => write!(formatter, "Remote({})", endpoint.address),
        }
    }
}

/// What a client has to know.
#[derive(Debug)]
pub struct ClientConfig {
    /// The parameters.
    pub table: ParameterTable,
    /// Where they are.
    pub plan: ShardPlan,
    /// How each server is reached, in their order.
    pub routes: Vec<Route>,
    /// Who asks.
    pub worker: WorkerId,
    /// Which process of that worker asks.
    pub incarnation: Incarnation,
    /// The learning rate at the start.
    pub learning_rate: f32,
    /// How long a server may be away.
    pub peer_timeout: Duration,
    /// Ends waits early.
    pub interrupt: Arc<Interrupt>,
}

enum Link {
    Local(Arc<dyn Shard>),
    Remote { endpoint: Endpoint, socket: Option<Socket> },
}

struct Server {
    id: ServerId,
    link: Link,
    /// The version of the values it gave last.
    base: u64,
}

/// A worker's hold on the parameters.
pub struct ParameterClient {
    table: ParameterTable,
    plan: ShardPlan,
    servers: Vec<Server>,
    worker: WorkerId,
    incarnation: Incarnation,
    sequence: u64,
    learning_rate: LearningRate,
    peer_timeout: Duration,
    interrupt: Arc<Interrupt>,
    /// Buffers of the last push, in which the next answer arrives.
    spare: Option<Vec<Vec<f32>>>,
    pending: Option<Pending>,
    traffic: Traffic,
}

struct Pending {
    push: Push,
    arriving: Vec<Vec<f32>>,
    lanes: Vec<Lane>,
}

/// Bytes of payload that a client has moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the servers.
    pub sent: u64,
    /// From the servers.
    pub received: u64,
}

impl ParameterClient {
    /// Connects to every server that holds part of the parameters.
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let servers = config.routes.into_iter().enumerate().map(|(index, route)| Server {
            id: ServerId(index as u32),
            base: 0,
            link: match route {
                Route::Local(shard) => Link::Local(shard),
                Route::Remote(endpoint) => Link::Remote { endpoint, socket: None },
            },
        });
        let mut client = Self {
            servers: servers.collect(),
            table: config.table,
            plan: config.plan,
            worker: config.worker,
            incarnation: config.incarnation,
            sequence: 0,
            learning_rate: LearningRate::initial(config.learning_rate),
            peer_timeout: config.peer_timeout,
            interrupt: config.interrupt,
            spare: None,
            pending: None,
            traffic: Traffic::default(),
        };
        for index in client.active_servers() {
            client.reconnect(index, io::ErrorKind::NotConnected.into())?;
        }
        Ok(client)
    }

    /// Sets the values on every server. For the chief, before training.
    pub fn initialise(&mut self, dense: Vec<Vec<f32>>, rows: Vec<RowGradient>) -> Result<(), ClientError> {
        self.send(RequestKind::Initialise, Push { dense, rows, wanted: Vec::new() })?;
        self.wait().map(drop)
    }

    /// Reads the values.
    pub fn pull(&mut self, wanted: Vec<RowRequest>) -> Result<Pulled, ClientError> {
        self.send(RequestKind::Pull, Push { wanted, ..Push::default() })?;
        self.wait()
    }

    /// Sends gradients. Returns when they have left; [`ParameterClient::wait`] gives the new values.
    pub fn push(&mut self, push: Push) -> Result<(), ClientError> {
        self.sequence += 1;
        self.send(RequestKind::Push, push)
    }

    /// Announces a learning rate that this worker has decided on. It travels with the next push.
    pub fn set_learning_rate(&mut self, rate: LearningRate) {
        self.learning_rate.adopt(rate);
    }

    /// The newest learning rate that this worker knows of.
    pub fn learning_rate(&self) -> LearningRate {
        self.learning_rate
    }

    /// What has been moved so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// How each server is reached, for the log.
    pub fn transports(&self) -> Vec<&'static str> {
        let kind = |server: &Server| match &server.link {
            Link::Local(_) => "in-process",
            Link::Remote { socket, .. } => socket.as_ref().map_or("unused", Socket::kind),
        };
        self.servers.iter().map(kind).collect()
    }

    /// The values that answer the last push or pull.
    pub fn wait(&mut self) -> Result<Pulled, ClientError> {
        self.serve_locally()?;
        self.pump(|lane| lane.is_answered())?;
        let pending = self.pending.take().expect("wait follows push or pull");
        let mut pulled = Pulled {
            rows: rows::empty_answers(&self.table, &pending.push.wanted),
            dense: Vec::new(),
            step: 0,
            over: false,
            applied: true,
        };
        for (index, lane) in self.active_servers().into_iter().zip(&pending.lanes).rev() {
            let Some(answer) = lane.answer() else { continue };
            self.servers[index].base = answer.version;
            self.learning_rate.adopt(answer.learning_rate);
            self.traffic.sent += lane.sent_bytes();
            self.traffic.received += (answer.dense + answer.rows) * 4;
            pulled.step = answer.version;
            pulled.over |= answer.over;
            pulled.applied &= answer.kind == AnswerKind::Values;
            lane.deliver_rows(&mut pulled.rows);
        }
        pulled.dense = pending.arriving;
        if pending.push.dense.len() == self.table.len() {
            self.spare = Some(pending.push.dense);
        }
        Ok(pulled)
    }

    /// The servers that hold anything.
    fn active_servers(&self) -> Vec<usize> {
        let holds = |index: &usize| {
            let server = &self.plan.servers[*index];
            *index == 0 || server.dense_elements() > 0 || !server.stripes.is_empty()
        };
        (0..self.servers.len()).filter(holds).collect()
    }

    fn send(&mut self, kind: RequestKind, push: Push) -> Result<(), ClientError> {
        assert!(self.pending.is_none(), "one request at a time");
        let active = self.active_servers();
        let lanes = active.iter().map(|index| Lane::new(self, *index, kind, &push)).collect();
        let arriving = match kind {
            RequestKind::Initialise => vec![Vec::new(); self.table.len()],
            _ => self.spare.take().unwrap_or_else(|| self.empty_buffers()),
        };
        self.pending = Some(Pending { push, arriving, lanes });
        self.pump(|lane| lane.is_sent())
    }

    fn empty_buffers(&self) -> Vec<Vec<f32>> {
        self.table.iter().map(|(_, spec)| vec![0.0; lane::dense_elements(spec)]).collect()
    }

    /// Moves bytes until every remote lane has come as far as asked.
    fn pump(&mut self, far_enough: impl Fn(&Lane) -> bool) -> Result<(), ClientError> {
        let started = Instant::now();
        let mut spoken = started;
        loop {
            let Some(failure) = self.pump_once(&far_enough, started, &mut spoken)? else { return Ok(()) };
            self.reconnect(failure.0, failure.1)?;
        }
    }

    /// As [`Self::pump`], until done (`None`) or until a server's connection breaks.
    fn pump_once(
        &mut self,
        far_enough: &impl Fn(&Lane) -> bool,
        started: Instant,
        spoken: &mut Instant,
    ) -> Result<Option<(usize, io::Error)>, ClientError> {
        let active = self.active_servers();
        let Some(Pending { push, arriving, lanes }) = &mut self.pending else { return Ok(None) };
        let gradients = gather(&self.plan, &push.dense);
        let mut places = scatter(&self.plan, arriving);
        loop {
            for (lane, index) in lanes.iter_mut().zip(&active) {
                let server = &mut self.servers[*index];
                let Link::Remote { socket: Some(socket), .. } = &mut server.link else { continue };
                if far_enough(lane) {
                    continue;
                }
                match lane.advance(socket, &gradients[*index], &mut places[*index]) {
                    Ok(()) => lane.check(server.id)?,
                    Err(error) => return Ok(Some((*index, error))),
                }
            }
            let mut waiting = Vec::new();
            for (lane, index) in lanes.iter().zip(&active) {
                let Link::Remote { socket: Some(socket), .. } = &self.servers[*index].link else { continue };
                if !far_enough(lane) {
                    waiting.push((socket, !lane.is_sent()));
                }
            }
            if waiting.is_empty() {
                return Ok(None);
            }
            wait_ready(&waiting, LOOK_EVERY).map_err(|source| ClientError::GaveUp {
                server: ServerId(0),
                address: "poll".to_owned(),
                seconds: 0.0,
                source,
            })?;
            if self.interrupt.is_set() {
                return Err(ClientError::Interrupted);
            }
            if spoken.elapsed() >= REPORT_EVERY {
                *spoken = Instant::now();
                for (lane, index) in lanes.iter().zip(&active).filter(|(lane, _)| !far_enough(lane)) {
                    let server = self.servers[*index].id;
                    let seconds = started.elapsed().as_secs();
                    match lane.waiting_text() {
                        Some(text) => warn!("waiting for {text} ({server} says, {seconds} s)"),
                        None => warn!("waiting for {server} to answer ({seconds} s)"),
                    }
                    if started.elapsed() > self.peer_timeout && lane.is_silent(self.peer_timeout) {
                        let error = io::Error::new(io::ErrorKind::TimedOut, "no answer");
                        return Ok(Some((*index, error)));
                    }
                }
            }
        }
    }

    /// Serves the lanes of servers in this process, where the call itself is the wait.
    fn serve_locally(&mut self) -> Result<(), ClientError> {
        let active = self.active_servers();
        let Some(Pending { push, arriving, lanes }) = &mut self.pending else { return Ok(()) };
        if !self.servers.iter().any(|server| matches!(server.link, Link::Local(_))) {
            return Ok(());
        }
        let gradients = gather(&self.plan, &push.dense);
        let mut places = scatter(&self.plan, arriving);
        for (lane, index) in lanes.iter_mut().zip(&active) {
            let server = &self.servers[*index];
            if let Link::Local(shard) = &server.link {
                lane.serve(shard.as_ref(), &gradients[*index], &mut places[*index]);
                lane.check(server.id)?;
            }
        }
        Ok(())
    }

    /// Makes a broken connection again, and the request on it from its start.
    fn reconnect(&mut self, index: usize, mut error: io::Error) -> Result<(), ClientError> {
        let server = &mut self.servers[index];
        let Link::Remote { endpoint, socket } = &mut server.link else { return Ok(()) };
        let broke = socket.take().is_some();
        let started = Instant::now();
        let mut spoken = started;
        if broke {
            warn!("lost the connection to {} at {}: {error}", server.id, endpoint.address);
        }
        loop {
            match connect(endpoint) {
                Ok(connected) => {
                    debug!(server = %server.id, transport = connected.kind(), "connected");
                    *socket = Some(connected);
                    break;
                }
                Err(again) => error = again,
            }
            if self.interrupt.is_set() {
                return Err(ClientError::Interrupted);
            }
            if started.elapsed() > self.peer_timeout {
                let seconds = started.elapsed().as_secs_f64();
                return Err(ClientError::GaveUp {
                    server: server.id,
                    address: endpoint.address.clone(),
                    seconds,
                    source: error,
                });
            }
            if spoken.elapsed() >= REPORT_EVERY {
                spoken = Instant::now();
                warn!("waiting for {} at {} ({} s)", server.id, endpoint.address, started.elapsed().as_secs());
            }
            std::thread::sleep(RECONNECT_PAUSE);
        }
        let position = self.active_servers().iter().position(|active| *active == index);
        if let (Some(pending), Some(position)) = (&mut self.pending, position) {
            pending.lanes[position].restart();
        }
        Ok(())
    }
}

fn connect(endpoint: &Endpoint) -> io::Result<Socket> {
    use std::io::Write;
    let mut socket = crate::endpoint::connect(endpoint)?;
    socket.write_all(&preface())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
