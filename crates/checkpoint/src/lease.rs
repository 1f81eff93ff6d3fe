//! The lease on a store: a living run renews its claim of a generation, so that a second run on the same checkpoints
//! notices the first.
//!
//! Nothing depends on synchronised clocks: on the same machine the process table shows whether a holder is alive; on
//! another machine its claim is watched for renewals. The checkpoints themselves are protected by the generation (see
//! `generation`); the lease only prevents accidental takeovers.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::info;

use crate::error::CheckpointError;
use crate::generation::{CLAIMS, generation_object};
use crate::holder::{Holder, Life};
use crate::manifest::Manifest;
use crate::store::Store;

/// How often a holder renews its claim.
pub const RENEW_EVERY: Duration = Duration::from_secs(3);
/// A claim that is watched and not renewed for this long is taken over.
pub(crate) const STALE: Duration = Duration::from_secs(12);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The content of a claimed generation's object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) holder: Holder,
    /// Raised with every renewal.
    renewals: u64,
    /// True once its run has ended.
    pub(crate) released: bool,
    /// The generation in which the run began.
    first_generation: u64,
    /// How the run ended. Claims of earlier versions do not have it.
    ending: Option<Ending>,
}

/// How a run ended, as its last coordinator told all tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The exit code of all tasks.
    pub exit_code: u8,
    /// The reason, if the run did not end well.
    pub reason: String,
}

/// A generation that was claimed, to be renewed every [`RENEW_EVERY`] and released at the end.
#[derive(Debug, Clone)]
pub struct Lease {
    store: Store,
    generation: u64,
    claim: Claim,
    followed: Option<Followed>,
}

/// The run that held the store before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed {
    /// The generation in which it began.
    pub first_generation: u64,
    /// True if its holder died, or was taken over, without having ended it.
    pub crashed: bool,
}

/// The newest claim of a store: while a run lives, it changes every [`RENEW_EVERY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// The generation that was claimed.
    pub generation: u64,
    /// How often the claim was renewed.
    pub renewals: u64,
    /// True once its run has ended.
    pub released: bool,
}

/// The end of a run, as its store records it.
#[derive(Debug)]
pub struct RunEnd {
    /// The newest whole checkpoint that it left, if any.
    pub newest: Option<Manifest>,
    /// How it ended, if its coordinator has recorded that.
    pub ending: Option<Ending>,
}

impl RunEnd {
    /// Returns the last step of a run that completed; `None` if it was stopped or failed.
    pub fn finished_at(&self) -> Option<u64> {
        self.newest.as_ref().filter(|manifest| manifest.last).map(|manifest| manifest.id.step)
    }
}

impl Store {
    /// Returns how the run of this generation ended or, without a generation, the last run of this store. `None` if it
    /// has not ended, or another run has begun since.
    pub async fn run_end(&self, generation: Option<u64>) -> Result<Option<RunEnd>, CheckpointError> {
        let newest = self.newest_generation().await?;
        let Some(claim) = self.read_claim(newest).await?.filter(|claim| claim.released) else { return Ok(None) };
        if generation.is_some_and(|generation| !(claim.first_generation..=newest).contains(&generation)) {
            return Ok(None);
        }
        let found = self.newest_whole().await?.manifest;
        let newest = found.filter(|manifest| manifest.id.generation >= claim.first_generation);
        Ok(Some(RunEnd { newest, ending: claim.ending }))
    }

    /// The newest claim; `None` if there is none, or it cannot be read.
    pub async fn pulse(&self) -> Result<Option<Pulse>, CheckpointError> {
        let generation = self.newest_generation().await?;
        let pulse = |claim: Claim| Pulse { generation, renewals: claim.renewals, released: claim.released };
        Ok(self.read_claim(generation).await?.map(pulse))
    }

    /// True if the last run that claimed this store has not ended: it lives, or its coordinator was killed.
    pub async fn has_unfinished_run(&self) -> Result<bool, CheckpointError> {
        let newest = self.newest_generation().await?;
        Ok(self.read_claim(newest).await?.is_some_and(|claim| !claim.released))
    }

