//! The first thing a coordinator does: it opens the checkpoints of its run. That may take a while, and whoever comes
//! meanwhile is told what is waited for.

use std::pin::pin;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at};
use windlass_checkpoint::CheckpointError;
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{CoordinatorMessage, Waiting};

use super::store_keeper::StoreKeeper;
use crate::coordinator::actor::ActorConfig;
use crate::coordinator::interface::{Claimed, Event, SessionId};
use crate::coordinator::machine::SPEAK_EVERY;
use crate::coordinator::session_service::SessionInput;

/// How much of what happens meanwhile is kept. The rest waits where it is.
const EARLY: usize = 256;

/// What was opened, and what has happened meanwhile.
pub(in crate::coordinator) struct Opened {
    pub(in crate::coordinator) checkpoints: Result<Option<(StoreKeeper, Claimed)>, CheckpointError>,
    pub(in crate::coordinator) early: Vec<(SessionId, SessionInput)>,
}

/// Opens the checkpoints of a run, if it has any.
pub(in crate::coordinator) async fn open(
    config: &ActorConfig,
    done: &mpsc::Sender<Event>,
    inbox: &mut mpsc::Receiver<(SessionId, SessionInput)>,
) -> Opened {
    let mut early = Vec::new();
    let Some(checkpoints) = config.checkpoints.clone() else { return Opened { checkpoints: Ok(None), early } };
    let notice = format!("ps 0 is still opening the checkpoints in `{}`", checkpoints.location);
    let mut opening = pin!(StoreKeeper::open(checkpoints, &config.address, done.clone()));
    let mut speak = interval_at(Instant::now() + SPEAK_EVERY, SPEAK_EVERY);
    loop {
        tokio::select! {
            opened = &mut opening => return Opened { checkpoints: opened.map(Some), early },
            Some(event) = inbox.recv(), if early.len() < EARLY => early.push(event),
            _ = speak.tick() => early.iter().for_each(|(_, event)| mention(event, &notice)),
        }
    }
}

/// Tells whoever has opened a session, ps 0 itself included.
fn mention(event: &SessionInput, notice: &str) {
    if let SessionInput::Opened(sender, _) = event {
        let waiting = Waiting { tasks: Vec::new(), notices: vec![notice.to_owned()] };
        let _ = sender.try_send(CoordinatorMessage { number: 0, heard: 0, kind: Some(Kind::Waiting(waiting)) });
    }
}
