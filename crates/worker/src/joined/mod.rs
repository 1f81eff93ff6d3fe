//! A joined worker: it has no data, loop or model until a client tells it what to compute, and computes for one client
//! at a time. When the client leaves, it waits for the next.
//!
//! Each connection has a thread. The single `place` decides which of them computes.

mod line;
mod place;
pub mod protocol;
mod requests;
mod session;
mod stages;
mod steps;
mod usage_teller;

use std::net::TcpListener;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::parameter::ParameterTable;
use windlass_instruments::{Instruments, Site};
use windlass_wire::client::Interrupt;
use windlass_wire::lobby::{Lobby, Visit};
use windlass_wire::port::{self, Services, StreamHandler};
use windlass_wire::stream::Socket;

use crate::devices::ComputeDevice;
use crate::replica::{Replica, StageWorker};
use place::ClientPlace;
use protocol::{Assignment, Capacity};
use session::Desk;

/// The stack size of a connection's thread: that of a main thread, since a model is built on it.
const STACK: usize = 8 << 20;
/// How often to check whether the process has been told to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a wait is logged.
const SPEAK_EVERY: Duration = Duration::from_secs(60);

/// What a worker computes with.
pub enum Computing {
    /// A whole model.
    Replica(Box<dyn Replica>),
    /// Some stages of a model.
    Stages(StageWorker),
}

impl Computing {
    fn table(&self) -> &ParameterTable {
        match self {
            Self::Replica(replica) => replica.table(),
            Self::Stages(stages) => stages.table(),
        }
    }
}

/// Builds the model of an assignment, without data. An error is a refusal that is sent to the client, which retries
/// only if memory is short for a time.
pub type Builder = Arc<dyn Fn(&Assignment) -> anyhow::Result<Computing> + Send + Sync>;

/// The configuration of a joined worker.
#[derive(Clone)]
pub struct JoinConfig {
    /// What it computes on, as reported to clients.
    pub capacity: Capacity,
    /// Whether it ends with the run of its first client.
    pub once: bool,
    /// Whether a launcher has started it. The launcher learns from the client how the run has ended.
    pub is_launched: bool,
    /// The devices that it computes on.
    pub devices: Vec<ComputeDevice>,
    /// With `once`, how long it waits for a client that has disappeared.
    pub peer_timeout: Duration,
    /// Set when the process is told to stop.
    pub stop: Arc<Interrupt>,
    /// The metrics and probes of this process.
    pub instruments: Instruments,
}

/// Computes for any client until it is told to stop. Blocks; `runtime` carries its port.
pub fn serve(
    runtime: &tokio::runtime::Handle,
    listener: TcpListener,
    config: JoinConfig,
    build: Builder,
) -> std::io::Result<Outcome> {
    let _guard = runtime.enter();
    let address = listener.local_addr()?;
    let (accepting, stopped) = watch::channel(());
    let (teller, news) = mpsc::channel();
    let (stop, instruments) = (config.stop.clone(), config.instruments.clone());
    let (once, patience) = (config.once, config.peer_timeout);
    let counts = instruments.worker();
    let sites = Site::of_devices(&config.capacity.devices);
    counts.computes_on(Arc::new(move || sites.clone()));
    instruments.usage().measure(|_| {});
    let desk = Arc::new(Desk {
        config,
        build,
        place: ClientPlace::default(),
        local_name: Mutex::default(),
        news: teller,
        counts,
        usage: instruments.usage().clone(),
        refused: AtomicU64::default(),
    });
    let (serving, lobby) = (desk.clone(), Lobby::default());
    let streams: StreamHandler = Arc::new(move |socket, visit| take(serving.clone(), socket, visit));
    let local_name = port::accept_locally(&listener, streams.clone(), lobby.clone(), stopped.clone())?;
    *desk.local_name.lock().unwrap_or_else(PoisonError::into_inner) = local_name;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let services = Services { router: instruments.router(), streams, lobby };
    let mut stopped = stopped;
    runtime.spawn(port::serve(listener, services, async move { drop(stopped.changed().await) }));
    instruments.probes().started();
    instruments.probes().set_ready(true);
    info!("listening on {address}; waiting for a client");
    let outcome = wait(&news, &stop, once.then_some(patience));
    drop(accepting);
    desk.place.close();
    Ok(outcome)
}

