//! What one worker computes in a step: its packed part of the batch, with the values that it does not have yet. Its
//! answer is checked before it is used.

use std::sync::atomic::{AtomicU64, Ordering};

use windlass_core::parameter::{Access, ParameterId, ParameterKind, ParameterTable};
use windlass_wire::client::RowRequest;
use windlass_wire::compute::{Contents, Section, Tensor};

use crate::buffer::TensorBuffer;
use crate::gradient;
use crate::joined::protocol::{Ask, PartAsked, StepAnswered, StepAsked, written};
use crate::replica::packed::{PackedPart, section};
use crate::replica::{StepResult, accumulation};

/// Versions are never reused within a process, so that a worker can compute for several replicas in turn.
static NEXT_VERSION: AtomicU64 = AtomicU64::new(1);

/// The part of a batch for one worker.
pub(crate) struct Share {
    pub(crate) parts: Vec<PackedPart>,
    pub(crate) rows: Vec<RowRequest>,
    pub(crate) samples: usize,
}

/// The values of all parameters as they were last loaded, each with a version.
pub(crate) struct Values {
    pub(crate) current: Vec<TensorBuffer>,
    versions: Vec<u64>,
    by_row: Vec<bool>,
    /// Which parameters are running state: each worker changes them for itself.
    is_state: Vec<bool>,
}

impl Values {
    pub(crate) fn new(table: &ParameterTable) -> Self {
        let by_row = table.iter().map(|(_, spec)| spec.access == Access::Rows).collect();
        let is_state = table.iter().map(|(_, spec)| spec.kind == ParameterKind::State).collect();
        Self { current: vec![TensorBuffer::default(); table.len()], versions: vec![0; table.len()], by_row, is_state }
    }

    /// Replaces the values whose new buffer is not empty.
    pub(crate) fn load(&mut self, values: Vec<TensorBuffer>) {
        let version = NEXT_VERSION.fetch_add(1, Ordering::Relaxed);
        for ((current, versions), values) in self.current.iter_mut().zip(&mut self.versions).zip(values) {
            if !values.is_empty() {
                (*current, *versions) = (values, version);
            }
        }
    }

    /// Returns the parameters that are newer than these versions, and updates the versions.
    pub(crate) fn newer(&self, than: &mut [u64]) -> Vec<usize> {
        let mut newer = Vec::new();
        for (index, (here, there)) in self.versions.iter().zip(than).enumerate() {
            if here != there && !self.current[index].is_empty() {
                *there = *here;
                newer.push(index);
            }
        }
        newer
    }
}

/// Returns the rows that a share needs, by parameter; other buffers are empty.
pub(crate) fn own_rows(
    table: &ParameterTable,
    values: &Values,
    all: &[RowRequest],
    share: &Share,
) -> Vec<TensorBuffer> {
    let mut own = vec![TensorBuffer::default(); if all.is_empty() { 0 } else { table.len() }];
    for (all, wanted) in all.iter().zip(&share.rows) {
        let index = all.parameter.0 as usize;
        let gathered =
            accumulation::gather(&values.current[index], &all.rows, &wanted.rows, table[all.parameter].width());
        own[index] = gathered.into();
    }
    own
}

