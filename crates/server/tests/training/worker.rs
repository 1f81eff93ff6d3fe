//! A worker's process as servers and coordinator see it: a session and a client, but no model.

use std::sync::Arc;

use tokio::runtime::Runtime;
use windlass_core::cluster::{Job, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::plan::ShardPlan;
use windlass_core::run::RunSpec;
use windlass_wire::PROTOCOL;
use windlass_wire::client::{ClientConfig, ClientError, Interrupt, ParameterClient, Pulled, Push, Route};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{
    AllFinished, Concluded, Endpoint, Hello, Initialised, Over, WorkerReport, task_message,
};
use windlass_wire::control::session::{Coordinator, Progress, Session};

use crate::cluster::{LIMIT, Site, Via, new_runtime};
use crate::numbers::constant;
use crate::proxy::Proxy;

/// A worker's process: its own runtime, session and client.
pub struct Worker {
    pub id: WorkerId,
    pub incarnation: Incarnation,
    site: Arc<Site>,
    run: RunSpec,
    session: Session,
    client: Option<ParameterClient>,
    interrupt: Arc<Interrupt>,
    /// Other addresses for the tensor streams, if any.
    detours: Vec<String>,
    steps: u64,
    runtime: Runtime,
}

impl Worker {
    /// Says hello and waits to be admitted.
    pub fn join(site: Arc<Site>, index: u32, run: RunSpec, coordinator: Coordinator) -> Result<Self, Over> {
        let runtime = new_runtime();
        let hello = Hello {
            protocol: PROTOCOL,
            job: Job::Worker.to_string(),
            index,
            run: serde_json::to_string(&run).unwrap(),
            ..Hello::default()
        };
        let patience = site.options.peer_timeout;
        let session = runtime.block_on(async { Session::open(coordinator, hello, Progress::default(), patience) });
        let mut worker = Self {
            id: WorkerId(index),
            incarnation: Incarnation(0),
            site,
            run,
            session,
            client: None,
            interrupt: Arc::default(),
            detours: Vec::new(),
            steps: 0,
            runtime,
        };
        match worker.receive() {
            Kind::Welcome(welcome) => {
                worker.incarnation = Incarnation(welcome.incarnation);
                Ok(worker)
            }
            Kind::Over(over) => Err(over),
            other => panic!("{other:?} instead of a welcome"),
        }
    }

    /// The next message of the coordinator.
    pub fn receive(&mut self) -> Kind {
        let session = &mut self.session;
        let received = self.runtime.block_on(async { tokio::time::timeout(LIMIT, session.receive()).await });
        received.expect("a message of the coordinator in time").expect("the session is open")
    }

    /// Skips messages until `wanted` accepts one, and returns what it makes of that.
    pub fn receive_until<T>(&mut self, wanted: impl Fn(Kind) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.receive()) {
                return found;
            }
        }
    }

    pub fn send(&self, kind: task_message::Kind) {
        self.session.sender().send_blocking(kind);
    }

    /// Makes this worker's tensor streams go through proxies, one per server.
    pub fn go_through(&mut self, proxies: &[Proxy]) {
        self.detours = proxies.iter().map(|proxy| proxy.address().to_owned()).collect();
    }

    /// Waits for the start, initialising the parameters if asked to, and connects to the servers.
    pub fn start_training(&mut self) {
        loop {
            match self.receive() {
                Kind::Initialise(initialise) => {
                    self.initialise(&initialise.servers);
                    self.send(task_message::Kind::Initialised(Initialised { incarnation: self.incarnation.0 }));
                }
                Kind::Start(start) => {
                    self.client = Some(self.connect(&start.servers));
                    return;
                }
                Kind::Over(over) => panic!("over before the start: {over:?}"),
                _ => {}
            }
        }
    }

    fn initialise(&self, servers: &[Endpoint]) {
        let options = &self.site.options;
        let values = options.first_values.clone().unwrap_or_else(|| constant(&self.run, 0.0));
        self.connect(servers).initialise(values, options.first_rows.clone()).unwrap();
    }

    fn connect(&self, servers: &[Endpoint]) -> ParameterClient {
        let site = &self.site;
        let route = |(index, endpoint): (usize, &Endpoint)| match site.options.via {
            Via::Process => Route::Local(site.shard(index)),
            Via::Colocated if index as u32 == self.id.0 => Route::Local(site.shard(index)),
            Via::Unix => Route::Remote(endpoint.clone()),
            Via::Tcp | Via::Colocated => {
                let cut = site.streams.get(index).map(|proxy| proxy.address().to_owned());
                let bad = site.links.get(index).map(|link| link.address().to_owned());
                let address = self.detours.get(index).cloned().or(cut).or(bad).unwrap_or(endpoint.address.clone());
                Route::Remote(Endpoint { address, local_name: String::new() })
            }
        };
        let config = ClientConfig {
            table: self.run.parameters.clone(),
            plan: ShardPlan::new(&self.run.parameters, servers.len(), self.run.sharding),
            routes: servers.iter().enumerate().map(route).collect(),
            worker: self.id,
            incarnation: self.incarnation,
            learning_rate: self.run.learning_rate,
            peer_timeout: site.options.peer_timeout,
            interrupt: self.interrupt.clone(),
            progress: Progress::default(),
        };
        ParameterClient::connect(config).unwrap()
    }

    pub fn client(&mut self) -> &mut ParameterClient {
        self.client.as_mut().expect("training has started")
    }

    /// The client, for another thread.
    pub fn take_client(&mut self) -> ParameterClient {
        self.client.take().expect("training has started")
    }

    /// How often this worker has pushed.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Ends this worker's waits for servers, as its session's listener would on hearing that the run is over.
    pub fn interrupt(&self) -> Arc<Interrupt> {
        self.interrupt.clone()
    }

    pub fn pull(&mut self) -> Pulled {
        self.client().pull(Vec::new()).unwrap()
    }

    /// Pushes a gradient of the dense parameters and waits for the new values.
    pub fn push(&mut self, dense: Vec<Vec<f32>>) -> Pulled {
        self.try_push(Push { dense, ..Push::default() }).unwrap()
    }

    pub fn try_push(&mut self, push: Push) -> Result<Pulled, ClientError> {
        self.steps += 1;
        self.client().push(push)?;
        self.client().wait()
    }

    /// Waits until the servers have handled all late requests of this worker.
    pub fn settle(&self) {
        self.site.links.iter().for_each(|link| link.settle(self.id));
    }

    /// Reports that this worker has finished.
    pub fn say_finished(&self) {
        let incarnation = self.incarnation.0;
        let report = WorkerReport { incarnation, worker: self.id.0, steps: self.steps, ..WorkerReport::default() };
        self.send(task_message::Kind::Finished(report));
    }

    /// Stays to the end: finishes, waits for the others, pulls the final values if it is the chief, and waits for the
    /// end.
    pub fn finish<T>(mut self, result: T) -> Ended<T> {
        self.say_finished();
        let (mut all_finished, mut last) = (None, None);
        loop {
            match self.receive() {
                Kind::AllFinished(finished) => {
                    if finished.chief == self.id.0 {
                        let wanted = self.site.options.last_rows.clone();
                        last = Some(self.client().pull(wanted).unwrap());
                        self.send(task_message::Kind::Concluded(Concluded { incarnation: self.incarnation.0 }));
                    }
                    all_finished = Some(finished);
                }
                Kind::Over(over) => return Ended { result, all_finished, last, over },
                _ => {}
            }
        }
    }

    /// Dies like a killed process: its session breaks without a message. Returns the client, for tests of what an old
    /// process is told.
    pub fn vanish(self) -> Option<ParameterClient> {
        let Self { runtime, session, client, .. } = self;
        runtime.shutdown_background();
        drop(session);
        client
    }
}

/// The results of a worker.
pub struct Ended<T> {
    pub result: T,
    pub all_finished: Option<AllFinished>,
    /// The values after all training has ended, if this was the chief.
    pub last: Option<Pulled>,
    pub over: Over,
}
