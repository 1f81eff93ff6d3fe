//! What the launcher hears of, in the order in which it happens. Whatever shows it may be blocked: a terminal that is
//! held, a pipe that nobody reads. Then the tasks go on, and of what they tell only so much is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use windlass_core::cluster::TaskId;
use windlass_worker::event::Event;

use super::child::Ended;
use crate::signals::StopSignal;

/// When so many messages wait to be shown, those that others will follow are left out.
const MOST: usize = 10_000;

/// What the launcher hears of.
pub(super) enum Message {
    /// A task told of something.
    Event(Event),
    /// The chief logged something that is of interest.
    Remark(String),
    /// A task ended.
    Ended(TaskId, Ended),
    /// The launcher was told to stop.
    Signal(StopSignal),
    /// The launcher was told to stop once more: at once.
    SignalAgain,
}

impl Message {
    /// Whether it is one of many, of which each makes those before it old.
    fn is_one_of_many(&self) -> bool {
        matches!(self, Self::Event(Event::Step(_) | Event::Progress(_) | Event::Epoch(_) | Event::Report(_)))
    }
}

/// Where messages go.
#[derive(Clone)]
pub(super) struct Outbox {
    sender: mpsc::Sender<Message>,
    waiting: Arc<AtomicUsize>,
    most: usize,
}

/// Where messages come from.
pub(super) struct Inbox {
    receiver: mpsc::Receiver<Message>,
    waiting: Arc<AtomicUsize>,
}

/// Both ends.
pub(super) fn inbox() -> (Outbox, Inbox) {
    holding(MOST)
}

fn holding(most: usize) -> (Outbox, Inbox) {
    let (sender, receiver) = mpsc::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Outbox { sender, waiting: waiting.clone(), most }, Inbox { receiver, waiting })
}

impl Outbox {
    /// Sends a message, without waiting. False if nobody takes any more.
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

    /// The next message, if there is one already.
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

    /// What is in the inbox: the numbers of steps, and 0 for whatever else.
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
