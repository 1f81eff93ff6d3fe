//! The decisions of a parameter server as a pure machine: messages of the coordinator go in, actions on the shard come
//! out.
//!
//! It holds no shard and no session and reads no clock: `task` carries out what is decided here, as does a simulated
//! cluster.

use std::time::Duration;

use windlass_core::cluster::WorkerId;
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{
    Abandon, Cut, Failure, Goodbye, Mark, Over, Prepare, ServerReady, Waiting, task_message,
};

/// How long a task that was told to stop stays to learn how the run ended, and ps 0 for others to learn of it.
pub const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long a server that was told to stop stays for the last checkpoint without a message. While it is written, the
/// coordinator sends one every few seconds, and gives up by itself.
const DRAIN: Duration = Duration::from_secs(60);

/// An event for a server.
#[derive(Debug)]
pub enum ServerEvent {
    /// The coordinator has sent a message.
    Told(Kind),
    /// The session is over, and the server was not told how the run ended.
    Lost,
    /// The shard has been prepared and taken over, or it cannot be prepared and the run is to end with this outcome.
    Prepared(Result<Holding, Outcome>),
    /// The process is to end with this outcome: it was told to stop, or the work that it was started for has failed.
    Stop(Outcome),
    /// Nothing has happened until [`ServerMachine::deadline`].
    Quiet,
}

/// What a server has been prepared to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// False if it takes no part in the run.
    pub shard: bool,
    /// True if it writes parts of checkpoints.
    pub saves: bool,
    /// True if the shard has the values of a checkpoint.
    pub restored: bool,
}

/// An action of a server.
#[derive(Debug)]
pub enum ServerEffect {
    /// Log which tasks are awaited.
    Mention(Waiting),
    /// Drop the shard and its saver, and begin to allocate or restore another.
    Prepare(Box<Prepare>),
    /// Send this message to the coordinator.
    Send(task_message::Kind),
    /// Mark the shard's current state, and report it to the coordinator.
    Mark(u64),
    /// Cut the shard and write its part.
    Cut(Cut),
    /// Give up the cut and the part of this number.
    Abandon(u64),
    /// Accept pushes of this process of a worker from this clock on, and refuse those of earlier processes.
    Join(WorkerId, Incarnation, u64),
    /// Wait no more for this process of a worker.
    Leave(WorkerId, Incarnation),
    /// Say goodbye on the session, and wait a moment until that has arrived.
    CloseSession,
    /// End with this outcome.
    End(Outcome),
}

/// A shard that is being allocated or restored.
#[derive(Debug)]
struct PendingShard {
    /// The number of the `Prepare` that asked for it.
    number: u64,
    /// Messages about the shard that have arrived meanwhile.
    deferred: Vec<Kind>,
}

/// A server that was told to stop and waits to learn how the run ends.
#[derive(Debug)]
struct Leaving {
    /// How long it stays without a message.
    patience: Duration,
    /// When the last message arrived.
    since: Duration,
    /// The outcome if no message comes.
    outcome: Outcome,
}

/// The decisions of a parameter server.
#[derive(Debug, Default)]
pub struct ServerMachine {
    preparing: Option<PendingShard>,
    holding: Option<Holding>,
    leaving: Option<Leaving>,
}

impl ServerMachine {
    /// When the machine next needs a tick, if at all.
    pub fn deadline(&self) -> Option<Duration> {
        self.leaving.as_ref().map(|leaving| leaving.since + leaving.patience)
    }

