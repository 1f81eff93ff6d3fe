//! The cut of a checkpoint, which all servers agree on, and the progress of a checkpoint (`cycle`).
//!
//! Servers are first asked to *mark* where they stand and to hold back new updates. The *cut* follows from their marks:
//! in sync mode the latest round that any server has applied or is applying, otherwise for each worker the latest push
//! that any server has admitted. Each server then snapshots exactly that state and continues. A worker has only one
//! push in flight, so no server is more than one behind the cut, and what it lacks is already on its way.

mod cycle;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cluster::{ServerId, WorkerId};
use crate::ledger::Incarnation;
pub use cycle::{Cycle, CycleRun, Next, Policy, Setback, SetbackKind};

/// How long servers may hold back updates for a cut. No update is ever held longer.
pub const HOLD: Duration = Duration::from_millis(40);

/// Each worker's last push in a state of the parameters.
pub type Pushes = BTreeMap<WorkerId, (Incarnation, u64)>;

/// The note that each worker sent with that push, as JSON: what it needs if it has to resume from there.
pub type Notes = BTreeMap<WorkerId, String>;

/// How far the workers are in a state of the parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// How many updates the parameters have had.
    pub version: u64,
    /// The last push of each worker.
    pub pushes: Pushes,
    /// The notes that came with them, on the first server.
    pub notes: Notes,
    /// The workers that have one more push in the open round, which makes the next version, and the notes of those
    /// pushes.
    pub in_open_round: Notes,
}

/// A state of a server's parameters: where it stands, or where it is to be cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutPoint {
    /// How many updates its parameters have had.
    pub version: u64,
    /// The pushes that are in them.
    pub pushes: Pushes,
}

impl CutPoint {
    /// Raises the version and the pushes to the later of both points.
    fn merge(&mut self, other: &CutPoint) {
        self.version = self.version.max(other.version);
        for (worker, push) in &other.pushes {
            let latest = self.pushes.entry(*worker).or_default();
            *latest = (*latest).max(*push);
        }
    }
}

/// The point at which all servers are cut, given their marks.
fn cut(marks: &BTreeMap<ServerId, CutPoint>, rounds: bool) -> CutPoint {
    let mut cut = CutPoint::default();
    marks.values().for_each(|mark| cut.merge(mark));
    if !rounds && let Some(mark) = marks.values().next() {
        // Every push is an update: the pushes that this server lacks are on their way to it.
        let lacking =
            |(worker, (incarnation, sequence)): (&WorkerId, &(Incarnation, u64))| match mark.pushes.get(worker) {
                Some((here, had)) if here == incarnation => sequence - had,
                _ => *sequence,
            };
        cut.version = mark.version + cut.pushes.iter().map(lacking).sum::<u64>();
    }
    cut
}
