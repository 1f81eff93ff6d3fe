//! Determines whether a run holds a store, without claiming it.

use std::time::Duration;

use crate::error::CheckpointError;
use crate::holder::{Holder, Life};
use crate::lease::STALE;
use crate::store::Store;

/// Who holds a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occupancy {
    /// No run: the last one has ended or died, or there was none.
    Free,
    /// A living process of this machine holds it.
    Held(Holder),
    /// A process of another machine holds it, and may or may not be alive: see [`Store::lease`].
    Elsewhere(Holder),
}

impl Store {
    /// Returns who holds this store. Does not determine whether a process of another machine is alive.
    pub async fn occupancy(&self) -> Result<Occupancy, CheckpointError> {
        let newest = self.newest_generation().await?;
        let Some(claim) = self.read_claim(newest).await?.filter(|claim| !claim.released) else {
            return Ok(Occupancy::Free);
        };
        Ok(match claim.holder.life_seen_by(&Holder::this_process("")) {
            Life::Alive => Occupancy::Held(claim.holder),
            Life::Replaced => Occupancy::Free,
            Life::Unknown => Occupancy::Elsewhere(claim.holder),
        })
    }

    /// Like `occupancy`, but watches a process of another machine for some seconds: if it does not renew its claim, the
    /// store is free.
    pub async fn watched_occupancy(&self) -> Result<Occupancy, CheckpointError> {
        self.occupancy_after(STALE).await
    }

    async fn occupancy_after(&self, stale: Duration) -> Result<Occupancy, CheckpointError> {
        let holder = match self.occupancy().await? {
            Occupancy::Elsewhere(holder) => holder,
            known => return Ok(known),
        };
        let newest = self.newest_generation().await?;
        let Some(claim) = self.read_claim(newest).await? else { return Ok(Occupancy::Free) };
        match self.check_free(newest, &claim, &Holder::this_process(""), stale).await {
            Ok(()) => Ok(Occupancy::Free),
            Err(CheckpointError::Held { .. }) => Ok(Occupancy::Elsewhere(holder)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_parent() -> Holder {
        let parent = std::os::unix::process::parent_id();
        let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).unwrap();
        let began = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        Holder { pid: parent, began, ..Holder::this_process("127.0.0.1:2222") }
    }

    #[tokio::test]
    async fn a_store_is_held_from_the_lease_of_a_living_process_to_its_release() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().to_str().unwrap()).unwrap();
        assert_eq!(store.occupancy().await.unwrap(), Occupancy::Free);
        let mut lease = store.lease(of_parent(), false).await.unwrap();
        assert_eq!(store.occupancy().await.unwrap(), Occupancy::Held(of_parent()));
        lease.release().await.unwrap();
        assert_eq!(store.occupancy().await.unwrap(), Occupancy::Free);
    }

    #[tokio::test]
    async fn a_dead_process_holds_nothing_and_one_of_another_machine_may() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().to_str().unwrap()).unwrap();
        let dead = Holder { began: of_parent().began + 1, ..of_parent() };
        store.lease(dead, false).await.unwrap();
        assert_eq!(store.occupancy().await.unwrap(), Occupancy::Free);
        let elsewhere = Holder { process_table: "another machine".into(), ..of_parent() };
        let mut lease = store.lease(elsewhere.clone(), false).await.unwrap();
        assert_eq!(store.occupancy().await.unwrap(), Occupancy::Elsewhere(elsewhere.clone()));
        let brief = Duration::from_millis(200);
        assert_eq!(store.occupancy_after(brief).await.unwrap(), Occupancy::Free, "it renews nothing");
        let renewing = async {
            tokio::time::sleep(brief / 4).await;
            lease.renew().await.unwrap();
        };
        let (occupancy, ()) = tokio::join!(store.occupancy_after(100 * brief), renewing);
        assert_eq!(occupancy.unwrap(), Occupancy::Elsewhere(elsewhere));
    }
}
