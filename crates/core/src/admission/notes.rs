//! What workers need in order to continue from here.
//!
//! A note belongs to a push: the process that continues after that push gets it. Whether a worker's last push is in the
//! parameters is often not known yet, so the note of the push before it is kept, too.

use std::collections::BTreeMap;

use crate::checkpoint::{Notes, Pushes};
use crate::cluster::WorkerId;
use crate::ledger::Incarnation;

/// The notes that came with the last two pushes of each worker.
#[derive(Debug, Default)]
pub(super) struct LastNotes(BTreeMap<WorkerId, [Option<Noted>; 2]>);

#[derive(Debug)]
struct Noted {
    push: (Incarnation, u64),
    note: String,
}

impl LastNotes {
    /// Remembers the note of a worker's new push.
    pub(super) fn add(&mut self, worker: WorkerId, push: (Incarnation, u64), note: String) {
        let [last, before] = self.0.entry(worker).or_default();
        *before = last.replace(Noted { push, note });
    }

    /// The notes of these pushes, or of those before them where they have not come.
    pub(super) fn of(&self, pushes: &Pushes) -> Notes {
        let note_of = |(worker, (incarnation, sequence)): (&WorkerId, &(Incarnation, u64))| {
            let mut noted = self.0.get(worker)?.iter().flatten();
            let noted = noted.find(|Noted { push, .. }| push.0 == *incarnation && push.1 <= *sequence)?;
            Some((*worker, noted.note.clone()))
        };
        pushes.iter().filter_map(note_of).collect()
    }
}
