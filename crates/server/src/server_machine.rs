//! What a parameter server does, as a pure machine: what the coordinator says goes in, what is to be done with the shard
//! comes out.
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

/// How long a task that is told to stop stays to hear how the run ended, and ps 0 for others to hear of it.
pub const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long a server that is told to stop stays for the last checkpoint without a word of the coordinator, which speaks
/// every few seconds while it is written and gives up by itself.
const DRAIN: Duration = Duration::from_secs(60);

/// What happens to a server.
#[derive(Debug)]
pub enum ServerEvent {
    /// The coordinator says something.
    Told(Kind),
    /// The session is over, without a word of how the run ended.
    Lost,
    /// There is a shard, which has been taken, or there cannot be one, and the run is to end like this.
    Prepared(Result<Holding, Outcome>),
    /// The process is to end like this: it was told to stop, or what it was started for has failed.
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

/// What a server is to do.
#[derive(Debug)]
pub enum ServerEffect {
    /// Say who is waited for.
    Mention(Waiting),
    /// Let go of the shard and of what writes it, and begin to allocate or restore another.
    Prepare(Box<Prepare>),
    /// Tell the coordinator.
    Send(task_message::Kind),
    /// Mark where the shard stands, and tell the coordinator.
    Mark(u64),
    /// Cut the shard and write its part.
    Cut(Cut),
    /// Give up the cut and the part of this number.
    Abandon(u64),
    /// Take pushes of this process of a worker, and of none before it. It starts at this clock.
    Join(WorkerId, Incarnation, u64),
    /// Wait no more for this process of a worker.
    Leave(WorkerId, Incarnation),
    /// Say goodbye on the session and wait for a moment until that has been heard.
    CloseSession,
    /// End like this.
    End(Outcome),
}

/// A shard that is being allocated or restored.
#[derive(Debug)]
struct PendingShard {
    /// Of the message that asked for it.
    number: u64,
    /// What the coordinator has said meanwhile about the shard.
    deferred: Vec<Kind>,
}

/// A server that was told to stop waits to hear how the run ends.
#[derive(Debug)]
struct Leaving {
    /// For how long it stays without a word.
    patience: Duration,
    /// When it last heard one.
    since: Duration,
    /// How it ends if none comes.
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

    /// Takes an event, and says what is to be done, in this order.
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
                // What concerns the shard is done when there is one.
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

    /// Says goodbye, or what has failed, and stays until the coordinator has ended the run: a last checkpoint may have to
    /// be written. The run continues without a server that holds nothing.
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

    /// Tells the coordinator, and does what has come meanwhile.
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

    /// What the coordinator says about the shard. Without one there is nothing to do.
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

/// Tells the coordinator that the run is to end like this, because of the `Prepare` of this number or, if that is zero, of
/// something else in this process.
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
