//! Opens the checkpoints of a run, which is the first thing a coordinator does. That may take a while; tasks that
//! connect meanwhile are told what the run waits for.
//!
//! The tasks of a running run wait for a restarted ps 0, so it does not end their run because of an error that may be
//! temporary, such as a full disk. A run that is about to begin ends at once: its user can fix the cause and start it
//! again.

use std::pin::pin;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval_at};
use tracing::warn;
use windlass_checkpoint::{CheckpointError, ReadCounter, Store};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{CoordinatorMessage, Waiting};

use super::store_keeper::StoreKeeper;
use crate::checkpoint::{CheckpointConfig, RETRY_EVERY, store_patience};
use crate::coordinator::actor::ActorConfig;
use crate::coordinator::interface::{Claimed, Event, SessionId};
use crate::coordinator::machine::SPEAK_EVERY;
use crate::coordinator::session_service::SessionInput;
use crate::{CANNOT_CONTINUE, NOTICE};

/// How many session events are buffered meanwhile. Further events wait in their channel.
const EARLY: usize = 256;

/// The result, and the session events that arrived meanwhile.
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
    let (told, notice) = watch::channel(format!("ps 0 is still opening the checkpoints in `{}`", checkpoints.location));
    let mut opening = pin!(open_patiently(config, checkpoints, done, told));
    let mut speak = interval_at(Instant::now() + SPEAK_EVERY, SPEAK_EVERY);
    loop {
        tokio::select! {
            opened = &mut opening => return Opened { checkpoints: opened.map(Some), early },
            Some(event) = inbox.recv(), if early.len() < EARLY => early.push(event),
            _ = speak.tick() => {
                let notice = notice.borrow();
                early.iter().for_each(|(_, event)| mention(event, &notice));
            }
        }
    }
}

/// Opens the store. For a run that continues, it retries for almost as long as the tasks wait, so that they learn the
/// reason before they give up.
async fn open_patiently(
    config: &ActorConfig,
    checkpoints: CheckpointConfig,
    done: &mpsc::Sender<Event>,
    told: watch::Sender<String>,
) -> Result<(StoreKeeper, Claimed), CheckpointError> {
    let (began, patience) = (Instant::now(), store_patience(config.peer_timeout));
    loop {
        let error =
            match StoreKeeper::open(checkpoints.clone(), &config.address, (done.clone(), config.tidying.clone())).await
            {
                Err(error) if error.may_pass() && began.elapsed() < patience => error,
                opened => return opened,
            };
        if !checkpoints.restarted && !has_unfinished_run(&checkpoints.location).await {
            return Err(error);
        }
        let notice = format!("{CANNOT_CONTINUE}: {error}");
        if *told.borrow() != notice {
            warn!(target: NOTICE, "{notice}; trying again");
            told.send_replace(notice);
        }
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

/// True if the store holds a run that has not ended. A store that cannot be read counts as empty.
async fn has_unfinished_run(location: &str) -> bool {
    match Store::open_counted(location, ReadCounter::default()).await {
        Ok(store) => store.has_unfinished_run().await.unwrap_or(false),
        Err(_) => false,
    }
}

/// Sends the notice to a task that has opened a session, including ps 0 itself.
fn mention(event: &SessionInput, notice: &str) {
    if let SessionInput::Opened(sender, _) = event {
        let waiting = Waiting { tasks: Vec::new(), notices: vec![notice.to_owned()] };
        let _ = sender.try_send(CoordinatorMessage { number: 0, heard: 0, kind: Some(Kind::Waiting(waiting)) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use windlass_checkpoint::Holder;
    use windlass_core::membership::Patience;
    use windlass_instruments::Instruments;

    use windlass_core::cluster::RunLayout;

    use super::*;
    use crate::checkpoint::Resume;

    const LIMIT: Duration = Duration::from_secs(60);

    fn config(location: &str, restarted: bool) -> ActorConfig {
        let checkpoints = CheckpointConfig {
            location: location.to_owned(),
            every: None,
            every_steps: None,
            keep: 1,
            resume: Resume::Auto,
            restarted,
            stall: LIMIT,
            take_over: false,
            description: String::new(),
        };
        ActorConfig {
            servers: 1,
            workers: Some(1),
            layout: RunLayout::Apart,
            joined: None,
            patience: Patience::new(LIMIT),
            peer_timeout: LIMIT,
            started: std::time::Instant::now(),
            checkpoints: Some(checkpoints),
            address: String::new(),
            run_dir: None,
            tidying: Arc::default(),
            instruments: Instruments::default(),
        }
    }

    /// Opens the checkpoints while a task is connected. Calls `mend` with the notice that the task receives.
    async fn opened_after(config: &ActorConfig, mend: impl FnOnce(String)) -> Opened {
        let (done, _results) = mpsc::channel(1);
        let (events, mut inbox) = mpsc::channel(1);
        let (sender, mut told) = mpsc::channel(16);
        events.send((1, SessionInput::Opened(sender, None))).await.unwrap();
        let mending = async {
            let waiting = told.recv().await.and_then(|message| message.kind);
            if let Some(Kind::Waiting(Waiting { notices, .. })) = waiting {
                mend(notices.concat());
            }
        };
        let opening = async { tokio::join!(open(config, &done, &mut inbox), mending).0 };
        tokio::time::timeout(LIMIT, opening).await.expect("it comes to an end")
    }

    #[tokio::test]
    async fn a_restarted_coordinator_tries_again_when_the_store_takes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        // A file in place of the folder of claims keeps any claim from being written.
        let claims = directory.path().join("generations");
        std::fs::write(&claims, "").unwrap();
        let config = config(directory.path().to_str().unwrap(), true);
        let opened = opened_after(&config, |notice| {
            assert!(notice.starts_with("ps 0 cannot continue the run yet: cannot "), "{notice}");
            std::fs::remove_file(&claims).unwrap();
        });
        let Opened { checkpoints, early } = opened.await;
        assert_eq!(checkpoints.unwrap().unwrap().1.generation, 1);
        assert_eq!(early.len(), 1, "whoever has come is not forgotten");
    }

    #[tokio::test]
    async fn so_does_one_that_nobody_has_called_restarted_if_a_run_has_not_ended() {
        let directory = tempfile::tempdir().unwrap();
        let location = directory.path().to_str().unwrap();
        let mut claimed = Store::open(location).unwrap().lease(Holder::this_process("ps"), false).await.unwrap();
        assert!(has_unfinished_run(location).await);
        claimed.release().await.unwrap();
        assert!(!has_unfinished_run(location).await);
    }

    #[tokio::test]
    async fn a_run_that_is_about_to_begin_ends_at_once() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("generations"), "").unwrap();
        let (done, _results) = mpsc::channel(1);
        let (_events, mut inbox) = mpsc::channel(1);
        let config = config(directory.path().to_str().unwrap(), false);
        let opening = tokio::time::timeout(LIMIT, open(&config, &done, &mut inbox)).await;
        assert!(opening.expect("it does not wait").checkpoints.is_err());
    }
}
