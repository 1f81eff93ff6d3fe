//! The notes that workers need in order to resume from a state of the parameters.
//!
//! A note belongs to a push: the process that resumes after that push gets it. Whether a worker's last push is in the
//! parameters is often not known yet, so the note of the push before it is kept, too.

use std::collections::BTreeMap;

use crate::checkpoint::{Notes, Pushes};
use crate::cluster::WorkerId;
use crate::ledger::Incarnation;

/// The notes of each worker's last two pushes.
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

    /// The notes of these pushes; where a note has not arrived, that of the push before it.
    pub(super) fn of(&self, pushes: &Pushes) -> Notes {
        let note_of = |(worker, (incarnation, sequence)): (&WorkerId, &(Incarnation, u64))| {
            let mut noted = self.0.get(worker)?.iter().flatten();
            let noted = noted.find(|Noted { push, .. }| push.0 == *incarnation && push.1 <= *sequence)?;
            Some((*worker, noted.note.clone()))
        };
        pushes.iter().filter_map(note_of).collect()
    }
}
