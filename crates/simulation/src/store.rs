//! A checkpoint store in memory, which can fail, fill up or hang.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_checkpoint::{CheckpointError, CheckpointId, Ending, Manifest, RunEnd};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::Outcome;
use windlass_core::limits::Limits;
use windlass_server::coordinator::Beginning;
use windlass_server::{generation_of, judge_end};

use crate::shard::Values;

/// The location of the store.
pub const LOCATION: &str = "store";

/// A failure of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The store accepts no writes.
    Full,
    /// The store does not answer.
    Hangs,
    /// The store accepts parts, but manifests only later.
    SlowToPublish,
    /// Nothing can be read or listed.
    Unreadable,
}

/// A claimed generation.
#[derive(Debug, Clone, Default)]
struct Claim {
    /// How the claim's run ended, once the claim is released.
    ending: Option<Ending>,
    first_generation: u64,
}

/// A checkpoint store.
#[derive(Debug, Default)]
pub struct Store {
    parts: BTreeMap<String, Vec<Values>>,
    manifests: BTreeMap<CheckpointId, Manifest>,
    claims: BTreeMap<u64, Claim>,
    trouble: Option<(Trouble, Duration)>,
    disowned: BTreeSet<CheckpointId>,
    /// True if a run could not begin because the store could not be read.
    pub kept_a_run_from_beginning: bool,
}

impl Store {
    /// Makes the store fail in this way until then.
    pub fn fail(&mut self, trouble: Trouble, until: Duration) {
        self.trouble = Some((trouble, until));
    }

    /// The earliest time at which an operation that starts now can finish, and whether it fails.
    pub fn outlook(&self, now: Duration) -> (Duration, bool) {
        match self.trouble {
            Some((Trouble::Hangs, until)) if until > now => (until, false),
            Some((Trouble::Full, until)) if until > now => (now, true),
            _ => (now, false),
        }
    }

    /// The earliest time at which a manifest that is submitted now can be accepted.
    pub fn takes_manifests_from(&self, now: Duration) -> Duration {
        match self.trouble {
            Some((Trouble::SlowToPublish, until)) => until.max(now),
            _ => now,
        }
    }

    /// True if reading fails now.
    pub fn is_unreadable(&self, now: Duration) -> bool {
        matches!(self.trouble, Some((Trouble::Unreadable, until)) if until > now)
    }

    /// Abandons a checkpoint that is being published.
    pub fn disown(&mut self, id: CheckpointId) {
        self.disowned.insert(id);
    }

    /// Claims the next generation. Returns its number and, of the claim before it, the first generation and whether it
    /// crashed. Every coordinator after the first is a restarted one, so its claim says that it continues the run.
    pub fn claim(&mut self) -> (u64, Option<(u64, bool)>) {
        let last = self.claims.last_key_value().map(|(_, claim)| (claim.first_generation, claim.ending.is_none()));
        let generation = self.newest_generation() + 1;
        let first_generation = last.map_or(generation, |(first_generation, _)| first_generation);
        self.claims.insert(generation, Claim { ending: None, first_generation });
        (generation, last)
    }

    /// The generation claimed last.
    pub fn newest_generation(&self) -> u64 {
        self.claims.last_key_value().map_or(0, |(generation, _)| *generation)
    }

    /// Records in a claim the generation in which its run began.
    pub fn began_in(&mut self, generation: u64, first: u64) {
        if let Some(claim) = self.claims.get_mut(&generation) {
            claim.first_generation = first;
        }
    }

    /// Releases the claim of a run that has ended with this outcome.
    pub fn release(&mut self, generation: u64, Outcome { exit_code, reason }: Outcome) {
        if let Some(claim) = self.claims.get_mut(&generation) {
            claim.ending = Some(Ending { exit_code, reason });
        }
    }

    /// True if a claim was released.
    pub fn is_released(&self, generation: u64) -> bool {
        self.claims.get(&generation).is_some_and(|claim| claim.ending.is_some())
    }

    /// What a coordinator of this generation begins from. `followed` is the claim before it, if any.
    pub fn find(&self, generation: u64, followed: Option<(u64, bool)>) -> Beginning {
        let (first_generation, crashed) = followed.unwrap_or((generation, false));
        let found = self.newest(first_generation);
        let finished = crashed && found.as_ref().is_some_and(|found| found.last);
        Beginning { location: LOCATION.to_owned(), found, first_generation, finished }
    }

    /// What a run rolls back to.
    pub fn find_again(&self, first: Beginning) -> Beginning {
        let found = self.newest(first.first_generation).or(first.found.clone());
        Beginning { found, finished: false, ..first }
    }

    fn newest(&self, since: u64) -> Option<Manifest> {
        self.manifests.values().rev().find(|manifest| manifest.id.generation >= since).cloned()
    }

    /// Stores a part.
    pub fn write(&mut self, object: String, blocks: Vec<Values>) {
        self.parts.insert(object, blocks);
    }

    /// Removes a part.
    pub fn discard(&mut self, object: &str) {
        self.parts.remove(object);
    }

    /// The blocks of a part.
    pub fn part(&self, object: &str) -> Option<&Vec<Values>> {
        self.parts.get(object)
    }

    /// The manifest of a checkpoint.
    pub fn manifest(&self, id: &str) -> Option<&Manifest> {
        self.manifests.values().find(|manifest| manifest.id.to_string() == id)
    }

    /// Publishes a checkpoint, unless a later coordinator has claimed the store or the checkpoint was abandoned.
    pub fn publish(&mut self, manifest: Manifest) -> Result<CheckpointId, CheckpointError> {
        let (generation, newest) = (manifest.id.generation, self.newest_generation());
        if newest > generation {
            return Err(CheckpointError::Fenced { generation, newest });
        }
        let id = manifest.id;
        if self.disowned.contains(&id) {
            return Err(CheckpointError::GivenUp { id });
        }
        self.manifests.insert(id, manifest);
        Ok(id)
    }

    /// What the store reports to a task that has missed the end of its run of this many steps.
    pub fn outcome(&self, incarnation: Option<Incarnation>, steps: u64) -> Option<Outcome> {
        let (newest, claim) = self.claims.last_key_value().filter(|(_, claim)| claim.ending.is_some())?;
        let generations = claim.first_generation..=*newest;
        if incarnation.is_some_and(|incarnation| !generations.contains(&generation_of(incarnation))) {
            return None;
        }
        let end = RunEnd { newest: self.newest(claim.first_generation), ending: claim.ending.clone() };
        judge_end(&end, incarnation.is_some(), Limits { steps: Some(steps), epochs: None }, LOCATION)
    }
}

/// The error of a full store.
pub fn full() -> CheckpointError {
    CheckpointError::Full { location: LOCATION.to_owned(), object: "part".to_owned() }
}

/// The error of a store that cannot be read.
pub fn unreadable() -> CheckpointError {
    let (location, object, reason) = (LOCATION.to_owned(), "/".to_owned(), "it is not there".to_owned());
    CheckpointError::Store { location, action: "list", object, reason }
}
