//! The messages to the launcher, in the order in which they are sent. Showing them may block, on a terminal that is
//! held or a pipe that nobody reads. The tasks continue in that case, and only a bounded number of progress messages is
//! kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use windlass_core::cluster::TaskId;
use windlass_worker::event::Event;

use super::child::Ended;
use crate::signals::StopSignal;

/// When this many messages are waiting, those that later ones will supersede are dropped.
const MOST: usize = 10_000;

/// A message to the launcher.
pub(super) enum Message {
    /// An event of a task.
    Event(Event),
    /// A line that the chief logged and the user should see.
    Remark(String),
    /// A task ended.
    Ended(TaskId, Ended),
    /// The launcher was told to stop.
    Signal(StopSignal),
    /// The launcher was told to stop a second time, and should stop at once.
    SignalAgain,
}

impl Message {
    /// Whether later messages of this kind supersede it.
    fn is_one_of_many(&self) -> bool {
        matches!(self, Self::Event(Event::Step(_) | Event::Progress(_) | Event::Epoch(_) | Event::Report(_)))
    }
}

/// The sending end.
#[derive(Clone)]
pub(super) struct Outbox {
    sender: mpsc::Sender<Message>,
    waiting: Arc<AtomicUsize>,
    most: usize,
}

/// The receiving end.
pub(super) struct Inbox {
    receiver: mpsc::Receiver<Message>,
    waiting: Arc<AtomicUsize>,
}

/// Creates both ends.
pub(super) fn inbox() -> (Outbox, Inbox) {
    holding(MOST)
}

fn holding(most: usize) -> (Outbox, Inbox) {
    let (sender, receiver) = mpsc::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Outbox { sender, waiting: waiting.clone(), most }, Inbox { receiver, waiting })
}

impl Outbox {
    /// Sends a message without waiting. Returns false if the receiver is gone.
    pub(super) fn send(&self, message: Message) -> bool {
        if message.is_one_of_many() && self.waiting.load(Ordering::Relaxed) >= self.most {
            return true;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.sender.send(message).is_ok()
    }
}

impl Inbox {
    /// Waits for the next message, until the deadline if there is one.
    pub(super) fn next(&self, deadline: Option<Instant>) -> Result<Message, RecvTimeoutError> {
        let message = match deadline {
            None => self.receiver.recv().map_err(RecvTimeoutError::from),
            Some(deadline) => self.receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        };
        message.inspect(|_| self.taken())
    }

    /// The next message, if one is waiting.
    pub(super) fn next_if_any(&self) -> Option<Message> {
        self.receiver.try_recv().ok().inspect(|_| self.taken())
    }

    fn taken(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use windlass_worker::event::Step;

    use super::*;

    fn step(local_step: u64) -> Message {
        Message::Event(Event::Step(Step {
            time: 0.0,
            worker: 0,
            local_step,
            global_step: local_step,
            epoch: 1,
            batch: 1,
            batches: 1,
            loss: None,
            step_ms: 1.0,
        }))
    }

    /// Drains the inbox: the numbers of steps, and 0 for any other message.
    fn taken(inbox: &Inbox) -> Vec<u64> {
        let number = |message| match message {
            Message::Event(Event::Step(step)) => step.local_step,
            _ => 0,
        };
        std::iter::from_fn(|| inbox.next_if_any()).map(number).collect()
    }

    #[test]
    fn while_nobody_looks_only_so_many_steps_are_kept_and_everything_else() {
        let (outbox, inbox) = holding(2);
        let others = [
            Message::Event(Event::Wrote { path: PathBuf::new() }),
            Message::Signal(StopSignal::Terminate),
            Message::Ended(TaskId::worker(0), Ended::Exited(0)),
        ];
        (1..=5).for_each(|number| assert!(outbox.send(step(number))));
        others.into_iter().for_each(|other| assert!(outbox.send(other)));
        assert_eq!(taken(&inbox), [1, 2, 0, 0, 0]);
        outbox.send(step(6));
        assert_eq!(taken(&inbox), [6], "once they are taken there is room again");
    }
}
