//! The main loop of a parameter server: it takes events from the session and the shard, lets `server_machine` decide,
//! and carries out its effects.

use std::sync::PoisonError;
use std::time::Duration;

use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{Marked, task_message};

use super::{Preparing, Server, tell_totals};
use crate::server_machine::{LAST_WORDS, ServerEffect, ServerEvent};

/// How long ps 0 stays for tasks that have yet to come if the run cannot begin.
const FIRST_WORDS: Duration = Duration::from_secs(10);

impl Server {
    /// Serves until the run is over.
    pub async fn run(self) -> Outcome {
        self.run_until(std::future::pending()).await
    }

    /// Serves until the run is over. If told to stop, it says goodbye, which ends the run for everyone; if told that
    /// its process has failed, it reports that to everyone.
    pub async fn run_until(mut self, stop: impl Future<Output = Outcome>) -> Outcome {
        let mut stop = std::pin::pin!(stop);
        let mut stopped_with = None;
        let mut has_heard_the_end = false;
        let outcome = 'serving: loop {
            let deadline =
                self.machine.deadline().map(|deadline| tokio::time::Instant::from_std(self.origin + deadline));
            let event = tokio::select! {
                event = self.next() => event,
                outcome = &mut stop, if stopped_with.is_none() => {
                    stopped_with = Some(outcome.exit_code);
                    ServerEvent::Stop(outcome)
                }
                () = sleep_until(deadline) => ServerEvent::Quiet,
            };
            has_heard_the_end |= matches!(event, ServerEvent::Told(Kind::Over(_)));
            for effect in self.machine.handle(event, self.origin.elapsed()) {
                if let Some(outcome) = self.carry_out(effect).await {
                    break 'serving outcome;
                }
            }
        };
        if has_heard_the_end {
            // Ps 0 waits for tasks that have not acknowledged the end, and this process may be about to exit.
            let _ = tokio::time::timeout(LAST_WORDS, self.session.close()).await;
        }
        if let Some(coordinator) = &self.own_coordinator {
            let is_told_to_stop = stopped_with.is_some_and(|code| !self.is_shared || code == exit_code::TERMINATED);
            let refused = !is_told_to_stop
                && !self.has_prepared
                && matches!(outcome.exit_code, exit_code::USAGE | exit_code::CHECKPOINT);
            coordinator.ended(if refused { FIRST_WORDS } else { LAST_WORDS }).await;
        }
        outcome
    }

    /// Waits for the next event. Until a shard is ready this changes nothing, so it may be dropped while it waits.
    async fn next(&mut self) -> ServerEvent {
        tokio::select! {
            message = self.session.receive() => message.map_or(ServerEvent::Lost, ServerEvent::Told),
            prepared = Preparing::done(&mut self.preparing) => ServerEvent::Prepared(self.take_prepared(prepared)),
        }
    }

    /// Carries out an effect. Returns how the run has ended, if it has.
    async fn carry_out(&mut self, effect: ServerEffect) -> Option<Outcome> {
        match effect {
            ServerEffect::End(outcome) => return Some(outcome),
            ServerEffect::Mention(waiting) => waiting.log(),
            ServerEffect::Prepare(prepare) => self.prepare(*prepare),
            ServerEffect::Send(message) => self.session.sender().send(message).await,
            ServerEffect::CloseSession => {
                let _ = tokio::time::timeout(LAST_WORDS, self.session.close()).await;
            }
            ServerEffect::Mark(number) => {
                if let Some(shard) = self.shard.get() {
                    let mark = serde_json::to_string(&shard.mark(number)).unwrap_or_default();
                    self.session.sender().send(task_message::Kind::Marked(Marked { number, mark })).await;
                }
            }
            ServerEffect::Cut(cut) => {
                if let (Some(saver), Some(shard)) = (&self.saver, self.shard.get()) {
                    saver.cut(shard, self.session.sender(), cut);
                }
            }
            ServerEffect::Abandon(number) => {
                self.shard.get().iter().for_each(|shard| shard.abandon(number));
                self.saver.iter().for_each(|saver| saver.give_up(number));
            }
            ServerEffect::Join(worker, incarnation, clock) => {
                self.shard.get().iter().for_each(|shard| drop(shard.join(worker, incarnation, clock)));
            }
            ServerEffect::Leave(worker, incarnation) => {
                if let Some(shard) = self.shard.get() {
                    // This may complete a round, and applying a round is CPU work.
                    let _ = tokio::task::spawn_blocking(move || shard.leave(worker, incarnation)).await;
                }
            }
        }
        // Update the totals now: at the end there may be no time for the regular update.
        tell_totals(&self.counts, &mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
        None
    }
}

/// Sleeps until the deadline, or forever if there is none.
async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
