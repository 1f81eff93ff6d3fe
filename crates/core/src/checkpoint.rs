//! The cut of a checkpoint, which all servers agree on, and how far one has come (`cycle`).
//!
//! Servers are first asked to *mark* where they stand and to hold back new updates. From their marks follows the *cut*:
//! in sync mode the latest round that any server has applied or is applying, otherwise for each worker the latest push
//! that any server has admitted. Each server then snapshots exactly that state and continues. As a worker has one push
//! on its way at a time, no server is more than one behind the cut, and what it lacks is already coming.

mod cycle;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cluster::{ServerId, WorkerId};
use crate::ledger::Incarnation;
pub use cycle::{Cycle, CycleRun, Next, Policy, Setback, SetbackKind};

/// How long servers may hold back updates for a cut. An update is never held longer, come what may.
pub const HOLD: Duration = Duration::from_millis(40);

/// The last push of each worker that is in a state of the parameters.
pub type Pushes = BTreeMap<WorkerId, (Incarnation, u64)>;

/// What each worker has sent along with that push: what it wants back if it has to go on from there, as JSON.
pub type Notes = BTreeMap<WorkerId, String>;

/// How far the workers are in a state of the parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// How many updates the parameters have had.
    pub version: u64,
    /// The last push of each.
    pub pushes: Pushes,
    /// What came with it, on the first server.
    pub notes: Notes,
    /// Those who have one push more in the round that is open, which makes the next version, and what came with it.
    pub in_open_round: Notes,
}

/// Where a server stands, or is to be cut: a state of its parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutPoint {
    /// How many updates its parameters have had.
    pub version: u64,
    /// Which pushes are in them.
    pub pushes: Pushes,
}

impl CutPoint {
    /// The latest of both, in everything.
    fn merge(&mut self, other: &CutPoint) {
        self.version = self.version.max(other.version);
        for (worker, push) in &other.pushes {
            let latest = self.pushes.entry(*worker).or_default();
            *latest = (*latest).max(*push);
        }
    }
}

/// Where all servers are cut, given where they stand.
fn cut(marks: &BTreeMap<ServerId, CutPoint>, rounds: bool) -> CutPoint {
    let mut cut = CutPoint::default();
    marks.values().for_each(|mark| cut.merge(mark));
    if !rounds && let Some(mark) = marks.values().next() {
        // Every push is an update: those that this server lacks are on their way to it.
        let lacking =
            |(worker, (incarnation, sequence)): (&WorkerId, &(Incarnation, u64))| match mark.pushes.get(worker) {
                Some((here, had)) if here == incarnation => sequence - had,
                _ => *sequence,
            };
        cut.version = mark.version + cut.pushes.iter().map(lacking).sum::<u64>();
    }
    cut
}
