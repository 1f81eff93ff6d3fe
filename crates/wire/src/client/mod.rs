//! A worker's access to the parameters: push, wait and pull, over all servers at once.
//!
//! `push` sends a gradient and returns once it has been sent; `wait` returns the new values. In between, the worker can
//! prepare its next batch. A server is reached through a socket or, in the same process, by a call. A broken connection
//! is replaced, and the push repeated under its number, so that it is applied exactly once.

mod buffer;
mod interrupt;
mod lane;
mod local;
mod pump;
mod request;
mod rows;
mod traffic;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::parameter::{Access, ParameterSpec, ParameterTable};
use windlass_core::plan::ShardPlan;
use windlass_core::run::LearningRate;

use crate::control::proto::Endpoint;
use crate::control::session::Progress;
use crate::link::Shard;
use crate::stream::Socket;
use crate::stream::frame::{NOTE_BYTES, RequestKind};
pub use buffer::FloatBuffer;
pub use interrupt::Interrupt;
use lane::Lane;
pub use request::{Pulled, Push, RowGradient, RowRequest};
pub use traffic::Traffic;

/// Shown as the transport of a server that takes no part in the run.
pub const UNUSED: &str = "unused";

/// Why an operation on the parameters failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The worker was declared dead; it may rejoin.
    #[error("this process was declared dead by {0}")]
    Fenced(ServerId),
    /// A server in this process has released its parameters: the run has ended, or is rolling back.
    #[error("{0} has released its parameters")]
    Gone(ServerId),
    /// A server refused a request.
    #[error("{server} refused: {reason}")]
    Refused {
        /// The server.
        server: ServerId,
        /// Its reason.
        reason: String,
    },
    /// A server could not be reached in time.
    #[error("gave up on {server} at {address} after {seconds:.0} s: {source}")]
    GaveUp {
        /// The server.
        server: ServerId,
        /// Its address.
        address: String,
        /// How long the client tried.
        seconds: f64,
        /// The last error.
        source: io::Error,
    },
    /// The run is over, or this process was told to stop.
    #[error("the run is over, or this process was told to stop")]
    Interrupted,
    /// The coordinator has readmitted this process as another incarnation.
    #[error("this process has rejoined the run")]
    Rejoined,
}

/// How a server is reached.
pub enum Route {
    /// Within this process.
    Local(Arc<dyn Shard>),
    /// Through a socket.
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

/// The configuration of a client.
#[derive(Debug)]
pub struct ClientConfig {
    /// The parameters.
    pub table: ParameterTable,
    /// The servers' shards of the parameters.
    pub plan: ShardPlan,
    /// How each server is reached, in server order.
    pub routes: Vec<Route>,
    /// The worker that this client belongs to.
    pub worker: WorkerId,
    /// The incarnation of that worker's process.
    pub incarnation: Incarnation,
    /// The learning rate at the start.
    pub learning_rate: f32,
    /// How long a server may be unreachable.
    pub peer_timeout: Duration,
    /// Ends waits early.
    pub interrupt: Arc<Interrupt>,
    /// Where the client publishes whom it waits for.
    pub progress: Progress,
}

enum Link {
    Local(Arc<dyn Shard>),
    Remote { endpoint: Endpoint, socket: Option<Socket> },
}

struct Server {
    id: ServerId,
    link: Link,
    /// The version of the values that it last gave.
    base: u64,
    /// When the log last mentioned that it cannot be reached.
    spoken: Option<Instant>,
}

/// A worker's access to the parameters, whose values it keeps in buffers of type `B`.
pub struct ParameterClient<B = Vec<f32>> {
    table: ParameterTable,
    plan: ShardPlan,
    servers: Vec<Server>,
    worker: WorkerId,
    incarnation: Incarnation,
    sequence: u64,
    learning_rate: LearningRate,
    peer_timeout: Duration,
    interrupt: Arc<Interrupt>,
    /// The session's count of welcomes when the connections were last known to be good.
    welcomes: u64,
    /// Buffers of the last push, reused for the next answer.
    spare: Option<Vec<B>>,
    pending: Option<Pending<B>>,
    traffic: Traffic,
    progress: Progress,
    /// True while this worker's heartbeats name the tasks it waits for.
    tells_of_wait: bool,
}

struct Pending<B> {
    push: Push<B>,
    arriving: Vec<B>,
    lanes: Vec<Lane>,
}

impl<B: FloatBuffer> ParameterClient<B> {
    /// Connects to every server that holds part of the parameters.
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let servers = config.routes.into_iter().enumerate().map(|(index, route)| Server {
            id: ServerId(index as u32),
            base: 0,
            spoken: None,
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
            welcomes: config.interrupt.welcomes(),
            interrupt: config.interrupt,
            spare: None,
            pending: None,
            traffic: Traffic::default(),
            progress: config.progress,
            tells_of_wait: false,
        };
        for index in client.active_servers() {
            client.reconnect(index, io::ErrorKind::NotConnected.into())?;
        }
        Ok(client)
    }