/// Events of sessions. Every session that begins also ends.
#[derive(Debug)]
pub(crate) enum News {
    /// A client was given the place, possibly replacing another.
    Began,
    /// A client has reported how its run ended.
    Left(Outcome),
    /// A client has disappeared, was refused, or was replaced.
    Lost {
        /// How long it had been silent.
        silent: Duration,
    },
}

fn wait(news: &mpsc::Receiver<News>, stop: &Interrupt, once: Option<Duration>) -> Outcome {
    // A replaced session may end after its successor has begun.
    let mut sessions = 0_usize;
    // When the last session was lost, and how long its client had been silent by then.
    let mut lost: Option<(Instant, Duration)> = None;
    let mut spoken = Instant::now();
    loop {
        match news.recv_timeout(LOOK_EVERY) {
            Ok(News::Began) => (sessions, lost) = (sessions + 1, None),
            Ok(News::Left(outcome)) if once.is_some() => return outcome,
            Ok(News::Left(_)) => sessions -= 1,
            Ok(News::Lost { silent }) => {
                sessions -= 1;
                if sessions == 0 {
                    (lost, spoken) = (Some((Instant::now(), silent)), Instant::now());
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if stop.is_set() {
            return Outcome::told_to_stop();
        }
        let waited = lost.map_or(Duration::ZERO, |(lost, silent)| silent.saturating_add(lost.elapsed()));
        if once.is_some_and(|patience| waited > patience) {
            let reason = format!("gave up waiting for its client to come back after {} s", waited.as_secs());
            return Outcome { exit_code: exit_code::PEERS, reason };
        }
        if lost.is_some() && spoken.elapsed() >= SPEAK_EVERY {
            spoken = Instant::now();
            info!("waiting for a client ({} s)", waited.as_secs());
        }
    }
}

/// Serves a connection on its own thread.
fn take(desk: Arc<Desk>, socket: Socket, visit: Visit) {
    if let Ok(handle) = socket.try_clone() {
        visit.on_close(move || handle.shutdown());
    }
    let thread = std::thread::Builder::new().name("client".to_owned()).stack_size(STACK);
    if let Err(error) = thread.spawn(move || desk.serve(socket, &visit)) {
        warn!(%error, "cannot start a thread for a client");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the exit code of a worker that receives this news at once, and hears that its client has left after its
    /// patience has passed, or after a second.
    fn ended(news: impl IntoIterator<Item = News>, patience: Duration) -> u8 {
        let (teller, heard) = mpsc::channel();
        news.into_iter().for_each(|news| teller.send(news).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(patience.min(Duration::from_secs(1)) + 4 * LOOK_EVERY);
                let _ = teller.send(News::Left(Outcome::done()));
            });
            wait(&heard, &Interrupt::default(), Some(patience)).exit_code
        })
    }

    #[test]
    fn a_worker_of_one_run_ends_as_that_does() {
        let not_finite = Outcome { exit_code: exit_code::NUMERIC, reason: "the loss is NaN".to_owned() };
        assert_eq!(ended([News::Began, News::Left(not_finite)], Duration::MAX), exit_code::NUMERIC);
    }

    #[test]
    fn a_client_that_was_lost_is_given_up_unless_it_is_there_again() {
        use News::Began;
        const LOST: News = News::Lost { silent: Duration::ZERO };
        assert_eq!(ended([], Duration::ZERO), 0, "the first client has all the time in the world");
        assert_eq!(ended([Began], Duration::ZERO), 0);
        assert_eq!(ended([Began, LOST], Duration::ZERO), exit_code::PEERS);
        assert_eq!(ended([Began, LOST], Duration::MAX), 0);
        assert_eq!(ended([Began, LOST, Began], Duration::from_secs(1)), 0);
        assert_eq!(ended([Began, Began, LOST], Duration::ZERO), 0, "one that has taken its own place is there");
        assert_eq!(ended([Began, Began, LOST, LOST], Duration::ZERO), exit_code::PEERS);
    }

    #[test]
    fn the_silence_of_a_client_before_it_was_lost_counts() {
        let patience = Duration::from_secs(3600);
        assert_eq!(ended([News::Began, News::Lost { silent: patience }], patience), exit_code::PEERS);
    }
}
