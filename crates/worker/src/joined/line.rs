//! A connection to a client, to which a worker sends signs of life while it is busy, and what a client says of itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use tracing::warn;
use windlass_core::lifecycle::Outcome;
use windlass_wire::compute::{ComputeError, Connection, Limits, Message, Section};
use windlass_wire::stream::Socket;

use super::protocol::{Answer, Ask, SIGN_OF_LIFE, read, written};

/// The most characters of a client's text that are logged.
const WORDS: usize = 1000;

/// A connection that sends signs of life while the worker is busy.
pub(super) struct Line {
    speaker: Arc<Mutex<Speaker>>,
    /// How long the client may stall in reading an answer.
    stalled: Duration,
    /// Dropping it ends the thread that sends signs of life.
    _ended: mpsc::Sender<()>,
}

struct Speaker {
    connection: Connection,
    is_busy: bool,
}

impl Line {
    pub(super) fn new(connection: Connection, stalled: Duration) -> Self {
        let speaker = Arc::new(Mutex::new(Speaker { connection, is_busy: false }));
        let (ended, is_ended) = mpsc::channel::<()>();
        let speaking = speaker.clone();
        let speak = move || {
            while let Err(mpsc::RecvTimeoutError::Timeout) = is_ended.recv_timeout(SIGN_OF_LIFE) {
                // A locked connection is reading or sending an answer.
                let Ok(mut speaker) = speaking.try_lock() else { continue };
                if speaker.is_busy {
                    let _ = speaker.connection.send(&written(&Answer::Working), &[], SIGN_OF_LIFE, &|| false);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("sign-of-life".to_owned()).spawn(speak) {
            warn!(%error, "cannot start the thread that tells a client of long steps");
        }
        Self { speaker, stalled, _ended: ended }
    }

    pub(super) fn receive(
        &self,
        limits: &Limits,
        patience: Duration,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Message, ComputeError> {
        self.lock().connection.receive(limits, patience, is_stopped)
    }

    pub(super) fn answer(&self, answer: &Answer, tensors: &[Section<'_>]) -> Result<(), ComputeError> {
        self.lock().connection.send(&written(answer), tensors, self.stalled, &|| false)
    }

    /// Returns how a client that no longer accepts answers has ended, if it has said so.
    pub(super) fn last_words(&self, limits: &Limits) -> Option<Outcome> {
        let message = self.receive(limits, SIGN_OF_LIFE, &|| false).ok()?;
        match read::<Ask>(&message.head) {
            Ok(Ask::Leave { reason, exit_code }) => Some(outcome(&reason, exit_code)),
            _ => None,
        }
    }

    /// Runs `work`, which may take long, while signs of life are sent.
    pub(super) fn busy<T>(&self, work: impl FnOnce() -> T) -> T {
        self.lock().is_busy = true;
        let done = work();
        self.lock().is_busy = false;
        done
    }

    pub(super) fn kind(&self) -> &'static str {
        self.lock().connection.kind()
    }

    pub(super) fn handle(&self) -> std::io::Result<Socket> {
        self.lock().connection.handle()
    }

    fn lock(&self) -> MutexGuard<'_, Speaker> {
        self.speaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how a client has ended, as it reported.
pub(super) fn outcome(reason: &str, exit_code: u8) -> Outcome {
    Outcome { exit_code, reason: legible(reason) }
}

/// Makes a client's text fit for the log: on one line, and not too long.
pub(super) fn legible(words: &str) -> String {
    words.chars().filter(|character| !character.is_control()).take(WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_says_is_logged_on_one_line_and_in_part() {
        assert_eq!(legible("a\u{1b}[2J\nrun\r"), "a[2Jrun");
        assert_eq!(legible(&"ü".repeat(3 * WORDS)), "ü".repeat(WORDS));
    }
}