    /// Sets the initial values on every server. Called by the chief, before training.
    pub fn initialise(&mut self, dense: Vec<B>, rows: Vec<RowGradient<B>>) -> Result<(), ClientError> {
        self.send(RequestKind::Initialise, Push { dense, rows, ..Push::default() })?;
        self.wait().map(drop)
    }

    /// Reads the values.
    pub fn pull(&mut self, wanted: Vec<RowRequest>) -> Result<Pulled<B>, ClientError> {
        self.send(RequestKind::Pull, Push { wanted, ..Push::default() })?;
        self.wait()
    }

    /// Sends gradients. Returns once they have been sent; [`ParameterClient::wait`] returns the new values.
    pub fn push(&mut self, push: Push<B>) -> Result<(), ClientError> {
        self.sequence += 1;
        self.send(RequestKind::Push, push)
    }

    /// Sets a learning rate that this worker has decided on. It travels with the next push.
    pub fn set_learning_rate(&mut self, rate: LearningRate) {
        self.learning_rate.adopt(rate);
    }

    /// Fails if the worker should stop waiting, no matter for what: it was told to stop, the run is over, or it has
    /// been readmitted as another incarnation.
    pub fn may_wait(&self) -> Result<(), ClientError> {
        self.interrupt.check(self.incarnation)
    }

    /// The newest learning rate that this worker has seen.
    pub fn learning_rate(&self) -> LearningRate {
        self.learning_rate
    }

    /// The payload moved so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The payload moved by a lane to a server.
    fn traffic_of(&self, server: usize, lane: &Lane) -> Traffic {
        let Traffic { sent, received, .. } = lane.traffic();
        let is_local = matches!(self.servers[server].link, Link::Local(_));
        Traffic { sent, received, in_process: if is_local { sent + received } else { 0 } }
    }

    /// How each server is reached, for the log.
    pub fn transports(&self) -> Vec<&'static str> {
        let kind = |server: &Server| match &server.link {
            _ if !self.plan.is_active(server.id) => UNUSED,
            Link::Local(_) => "in-process",
            Link::Remote { socket, .. } => socket.as_ref().map_or("unconnected", Socket::kind),
        };
        self.servers.iter().map(kind).collect()
    }

    /// Waits for the values that answer the last push or pull. In synchronous training, all servers' values are of the
    /// same round.
    pub fn wait(&mut self) -> Result<Pulled<B>, ClientError> {
        self.complete()?;
        self.align()?;
        let pending = self.pending.take().expect("wait follows push or pull");
        let mut pulled = Pulled {
            rows: rows::empty_answers(&self.table, &pending.push.wanted),
            dense: Vec::new(),
            step: 0,
            over: true,
            applied: true,
            held_back: Duration::ZERO,
        };
        for (index, lane) in self.active_servers().into_iter().zip(&pending.lanes).rev() {
            let Some(answer) = lane.answer() else { continue };
            self.servers[index].base = answer.version;
            self.learning_rate.adopt(answer.learning_rate);
            self.traffic += self.traffic_of(index, lane);
            pulled.step = answer.version;
            pulled.over &= answer.over;
            pulled.held_back = pulled.held_back.max(Duration::from_micros(answer.held_back.into()));
            pulled.applied = !lane.is_dropped();
            lane.deliver_rows(&mut pulled.rows);
        }
        pulled.dense = pending.arriving;
        if pending.push.dense.len() == self.table.len() {
            self.spare = Some(pending.push.dense);
        }
        Ok(pulled)
    }