    /// Handles an event, and returns what to do, in order.
    pub fn handle(&mut self, event: ServerEvent, now: Duration) -> Vec<ServerEffect> {
        if let Some(leaving) = &mut self.leaving
            && !matches!(event, ServerEvent::Quiet | ServerEvent::Stop(_))
        {
            leaving.since = now;
        }
        match event {
            ServerEvent::Lost => {
                let reason = "lost the coordinator".to_owned();
                vec![ServerEffect::End(Outcome { exit_code: exit_code::PEERS, reason })]
            }
            ServerEvent::Told(Kind::Over(Over { exit_code, reason })) => {
                vec![ServerEffect::End(Outcome { exit_code: exit_code as u8, reason })]
            }
            ServerEvent::Told(Kind::Waiting(waiting)) => vec![ServerEffect::Mention(waiting)],
            ServerEvent::Told(Kind::Prepare(prepare)) => {
                self.holding = None;
                self.preparing = Some(PendingShard { number: prepare.number, deferred: Vec::new() });
                vec![ServerEffect::Prepare(Box::new(prepare))]
            }
            ServerEvent::Told(message) => match &mut self.preparing {
                // Messages about the shard are handled once there is one.
                Some(preparing) => {
                    preparing.deferred.push(message);
                    Vec::new()
                }
                None => self.change(message).into_iter().collect(),
            },
            ServerEvent::Prepared(prepared) => self.prepared(prepared),
            ServerEvent::Stop(outcome) => self.stop(outcome, now),
            ServerEvent::Quiet => {
                let leaving = self.leaving.as_ref().filter(|leaving| now >= leaving.since + leaving.patience);
                leaving.map(|leaving| ServerEffect::End(leaving.outcome.clone())).into_iter().collect()
            }
        }
    }

    /// Says goodbye, or reports the failure, and stays until the coordinator ends the run: a last checkpoint may have
    /// to be written. A server that holds nothing leaves at once, because the run continues without it.
    fn stop(&mut self, outcome: Outcome, now: Duration) -> Vec<ServerEffect> {
        if self.holding.is_some_and(|holding| !holding.shard) {
            return vec![ServerEffect::CloseSession, ServerEffect::End(outcome)];
        }
        let saves = self.holding.is_some_and(|holding| holding.saves);
        let last = match outcome.exit_code {
            0 | exit_code::TERMINATED => task_message::Kind::Goodbye(Goodbye {}),
            _ => failed(&outcome, 0),
        };
        self.leaving = Some(Leaving { patience: if saves { DRAIN } else { LAST_WORDS }, since: now, outcome });
        vec![ServerEffect::Send(last)]
    }

    /// Reports to the coordinator, and handles deferred messages.
    fn prepared(&mut self, prepared: Result<Holding, Outcome>) -> Vec<ServerEffect> {
        let Some(PendingShard { number, deferred }) = self.preparing.take() else { return Vec::new() };
        let reply = match prepared {
            Ok(holding) => {
                self.holding = Some(holding);
                task_message::Kind::ServerReady(ServerReady { number, restored: holding.restored })
            }
            Err(outcome) => failed(&outcome, number),
        };
        let changes = deferred.into_iter().filter_map(|message| self.change(message));
        std::iter::once(ServerEffect::Send(reply)).chain(changes).collect()
    }

    /// Translates a message about the shard. Without a shard there is nothing to do.
    fn change(&self, message: Kind) -> Option<ServerEffect> {
        let Holding { saves, .. } = self.holding.filter(|holding| holding.shard)?;
        Some(match message {
            Kind::Mark(Mark { number }) => ServerEffect::Mark(number),
            Kind::Cut(cut) if saves => ServerEffect::Cut(cut),
            Kind::Abandon(Abandon { number }) => ServerEffect::Abandon(number),
            Kind::WorkerJoined(joined) => {
                ServerEffect::Join(WorkerId(joined.worker), Incarnation(joined.incarnation), joined.clock)
            }
            Kind::WorkerLeft(left) => ServerEffect::Leave(WorkerId(left.worker), Incarnation(left.incarnation)),
            _ => return None,
        })
    }
}

/// Builds the report of a failure with which the run is to end. `number` is that of the `Prepare` that failed, or zero
/// for anything else in this process.
fn failed(outcome: &Outcome, number: u64) -> task_message::Kind {
    let Outcome { exit_code, reason } = outcome.clone();
    task_message::Kind::Failed(Failure { exit_code: u32::from(exit_code), reason, incarnation: 0, prepare: number })
}