    /// Claims the next generation for a run, unless another run holds the store and lives. With `insist` that run is
    /// taken over.
    pub async fn lease(&self, holder: Holder, insist: bool) -> Result<Lease, CheckpointError> {
        self.lease_after(holder, insist, false, STALE).await
    }

    /// Like [`Store::lease`], for a restarted process that continues its run. Its claim records that from the start: if
    /// it dies before it has found the run's checkpoints, the next process must not mistake the run for a new one.
    pub async fn lease_again(&self, holder: Holder, insist: bool) -> Result<Lease, CheckpointError> {
        self.lease_after(holder, insist, true, STALE).await
    }

    /// Like [`Store::lease`], or [`Store::lease_again`] if `goes_on`. A holder on another machine is watched for
    /// `stale`.
    async fn lease_after(
        &self,
        holder: Holder,
        insist: bool,
        goes_on: bool,
        stale: Duration,
    ) -> Result<Lease, CheckpointError> {
        for _ in 0..CLAIMS {
            // Claim exactly the generation after the one that was checked: if another run is faster, its claim is
            // checked next.
            let newest = self.newest_generation().await?;
            let generation = self.generation_after(newest).await?;
            let held = self.read_claim(newest).await?;
            if let Some(claim) = held.as_ref().filter(|claim| !insist && !claim.released) {
                self.check_free(newest, claim, &holder, stale).await?;
            }
            let before = held.as_ref().filter(|_| goes_on).map(|claim| claim.first_generation);
            let first_generation = before.unwrap_or(generation);
            let claim = Claim { holder: holder.clone(), first_generation, ..Claim::default() };
            if self.create(&generation_object(generation), claim.to_json()).await? {
                let followed =
                    held.map(|claim| Followed { first_generation: claim.first_generation, crashed: !claim.released });
                return Ok(Lease { store: self.clone(), generation, claim, followed });
            }
        }
        Err(self.outrun())
    }

