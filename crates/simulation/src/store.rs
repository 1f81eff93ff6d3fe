//! A checkpoint store in memory, which can fail, fill up or hang.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_checkpoint::{CheckpointError, CheckpointId, Manifest};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_server::coordinator::Beginning;
use windlass_server::generation_of;

use crate::shard::Values;

/// Where the store is.
pub const LOCATION: &str = "store";

/// What is wrong with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It takes nothing.
    Full,
    /// It does not answer.
    Hangs,
}

/// A claimed generation.
#[derive(Debug, Clone, Copy, Default)]
struct Claim {
    released: bool,
    first_generation: u64,
}

/// A checkpoint store.
#[derive(Debug, Default)]
pub struct Store {
    parts: BTreeMap<String, Vec<Values>>,
    manifests: BTreeMap<CheckpointId, Manifest>,
    claims: BTreeMap<u64, Claim>,
    trouble: Option<(Trouble, Duration)>,
}

impl Store {
    /// Something is wrong until then.
    pub fn fail(&mut self, trouble: Trouble, until: Duration) {
        self.trouble = Some((trouble, until));
    }

    /// When an operation that is begun now can be over at the earliest, and whether it fails.
    pub fn outlook(&self, now: Duration) -> (Duration, bool) {
        match self.trouble {
            Some((Trouble::Hangs, until)) if until > now => (until, false),
            Some((Trouble::Full, until)) if until > now => (now, true),
            _ => (now, false),
        }
    }

    /// Claims the next generation: its number, and the claim before it as first generation and whether it crashed. As
    /// every coordinator after the first was started again, its claim says that it goes on with the run.
    pub fn claim(&mut self) -> (u64, Option<(u64, bool)>) {
        let last = self.claims.last_key_value().map(|(_, claim)| (claim.first_generation, !claim.released));
        let generation = self.newest_generation() + 1;
        let first_generation = last.map_or(generation, |(first_generation, _)| first_generation);
        self.claims.insert(generation, Claim { released: false, first_generation });
        (generation, last)
    }

    /// The generation that was claimed last.
    pub fn newest_generation(&self) -> u64 {
        self.claims.last_key_value().map_or(0, |(generation, _)| *generation)
    }

    /// Notes with a claim in which generation its run began.
    pub fn began_in(&mut self, generation: u64, first: u64) {
        if let Some(claim) = self.claims.get_mut(&generation) {
            claim.first_generation = first;
        }
    }

    /// Releases a claim.
    pub fn release(&mut self, generation: u64) {
        if let Some(claim) = self.claims.get_mut(&generation) {
            claim.released = true;
        }
    }

    /// True if a claim was released.
    pub fn is_released(&self, generation: u64) -> bool {
        self.claims.get(&generation).is_some_and(|claim| claim.released)
    }

    /// What a coordinator of a generation begins from that followed another.
    pub fn find(&self, generation: u64, followed: Option<(u64, bool)>) -> Beginning {
        let (first_generation, crashed) = followed.unwrap_or((generation, false));
        let found = self.newest(first_generation);
        let finished = crashed && found.as_ref().is_some_and(|found| found.last);
        Beginning { location: LOCATION.to_owned(), found, first_generation, finished }
    }

    /// What a run goes back to.
    pub fn find_again(&self, first: Beginning) -> Beginning {
        let found = self.newest(first.first_generation).or(first.found.clone());
        Beginning { found, finished: false, ..first }
    }

    fn newest(&self, since: u64) -> Option<Manifest> {
        self.manifests.values().rev().find(|manifest| manifest.id.generation >= since).cloned()
    }

    /// Keeps a part.
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

    /// A checkpoint.
    pub fn manifest(&self, id: &str) -> Option<&Manifest> {
        self.manifests.values().find(|manifest| manifest.id.to_string() == id)
    }

    /// Publishes a checkpoint, unless a later coordinator has claimed the store.
    pub fn publish(&mut self, manifest: Manifest) -> Result<CheckpointId, CheckpointError> {
        let (generation, newest) = (manifest.id.generation, self.newest_generation());
        if newest > generation {
            return Err(CheckpointError::Fenced { generation, newest });
        }
        let id = manifest.id;
        self.manifests.insert(id, manifest);
        Ok(id)
    }

    /// What the store tells a task that has missed the end of its run of so many steps.
    pub fn outcome(&self, incarnation: Option<Incarnation>, steps: u64) -> Option<Outcome> {
        let (newest, claim) = self.claims.last_key_value().filter(|(_, claim)| claim.released)?;
        let last =
            self.newest(claim.first_generation).filter(|manifest| manifest.last).map(|manifest| manifest.id.step);
        let told = |exit_code| Some(Outcome { exit_code, reason: "the run ended meanwhile".to_owned() });
        let Some(incarnation) = incarnation else {
            return last.filter(|step| *step >= steps).and_then(|_| told(0));
        };
        let generation = generation_of(incarnation);
        if !(claim.first_generation..=*newest).contains(&generation) {
            return None;
        }
        told(if last.is_some() { 0 } else { exit_code::PEERS })
    }
}

/// How a store says that it is full.
pub fn full() -> CheckpointError {
    CheckpointError::Full { location: LOCATION.to_owned(), object: "part".to_owned() }
}
