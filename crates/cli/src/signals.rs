//! The signals that tell a process to stop: Ctrl-C, SIGTERM, SIGHUP, for instance when its terminal is closed, and
//! SIGUSR1, by which Slurm announces that a job's time is up. The first signal stops it in an orderly way, the second
//! at once.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::warn;
use windlass_wire::client::Interrupt;

use crate::failure::Failure;
use crate::terminal::Terminal;

/// A second signal within this time is a repetition of the first: `timeout`, for example, sends it to its child and to
/// the whole process group.
const ECHO: Duration = Duration::from_millis(200);
/// How often a waiting task checks whether it was told to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a process that is stopped at once tries to print a last message.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A signal that tells a process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Interrupt,
    Terminate,
    HangUp,
    User,
}

impl StopSignal {
    const ALL: [Self; 4] = [Self::Interrupt, Self::Terminate, Self::HangUp, Self::User];

    /// The exit code of a process that this signal has stopped, by the convention of shells.
    pub(crate) fn exit_code(self) -> u8 {
        128 + match self {
            StopSignal::HangUp => 1,
            StopSignal::Interrupt => 2,
            StopSignal::User => 10,
            StopSignal::Terminate => 15,
        }
    }

    /// Finds a signal by its name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name)
    }

    /// Finds a signal by the exit code of a process that it has stopped.
    pub(crate) fn of_exit_code(exit_code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| i32::from(signal.exit_code()) == exit_code)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            StopSignal::Interrupt => "SIGINT",
            StopSignal::Terminate => "SIGTERM",
            StopSignal::HangUp => "SIGHUP",
            StopSignal::User => "SIGUSR1",
        }
    }
}

/// Whether this is the exit code of a process that was told to stop.
pub(crate) fn is_stop(exit_code: i32) -> bool {
    StopSignal::of_exit_code(exit_code).is_some()
}

/// The signal that told this process to stop, if any, and when, in seconds since 1970.
pub(crate) type StoppedBy = Arc<OnceLock<(StopSignal, u64)>>;

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The incoming signals. From the first call on they no longer end the process by themselves.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if this process was started to outlive its terminal, as by `nohup`.
    hang_up: Option<Signal>,
    user: Signal,
}

impl Signals {
    /// Starts listening. Must be called within the async runtime.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let hang_up = if is_hang_up_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    pub(crate) async fn next(&mut self) -> StopSignal {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
            _ = hang_up => StopSignal::HangUp,
            _ = self.user.recv() => StopSignal::User,
        }
    }
}

/// Whether SIGHUP is ignored. Only the kernel knows which signals a process was started to ignore.
fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// The position of a signal in a sequence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    First,
    /// A repetition of the first signal.
    Echo,
    /// The sender does not want to wait any longer.
    Again,
}

/// Counts signals.
#[derive(Debug, Default)]
pub(crate) struct Turns(Option<Instant>);

impl Turns {
    pub(crate) fn next(&mut self, now: Instant) -> Turn {
        match self.0 {
            None => {
                self.0 = Some(now);
                Turn::First
            }
            Some(first) if now.saturating_duration_since(first) < ECHO => Turn::Echo,
            Some(_) => Turn::Again,
        }
    }
}

/// Passes every signal to `tell`, on a thread of its own, until `tell` returns false.
pub(crate) fn forward(mut tell: impl FnMut(StopSignal) -> bool + Send + 'static) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    // Done before anything is started: an early signal must not kill the process.
    let mut signals = {
        let _guard = runtime.enter();
        Signals::listen().map_err(Failure::internal)?
    };
    std::thread::spawn(move || runtime.block_on(async move { while tell(signals.next().await) {} }));
    Ok(())
}

/// Returns when `stop` is set.
pub(crate) async fn stopped(stop: &Interrupt) {
    while !stop.is_set() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Prints a last message, but does not wait long: the terminal may be blocked.
pub(crate) fn last_words(print: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        print();
        let _ = done.send(());
    });
    let _ = is_done.recv_timeout(LAST_WORDS);
}

/// Lets the first signal set `stop`, and the second end the process.
pub(crate) fn watch(runtime: &Runtime, stop: Arc<Interrupt>, stopped_by: StoppedBy, terminal: &Terminal) {
    let terminal = terminal.clone();
    // Done before anything is started: an early signal must not kill the process.
    let signals = {
        let _guard = runtime.enter();
        Signals::listen()
    };
    let mut signals = match signals {
        Ok(signals) => signals,
        Err(error) => return warn!("cannot listen for signals: {error}"),
    };
    runtime.spawn(async move {
        let mut turns = Turns::default();
        loop {
            let signal = signals.next().await;
            match turns.next(Instant::now()) {
                Turn::First => {
                    let _ = stopped_by.set((signal, unix_seconds()));
                    stop.set();
                    // Logged last, and on another thread: the log's destination may be blocked, and the next signal
                    // must still be handled.
                    tokio::task::spawn_blocking(move || {
                        warn!("stopping on {}; a second signal stops at once", signal.name());
                    });
                }
                Turn::Echo => {}
                Turn::Again => {
                    let terminal = terminal.clone();
                    last_words(move || {
                        terminal.clear_bars();
                        terminal.print_error(&format!("stopped immediately by a second {}", signal.name()));
                    });
                    std::process::exit(signal.exit_code().into());
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_shells() {
        let codes = StopSignal::ALL.map(StopSignal::exit_code);
        assert_eq!(codes, [130, 143, 129, 138]);
        assert!(codes.iter().all(|code| is_stop((*code).into())) && !is_stop(137) && !is_stop(0));
    }

    #[test]
    fn the_second_signal_counts_unless_it_is_the_first_once_more() {
        let (mut turns, first) = (Turns::default(), Instant::now());
        assert_eq!(turns.next(first), Turn::First);
        assert_eq!(turns.next(first + ECHO / 2), Turn::Echo);
        assert_eq!(turns.next(first + ECHO), Turn::Again);
    }
}