    /// Fails if the holder of a claim is alive. Finding out may mean watching it for a while.
    pub(crate) async fn check_free(
        &self,
        generation: u64,
        claim: &Claim,
        by: &Holder,
        stale: Duration,
    ) -> Result<(), CheckpointError> {
        let held = || CheckpointError::Held {
            location: self.location.clone(),
            holder: claim.holder.describe(),
            since: claim.holder.since,
        };
        match claim.holder.life_seen_by(by) {
            Life::Replaced => return Ok(()),
            Life::Alive => return Err(held()),
            Life::Unknown => {}
        }
        let holder = claim.holder.describe();
        info!("`{}` was last held by {holder}: watching for {stale:?} to see whether it is alive", self.location);
        let until = Instant::now() + stale;
        while Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY.min(stale / 10)).await;
            match self.read_claim(generation).await? {
                Some(now) if now.released => return Ok(()),
                Some(now) if now.renewals > claim.renewals => return Err(held()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the claim of a generation; `None` if there is none, or if it was written by a version that had no leases.
    pub(crate) async fn read_claim(&self, generation: u64) -> Result<Option<Claim>, CheckpointError> {
        let bytes = self.read(&generation_object(generation)).await?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}

impl Lease {
    /// The generation that was claimed.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the run that held the store before, if there was one.
    pub fn followed(&self) -> Option<Followed> {
        self.followed
    }

    /// Records that the run began in an earlier generation. This is written with the next renewal.
    pub fn set_first_generation(&mut self, generation: u64) {
        self.claim.first_generation = generation;
    }

    /// Shows that the run is alive. Fails with [`CheckpointError::Fenced`] if another has taken over.
    pub async fn renew(&mut self) -> Result<(), CheckpointError> {
        self.store.check_generation(self.generation).await?;
        self.claim.renewals += 1;
        self.store.replace(&generation_object(self.generation), self.claim.to_json()).await
    }

    /// Records how the run ended. This is written when the lease is released.
    pub fn set_ending(&mut self, ending: Ending) {
        self.claim.ending = Some(ending);
    }

    /// Records that the run has ended, so that the next need not wait.
    pub async fn release(&mut self) -> Result<(), CheckpointError> {
        self.claim.released = true;
        self.renew().await
    }
}

impl Claim {
    fn to_json(&self) -> Bytes {
        serde_json::to_vec(self).expect("plain data are JSON").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) const STALE: Duration = Duration::from_millis(300);

    fn store() -> Store {
        Store::open("memory:///").unwrap()
    }

    /// A process on another machine.
    fn elsewhere(pid: u32) -> Holder {
        let process_table = format!("machine {pid}");
        Holder { host: "far-away".into(), pid, process_table, since: 1_800_000_000, ..Holder::default() }
    }

    /// A process of this machine that has ended.
    fn dead() -> Holder {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        Holder { pid, ..Holder::this_process("") }
    }

    /// A process of this machine that lives: the one that started the tests.
    fn alive() -> Holder {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", std::os::unix::process::parent_id())).unwrap();
        let began = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        Holder { pid: std::os::unix::process::parent_id(), began, ..Holder::this_process("") }
    }

    #[tokio::test]
    async fn a_store_that_a_living_process_holds_is_refused_by_its_name_and_since_when() {
        let store = store();
        let holder = Holder { since: 1_800_000_000, ..alive() };
        store.lease(holder.clone(), false).await.unwrap();
        let error = store.lease(Holder::this_process(""), false).await.unwrap_err().to_string();
        assert!(error.contains(&format!("process {} on {}", holder.pid, holder.host)), "{error}");
        assert!(error.contains("since 2027-01-15 08:00:00 UTC") && error.contains("--take-over"), "{error}");
        assert_eq!(store.newest_generation().await.unwrap(), 1, "nothing was claimed");
    }

    #[tokio::test]
    async fn the_pulse_changes_with_every_renewal_and_says_when_the_run_has_ended() {
        let store = store();
        assert_eq!(store.pulse().await.unwrap(), None);
        let mut lease = store.lease(alive(), false).await.unwrap();
        let claimed = store.pulse().await.unwrap();
        lease.renew().await.unwrap();
        let renewed = store.pulse().await.unwrap();
        assert!(claimed.is_some() && renewed != claimed && renewed.is_some_and(|pulse| !pulse.released));
        lease.release().await.unwrap();
        assert!(store.pulse().await.unwrap().is_some_and(|pulse| pulse.released));
    }

    #[tokio::test]
    async fn a_lease_that_is_released_says_how_its_run_ended() {
        let store = store();
        let mut lease = store.lease(alive(), false).await.unwrap();
        let ending = Ending { exit_code: 143, reason: "ps 1 was told to stop".into() };
        lease.set_ending(ending.clone());
        lease.renew().await.unwrap();
        assert!(store.run_end(None).await.unwrap().is_none(), "it lives");
        lease.release().await.unwrap();
        assert_eq!(store.run_end(None).await.unwrap().unwrap().ending, Some(ending));
    }

    #[test]
    fn a_claim_of_an_earlier_version_is_read() {
        let mut json = serde_json::to_value(Claim::default()).unwrap();
        json.as_object_mut().unwrap().remove("ending");
        assert_eq!(serde_json::from_value::<Claim>(json).unwrap(), Claim::default());
    }

    #[tokio::test]
    async fn a_living_run_is_taken_over_by_one_that_insists_and_finds_out() {
        let store = store();
        let mut first = store.lease(alive(), false).await.unwrap();
        first.renew().await.unwrap();
        let second = store.lease(Holder::this_process(""), true).await.unwrap();
        let followed = Some(Followed { first_generation: 1, crashed: true });
        assert_eq!((first.generation(), second.generation(), second.followed()), (1, 2, followed));
        assert!(matches!(first.renew().await, Err(CheckpointError::Fenced { generation: 1, newest: 2 })));
    }

    #[tokio::test]
    async fn a_run_that_crashed_or_ended_keeps_nobody_waiting() {
        let store = store();
        store.lease(dead(), false).await.unwrap();
        let mut second = store.lease(alive(), false).await.unwrap();
        second.release().await.unwrap();
        assert_eq!(store.lease(Holder::this_process(""), false).await.unwrap().generation(), 3);
    }

    #[tokio::test]
    async fn a_store_tells_that_its_run_has_ended_and_no_earlier_or_later_one() {
        let store = store();
        assert!(store.run_end(None).await.unwrap().is_none(), "there is none");
        let mut first = store.lease(dead(), false).await.unwrap();
        assert!(store.run_end(Some(1)).await.unwrap().is_none(), "it lives");
        first.release().await.unwrap();
        let end = store.run_end(Some(1)).await.unwrap().unwrap();
        assert_eq!(end.finished_at(), None, "it left no checkpoint");
        assert!(store.run_end(None).await.unwrap().is_some());
        let mut second = store.lease(dead(), false).await.unwrap();
        second.renew().await.unwrap();
        assert!(store.run_end(Some(1)).await.unwrap().is_none(), "who knows whether the second goes on with it");
        second.release().await.unwrap();
        assert!(store.run_end(Some(1)).await.unwrap().is_none(), "it did not");
        let mut third = store.lease(dead(), false).await.unwrap();
        assert!(third.followed().is_some_and(|followed| !followed.crashed));
        third.set_first_generation(2);
        third.release().await.unwrap();
        assert!(store.run_end(Some(2)).await.unwrap().is_some(), "the third did");
    }

    #[tokio::test]
    async fn a_run_whose_holder_is_started_again_twice_still_began_when_it_began() {
        let store = store();
        store.lease(dead(), false).await.unwrap();
        // Dies before it can say in which generation its run began.
        store.lease_again(dead(), false).await.unwrap();
        let third = store.lease_again(dead(), false).await.unwrap();
        assert_eq!(third.followed(), Some(Followed { first_generation: 1, crashed: true }));
    }

    #[tokio::test]
    async fn a_run_elsewhere_lives_if_it_renews_its_claim() {
        let store = store();
        let mut first = store.lease(elsewhere(1), false).await.unwrap();
        let renewing = tokio::spawn(async move {
            while first.renew().await.is_ok() {
                tokio::time::sleep(STALE / 10).await;
            }
        });
        let error = store.lease_after(elsewhere(2), false, false, Duration::from_secs(60)).await.unwrap_err();
        assert!(error.to_string().contains("process 1 on far-away"), "{error}");
        renewing.abort();
        let _ = renewing.await;
        store.lease_after(elsewhere(2), false, false, STALE).await.unwrap();
    }

    #[tokio::test]
    async fn of_two_runs_that_watch_the_same_dead_one_the_second_finds_the_first_alive() {
        let store = store();
        store.lease(elsewhere(1), false).await.unwrap();
        let (watching, first) = (store.clone(), alive());
        let second =
            tokio::spawn(async move { watching.lease_after(Holder::this_process(""), false, false, STALE).await });
        tokio::time::sleep(STALE / 10).await;
        let won = store.lease(first, true).await.unwrap();
        let refused = second.await.unwrap().unwrap_err();
        assert!(matches!(refused, CheckpointError::Held { .. }), "{refused}");
        assert_eq!(store.newest_generation().await.unwrap(), won.generation());
    }

    #[tokio::test]
    async fn a_claim_of_a_version_without_leases_holds_nobody_up() {
        let store = store();
        store.create(&generation_object(1), Bytes::from_static(b"claimed\n")).await.unwrap();
        let lease = store.lease(alive(), false).await.unwrap();
        assert_eq!((lease.generation(), lease.followed()), (2, None));
    }
}
