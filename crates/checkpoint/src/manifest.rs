//! The manifest turns parts into a checkpoint. This module writes it as JSON, and reads and validates it: a valid
//! manifest covers every element of every parameter exactly once, so that no later code has to check a size or an
//! index.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::cluster::WorkerId;
use windlass_core::parameter::{Access, ParameterTable};
use windlass_core::plan::{RowStripe, ServerPlan};
use windlass_core::run::{LearningRate, RunSpec};

use crate::checksum::{CHUNK_BYTES, Checksum, chunk_count};
use crate::error::CheckpointError;
use crate::id::CheckpointId;
use crate::layout::contents;

/// The latest version of the manifest that this program reads. Version 2 added parameters that are not trained, version
/// 3 parameters that began to be trained later than others.
pub const FORMAT: u32 = 3;

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// At most [`FORMAT`]: the earliest version that can express the content.
    pub format: u32,
    /// Global step, generation and attempt.
    pub id: CheckpointId,
    /// When it was taken, in seconds since 1970.
    pub created: u64,
    /// The run: its model with flags and files, optimizer, sharding, parameters and data.
    pub run: RunSpec,
    /// The learning rate at this step.
    pub learning_rate: LearningRate,
    /// How many bytes share a checksum.
    pub chunk_bytes: usize,
    /// One part per server, in their order.
    pub parts: Vec<PartRecord>,
    /// The state of each server besides its values, in their order.
    pub servers: Vec<ServerState>,
    /// The position and state of each worker.
    pub workers: Vec<WorkerState>,
    /// The flags of the run, for display.
    pub config: String,
    /// True if the run ended well with this one, so that no other will follow.
    #[serde(default)]
    pub last: bool,
    /// The generation in which the run began. Checkpoints of earlier generations belong to other runs.
    #[serde(default)]
    pub first_generation: u64,
    /// The step after which the optimizer began to train dense parameters that were frozen before, by name. It has
    /// trained all others from the start.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trained_since: BTreeMap<String, u64>,
}

/// A part that has been written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    /// The server that wrote it.
    pub server: usize,
    /// Its name within the store.
    pub object: String,
    /// Its size.
    pub bytes: u64,
    /// The offset at which its tensors begin.
    pub header_bytes: u64,
    /// One for every [`CHUNK_BYTES`].
    pub checksums: Vec<Checksum>,
    /// What the part holds.
    pub plan: ServerPlan,
}

/// The state of a server besides its values.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ServerState {
    /// How many updates it has applied.
    pub version: u64,
    /// Further state that the server needs to continue, such as its ledger.
    #[serde(default)]
    pub state: Value,
}

/// The position and state of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerState {
    /// The worker.
    pub worker: WorkerId,
    /// The worker's position in its data.
    pub position: WorkerPosition,
    /// Further state that the worker needs to continue.
    #[serde(default)]
    pub state: Value,
}

/// The position of a worker in its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkerPosition {
    /// The pass over the data, from zero.
    pub epoch: u64,
    /// The next batch of that pass, from zero.
    pub batch: u64,
    /// How many steps the worker has made.
    pub local_step: u64,
}

impl Manifest {
    /// Creates a manifest from the parts of a run's servers at one step. The caller fills in positions, states and
    /// flags.
    pub fn new(id: CheckpointId, run: RunSpec, mut parts: Vec<PartRecord>) -> Self {
        parts.sort_by_key(|part| part.server);
        let all_trained = run.parameters.iter().all(|(_, spec)| spec.kind.is_trained());
        Self {
            format: if all_trained { 1 } else { 2 },
            id,
            created: 0,
            learning_rate: LearningRate::initial(run.learning_rate),
            run,
            chunk_bytes: CHUNK_BYTES,
            servers: vec![ServerState::default(); parts.len()],
            parts,
            workers: Vec::new(),
            config: String::new(),
            last: false,
            first_generation: 0,
            trained_since: BTreeMap::new(),
        }
    }

    /// Records when the optimizer began to train which parameters. Raises the format: a program that cannot read this
    /// would continue with steps of the wrong size.
    pub fn set_trained_since(&mut self, since: BTreeMap<String, u64>) {
        if !since.is_empty() {
            self.format = FORMAT;
        }
        self.trained_since = since;
    }