#[cfg(test)]
mod tests {
    use windlass_wire::control::proto::WorkerJoined;

    use super::*;

    const NOW: Duration = Duration::from_secs(7);

    fn joined() -> ServerEvent {
        ServerEvent::Told(Kind::WorkerJoined(WorkerJoined { worker: 1, incarnation: 5, clock: 7 }))
    }

    fn prepare(number: u64) -> ServerEvent {
        ServerEvent::Told(Kind::Prepare(Prepare { number, ..Prepare::default() }))
    }

    fn holding(shard: bool) -> ServerEvent {
        ServerEvent::Prepared(Ok(Holding { shard, saves: shard, restored: false }))
    }

    #[test]
    fn what_concerns_a_shard_in_the_making_is_done_after_it_is_ready() {
        let mut server = ServerMachine::default();
        server.handle(prepare(3), NOW);
        assert!(server.handle(joined(), NOW).is_empty());
        let effects = server.handle(holding(true), NOW);
        assert!(matches!(
            effects[..],
            [
                ServerEffect::Send(task_message::Kind::ServerReady(ServerReady { number: 3, restored: false })),
                ServerEffect::Join(WorkerId(1), Incarnation(5), 7)
            ]
        ));
    }

    #[test]
    fn what_was_said_about_a_shard_that_is_prepared_anew_is_forgotten() {
        let mut server = ServerMachine::default();
        server.handle(prepare(3), NOW);
        server.handle(joined(), NOW);
        server.handle(prepare(4), NOW);
        assert_eq!(server.handle(holding(true), NOW).len(), 1);
    }

    #[test]
    fn a_server_that_holds_nothing_does_nothing_and_leaves_without_ending_the_run() {
        let mut server = ServerMachine::default();
        server.handle(prepare(3), NOW);
        server.handle(holding(false), NOW);
        assert!(server.handle(ServerEvent::Told(Kind::Mark(Mark { number: 1 })), NOW).is_empty());
        let effects = server.handle(ServerEvent::Stop(Outcome::told_to_stop()), NOW);
        assert!(matches!(effects[..], [ServerEffect::CloseSession, ServerEffect::End(_)]));
    }

    #[test]
    fn a_server_that_is_told_to_stop_stays_while_the_coordinator_speaks_of_the_last_checkpoint() {
        let mut server = ServerMachine::default();
        server.handle(prepare(3), NOW);
        server.handle(holding(true), NOW);
        server.handle(ServerEvent::Stop(Outcome::told_to_stop()), NOW);
        assert_eq!(server.deadline(), Some(NOW + DRAIN));
        server.handle(ServerEvent::Told(Kind::Waiting(Waiting::default())), NOW + DRAIN / 2);
        assert!(server.handle(ServerEvent::Quiet, NOW + DRAIN).is_empty());
        let effects = server.handle(ServerEvent::Quiet, NOW + DRAIN + DRAIN / 2);
        assert!(matches!(&effects[..], [ServerEffect::End(Outcome { exit_code: exit_code::TERMINATED, .. })]));
    }

    #[test]
    fn a_server_whose_process_has_failed_tells_the_coordinator_why_and_ends_like_that() {
        let outcome = Outcome { exit_code: exit_code::PEERS, reason: "nobody came".to_owned() };
        let mut server = ServerMachine::default();
        server.handle(prepare(3), NOW);
        let effects = server.handle(ServerEvent::Stop(outcome.clone()), NOW);
        let [ServerEffect::Send(task_message::Kind::Failed(failure))] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!((failure.exit_code, &*failure.reason, failure.prepare), (5, "nobody came", 0));
        let effects = server.handle(ServerEvent::Quiet, NOW + LAST_WORDS);
        assert!(matches!(&effects[..], [ServerEffect::End(end)] if *end == outcome), "{effects:?}");
    }
}