/// A request for a share, made for a worker that has values of these versions.
pub(crate) struct Prepared<'a> {
    pub(crate) head: Vec<u8>,
    tensors: Vec<(usize, &'a TensorBuffer)>,
    share: &'a Share,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(values: &'a Values, rows: &'a [TensorBuffer], share: &'a Share, has: &mut [u64]) -> Self {
        let is_asked = |index: usize| rows.get(index).is_some_and(|rows| !rows.is_empty());
        let mut tensors: Vec<(usize, &TensorBuffer)> = Vec::new();
        for index in values.newer(has) {
            if !is_asked(index) {
                tensors.push((index, &values.current[index]));
            }
        }
        for (index, rows) in rows.iter().enumerate().filter(|(index, _)| is_asked(*index)) {
            debug_assert!(values.by_row[index]);
            // A subset of rows has no version of the whole parameter.
            has[index] = 0;
            tensors.push((index, rows));
        }
        // Computing the share changes running state, and the next share must start from the same values as this one.
        values.is_state.iter().zip(has).filter(|(is_state, _)| **is_state).for_each(|(_, has)| *has = 0);
        let part = |part: &PackedPart| PartAsked { samples: part.samples, seed: part.seed, tensors: part.parcel.len() };
        let changed = tensors.iter().map(|(index, _)| *index as u32).collect();
        let head = written(&Ask::Step(StepAsked { changed, parts: share.parts.iter().map(part).collect() }));
        Self { head, tensors, share }
    }

    /// Returns the number of values in each tensor.
    pub(crate) fn lengths(&self) -> Vec<[usize; 1]> {
        self.tensors.iter().map(|(_, values)| [values.len()]).collect()
    }

    pub(crate) fn sections(&self, lengths: &'a [[usize; 1]]) -> Vec<Section<'a>> {
        let values = self.tensors.iter().zip(lengths).map(|((_, values), length)| Section::floats(length, values));
        let parcels = self.share.parts.iter().flat_map(|part| part.parcel.items()).map(section);
        values.chain(parcels).collect()
    }
}

/// Checks a worker's answer and returns it as a result.
pub(crate) fn accepted(
    table: &ParameterTable,
    share: &Share,
    answer: &StepAnswered,
    tensors: Vec<Tensor>,
) -> Result<StepResult, String> {
    if answer.samples != share.samples {
        return Err(format!("it answered for {} samples instead of {}", answer.samples, share.samples));
    }
    if tensors.len() != answer.gradients.len() + answer.state.len() {
        return Err("it answered with more or fewer tensors than it said".to_owned());
    }
    let mut tensors = tensors.into_iter();
    let gradients = taken(table, share, &answer.gradients, &mut tensors, ParameterKind::Trained)?;
    let has_state = table.iter().any(|(_, spec)| spec.kind == ParameterKind::State);
    let state = taken(table, share, &answer.state, &mut tensors, ParameterKind::State)?;
    let state = if has_state { state } else { Vec::new() };
    Ok(StepResult { loss: f32::from_bits(answer.loss), gradients, state, samples: share.samples })
}

/// Describes the first non-finite value of an answer.
pub(crate) fn not_finite(table: &ParameterTable, result: &StepResult) -> Option<String> {
    if !result.loss.is_finite() {
        return Some(format!("its loss is {}", result.loss));
    }
    let lists = [(&result.gradients, ParameterKind::Trained), (&result.state, ParameterKind::State)];
    lists.into_iter().find_map(|(values, kind)| {
        let (parameter, value) = gradient::not_finite(values)?;
        let name = &table[ParameterId(parameter as u32)].name;
        Some(format!("its {} of {name} contains {value}", in_words(kind)))
    })
}

pub(crate) fn in_words(kind: ParameterKind) -> &'static str {
    if kind == ParameterKind::State { "running state" } else { "gradient" }
}

/// Takes one buffer per parameter: all parameters of this kind must have one, and no others.
fn taken(
    table: &ParameterTable,
    share: &Share,
    numbers: &[u32],
    tensors: &mut impl Iterator<Item = Tensor>,
    kind: ParameterKind,
) -> Result<Vec<TensorBuffer>, String> {
    let what = in_words(kind);
    let mut numbers = numbers.iter();
    let mut all = Vec::with_capacity(table.len());
    for (id, spec) in table.iter() {
        if spec.kind != kind {
            all.push(TensorBuffer::default());
            continue;
        }
        let rows = share.rows.iter().find(|request| request.parameter == id);
        let expected = rows.map_or(spec.elements(), |request| request.rows.len() * spec.width());
        let tensor = tensors.next().filter(|_| numbers.next() == Some(&id.0));
        match tensor.map(|tensor| tensor.contents) {
            Some(Contents::F32(values)) if values.len() == expected => all.push(values.into()),
            Some(Contents::F32(values)) => {
                return Err(format!("its {what} of {} has {} values instead of {expected}", spec.name, values.len()));
            }
            _ => return Err(format!("it answered without a {what} of {}", spec.name)),
        }
    }
    match numbers.next() {
        Some(number) => Err(format!("it answered with a {what} of parameter {number}, which has none")),
        None => Ok(all),
    }
}