    /// Returns the size of all parts in bytes.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// The JSON to publish, if it can be read back.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, CheckpointError> {
        let object = self.id.manifest_object();
        let json = serde_json::to_vec(self).map_err(|error| bad(&object, error.to_string()))?;
        // Values that JSON cannot represent, such as a NaN learning rate, must not surface only at a restart.
        Self::from_json(&object, &json)?;
        Ok(json)
    }

    /// Reads and checks a manifest; `object` is its name.
    pub(crate) fn from_json(object: &str, json: &[u8]) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct Format {
            format: u64,
        }
        if json.is_empty() {
            return Err(bad(object, "it is empty".to_owned()));
        }
        // The format first: how to interpret a later one is not for this version to decide.
        let Format { format } = serde_json::from_slice(json).map_err(|error| bad(object, error.to_string()))?;
        if format > u64::from(FORMAT) {
            return Err(CheckpointError::LaterFormat { object: object.to_owned(), format, supported: FORMAT });
        }
        let manifest: Self = serde_json::from_slice(json).map_err(|error| bad(object, error.to_string()))?;
        manifest.check().map_err(|reason| bad(object, reason))?;
        match manifest.id.manifest_object() == object {
            true => Ok(manifest),
            false => Err(bad(object, format!("it is that of checkpoint {}", manifest.id))),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.chunk_bytes != CHUNK_BYTES {
            return Err(format!("its checksums are of {} bytes each instead of {CHUNK_BYTES}", self.chunk_bytes));
        }
        if self.parts.is_empty() {
            return Err("it has no parts".to_owned());
        }
        if self.servers.len() != self.parts.len() {
            return Err(format!("it has {} parts but {} servers", self.parts.len(), self.servers.len()));
        }
        if let Some((name, since)) = self.trained_since.iter().find(|(_, since)| **since > self.id.step) {
            return Err(format!("it has `{name}` trained only after step {since}"));
        }
        for (server, part) in self.parts.iter().enumerate() {
            self.check_part(server, part).map_err(|reason| format!("part {server} {reason}"))?;
        }
        check_cover(&self.run.parameters, &self.parts)
    }

    fn check_part(&self, server: usize, part: &PartRecord) -> Result<(), String> {
        let object = self.id.part_object(server, self.parts.len());
        if part.server != server || part.object != object {
            return Err(format!("is `{}` of server {}, not `{object}`", part.object, part.server));
        }
        check_plan(&self.run.parameters, &part.plan)?;
        let size = |content: crate::layout::Content| content.bytes(&self.run.parameters, &part.plan) as u64;
        let tensors: u64 =
            contents(&self.run.parameters, &part.plan, self.run.optimizer.slots()).into_iter().map(size).sum();
        if part.header_bytes.checked_add(tensors) != Some(part.bytes) {
            return Err(format!("has {} bytes, but {} + {tensors} by its plan", part.bytes, part.header_bytes));
        }
        if part.checksums.len() as u64 != chunk_count(part.bytes) {
            return Err(format!("has {} checksums for {} bytes", part.checksums.len(), part.bytes));
        }
        Ok(())
    }
}

fn bad(object: &str, reason: String) -> CheckpointError {
    CheckpointError::BadManifest { object: object.to_owned(), reason }
}

/// Every segment and stripe lies within its parameter.
fn check_plan(table: &ParameterTable, plan: &ServerPlan) -> Result<(), String> {
    for segment in &plan.segments {
        let fits = table.get(segment.parameter).is_some_and(|spec| {
            spec.access == Access::Dense
                && segment.range.start < segment.range.end
                && segment.range.end <= spec.elements()
        });
        if !fits {
            return Err(format!("has a segment that no parameter has: {segment:?}"));
        }
    }
    for stripe in &plan.stripes {
        let fits = table.get(stripe.parameter).is_some_and(|spec| {
            let RowStripe { first, stride, count, .. } = *stripe;
            spec.access == Access::Rows
                && first < stride.min(spec.rows())
                && count == (spec.rows() - first).div_ceil(stride)
        });
        if !fits {
            return Err(format!("has a stripe that no parameter has: {stripe:?}"));
        }
    }
    Ok(())
}

/// The parts together hold every element of every parameter exactly once.
fn check_cover(table: &ParameterTable, parts: &[PartRecord]) -> Result<(), String> {
    let mut ranges = vec![Vec::new(); table.len()];
    let mut stripes = vec![Vec::new(); table.len()];
    for part in parts {
        part.plan.segments.iter().for_each(|held| ranges[held.parameter.0 as usize].push(held.range.clone()));
        part.plan.stripes.iter().for_each(|held| stripes[held.parameter.0 as usize].push(*held));
    }
    for (parameter, spec) in table.iter() {
        let covered = match spec.access {
            Access::Dense => {
                let ranges = &mut ranges[parameter.0 as usize];
                ranges.sort_by_key(|range| range.start);
                let end = ranges.iter().try_fold(0, |end, range| (range.start == end).then_some(range.end));
                end == Some(spec.elements())
            }
            Access::Rows => {
                let stripes = &mut stripes[parameter.0 as usize];
                stripes.sort_by_key(|stripe| stripe.first);
                let stride = stripes.first().map_or(0, |stripe| stripe.stride);
                stripes.len() == stride.min(spec.rows())
                    && !stripes.is_empty()
                    && stripes
                        .iter()
                        .enumerate()
                        .all(|(first, stripe)| stripe.first == first && stripe.stride == stride)
            }
        };
        if !covered {
            return Err(format!("its parts do not hold every element of `{}` once", spec.name));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
pub(crate) mod tests;