    /// Drives every lane until it is answered.
    fn complete(&mut self) -> Result<(), ClientError> {
        while !self.serve_locally()? {
            // Other workers may be waiting for a push that was lost on its way to another server.
            if let Some((index, error)) = self.advance(&Lane::is_answered)? {
                self.retry(index, error)?;
            }
            self.pump(Lane::is_sent)?;
        }
        self.pump(Lane::is_answered)
    }

    /// Asks servers again whose values are from an earlier round than others'. A gradient counts only if it was
    /// computed from the current round: a worker that stayed a round behind on one server would never count there, and
    /// two workers behind on different servers could wait for each other forever.
    fn align(&mut self) -> Result<(), ClientError> {
        while let Some(newest) = self.newest_round() {
            let active = self.active_servers();
            let Some(mut pending) = self.pending.take() else { return Ok(()) };
            let behind = |lane: &Lane| lane.answer().is_some_and(|answer| answer.version < newest);
            for (lane, index) in pending.lanes.iter_mut().zip(&active).filter(|(lane, _)| behind(lane)) {
                self.traffic += self.traffic_of(*index, lane);
                *lane = lane.again(self, *index, newest, &pending.push);
            }
            self.pending = Some(pending);
            self.complete()?;
            // A server stays behind if no worker is left to advance it.
            if self.pending.iter().flat_map(|pending| &pending.lanes).any(behind) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The latest round among the servers' values, or `None` if all are of the same round.
    fn newest_round(&self) -> Option<u64> {
        let lanes = self.pending.iter().flat_map(|pending| &pending.lanes);
        let versions = lanes.filter_map(Lane::answer).filter(|answer| answer.rounds).map(|answer| answer.version);
        let (oldest, newest) =
            versions.fold((u64::MAX, 0), |(low, high), version| (low.min(version), high.max(version)));
        (oldest < newest).then_some(newest)
    }

    /// The servers that take part in the run.
    fn active_servers(&self) -> Vec<usize> {
        (0..self.servers.len()).filter(|index| self.plan.is_active(ServerId(*index as u32))).collect()
    }

    fn send(&mut self, kind: RequestKind, push: Push<B>) -> Result<(), ClientError> {
        assert!(self.pending.is_none(), "one request at a time");
        // Checked before anything is sent, since servers in this process may never make the client wait.
        self.interrupt.check(self.incarnation)?;
        self.check(kind, &push);
        let active = self.active_servers();
        let lanes = active.iter().map(|index| Lane::new(self, *index, kind, &push)).collect();
        let arriving = match kind {
            RequestKind::Initialise => self.table.iter().map(|_| B::default()).collect(),
            _ => self.spare.take().unwrap_or_else(|| self.empty_buffers()),
        };
        self.pending = Some(Pending { push, arriving, lanes });
        self.pump(|lane| lane.is_sent())
    }

    fn empty_buffers(&self) -> Vec<B> {
        self.table.iter().map(|(_, spec)| B::zeros(lane::dense_elements(spec))).collect()
    }

    /// Asserts that a push fits the table; otherwise the server would misread it.
    fn check(&self, kind: RequestKind, push: &Push<B>) {
        if kind != RequestKind::Pull && (!push.dense.is_empty() || self.table.iter().any(|(_, spec)| is_dense(spec))) {
            let expected: Vec<usize> = self.table.iter().map(|(_, spec)| lane::dense_elements(spec)).collect();
            let got: Vec<usize> = push.dense.iter().map(|buffer| buffer.floats().len()).collect();
            assert_eq!(got, expected, "one buffer a parameter, as long as it is");
        }
        assert!(push.note.len() <= NOTE_BYTES, "a note of {} bytes", push.note.len());
        let rows = push.rows.iter().map(|rows| (rows.parameter, &rows.rows));
        for (parameter, rows) in rows.chain(push.wanted.iter().map(|rows| (rows.parameter, &rows.rows))) {
            let spec = &self.table[parameter];
            let row = rows.iter().max().copied().unwrap_or(0);
            assert!(!is_dense(spec) && (row as usize) < spec.rows(), "row {row} of {spec:?}");
        }
    }
}

fn is_dense(spec: &ParameterSpec) -> bool {
    spec.access == Access::Dense
}
