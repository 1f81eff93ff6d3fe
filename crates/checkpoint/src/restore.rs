//! Restores what one server of any layout holds from the parts of a checkpoint. Reads only the chunks that overlap it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use futures::{StreamExt, TryStreamExt, stream};
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{Access, ParameterId, ParameterKind, ParameterSpec, ParameterTable};
use windlass_core::plan::{RowStripe, Segment, ServerPlan};

use crate::checksum::CHUNK_BYTES;
use crate::error::CheckpointError;
use crate::image::{ShardImage, ShardImageBuilder};
use crate::layout::{Content, contents};
use crate::manifest::{Manifest, PartRecord};
use crate::read::{Chunk, READ_AHEAD};
use crate::store::Store;

/// What a server needs from a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Restore<'a> {
    /// The parameters of the model.
    pub table: &'a ParameterTable,
    /// The server's share of the parameters.
    pub plan: &'a ServerPlan,
    /// The optimizer of the run.
    pub optimizer: &'a Optimizer,
    /// How to treat the optimizer's state.
    pub slots: SlotPolicy,
}

/// How to treat the optimizer's state in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotPolicy {
    /// Restore it; it must belong to the same optimizer. The optimizer's constants may differ.
    #[default]
    Restore,
    /// Drop it, and the step counts of rows as well: training continues as with a new optimizer.
    Reset,
}

impl Store {
    /// What a server holds at a checkpoint. If it turns out to be damaged
    /// ([`CheckpointError::is_damage`]), an older one may do.
    pub async fn restore(&self, manifest: &Manifest, wanted: &Restore<'_>) -> Result<ShardImage, CheckpointError> {
        check_fit(manifest, wanted)?;
        self.assemble(manifest, wanted).await
    }

    /// Like [`Store::restore`], for parameters and an optimizer that are known to fit.
    pub(crate) async fn assemble(
        &self,
        manifest: &Manifest,
        wanted: &Restore<'_>,
    ) -> Result<ShardImage, CheckpointError> {
        let copies: Vec<_> = manifest.parts.iter().map(|part| copies(manifest, part, wanted)).collect();
        let mut reads = Vec::new();
        for (part, copies) in manifest.parts.iter().zip(&copies) {
            let chunks: BTreeSet<usize> = copies.iter().flat_map(Copy::chunks).collect();
            reads.extend(chunks.into_iter().map(|chunk| self.read_for(copies, part, chunk)));
        }
        let mut image = ShardImageBuilder::new(wanted.table, wanted.plan, wanted.optimizer);
        let mut chunks = stream::iter(reads).buffer_unordered(READ_AHEAD);
        while let Some((chunk, copies)) = chunks.try_next().await? {
            for copy in copies {
                copy.apply(&chunk, &mut image);
            }
        }
        drop(chunks);
        Ok(image.finish())
    }

    /// Reads a chunk that these copies need.
    async fn read_for<'a>(
        &self,
        copies: &'a [Copy],
        part: &PartRecord,
        chunk: usize,
    ) -> Result<(Chunk, &'a [Copy]), CheckpointError> {
        Ok((self.read_chunk(part, chunk).await?, copies))
    }
}

fn check_fit(manifest: &Manifest, wanted: &Restore<'_>) -> Result<(), CheckpointError> {
    let (id, found) = (manifest.id, &manifest.run.parameters);
    let parameter =
        |table: &ParameterTable, index: usize| table.iter().nth(index).map(|(_, spec)| Box::new(spec.clone()));
    for index in 0..wanted.table.len().max(found.len()) {
        let (expected, found) = (parameter(wanted.table, index), parameter(found, index));
        if !expected.as_ref().zip(found.as_ref()).is_some_and(|(expected, found)| expected.takes_values_of(found)) {
            return Err(CheckpointError::DoesNotFit { id, index, expected, found });
        }
    }
    let (expected, found) = (wanted.optimizer, &manifest.run.optimizer);
    let same = expected.name() == found.name() && expected.slots() == found.slots();
    match same || wanted.slots == SlotPolicy::Reset {
        true => Ok(()),
        false => Err(CheckpointError::OptimizerDiffers { id, expected: expected.name(), found: found.name() }),
    }
}

impl Manifest {
    /// Returns the step after which the optimizer began to train each dense parameter of a run that continues from
    /// here, unless it did so from the start. Rows count their own steps.
    pub fn trained_since_in(&self, table: &ParameterTable) -> BTreeMap<String, u64> {
        let trained = table.iter().filter(|(_, spec)| spec.kind.is_trained() && spec.access == Access::Dense);
        let since = |(parameter, spec): (ParameterId, &ParameterSpec)| {
            let was_frozen = self.run.parameters.get(parameter).is_some_and(|it| it.kind == ParameterKind::Constant);
            let recorded = self.trained_since.get(&spec.name).copied().unwrap_or(0);
            (spec.name.clone(), if was_frozen { self.id.step } else { recorded })
        };
        trained.map(since).filter(|(_, since)| *since > 0).collect()
    }
}

/// Bytes of a part that belong to one tensor of the image.
struct Copy {
    /// The bytes' range in the part.
    source: Range<u64>,
    /// The tensor that they are copied to.
    target: Content,
    method: CopyMethod,
}

enum CopyMethod {
    /// One run of bytes, to this offset in the target.
    Run { offset: usize },
    /// Rows, of which the target has some.
    Rows { from: RowRun, to: RowRun, row_bytes: usize },
}

/// Consecutive rows in the bytes of a tensor: those of a stripe, without the first `skipped` bytes.
#[derive(Clone, Copy)]
struct RowRun {
    stripe: RowStripe,
    skipped: usize,
}

impl RowRun {
    fn of_stripe(stripe: &RowStripe) -> Self {
        Self { stripe: *stripe, skipped: 0 }
    }

    /// A segment is part of a stripe that has all rows.
    fn of_segment(segment: &Segment, table: &ParameterTable) -> Self {
        let count = table[segment.parameter].rows();
        let stripe = RowStripe { parameter: segment.parameter, first: 0, stride: 1, count };
        Self { stripe, skipped: segment.range.start * size_of::<f32>() }
    }
}

/// Returns all copies that are needed from a part.
fn copies(manifest: &Manifest, part: &PartRecord, wanted: &Restore<'_>) -> Vec<Copy> {
    let table = &manifest.run.parameters;
    let mut copies = Vec::new();
    let mut start = part.header_bytes;
    for content in contents(table, &part.plan, manifest.run.optimizer.slots()) {
        let bytes = content.bytes(table, &part.plan) as u64;
        let source = start..start + bytes;
        start = source.end;
        let parameter = content.parameter(&part.plan);
        // If frozen on either side, there is no optimizer state to restore, and only one side may store it by row.
        let frozen = [table, wanted.table].iter().any(|table| table[parameter].kind == ParameterKind::Constant);
        if content.is_optimizer_state() && (frozen || wanted.slots == SlotPolicy::Reset) {
            continue;
        }
        if frozen && table[parameter].access != wanted.table[parameter].access {
            copies.extend(copies_between(content, part, wanted, &source, table[parameter].width()));
            continue;
        }
        match content {
            Content::Dense { segment, slot } => {
                let from = &part.plan.segments[segment];
                let targets = wanted.plan.segments.iter().enumerate();
                copies.extend(targets.filter_map(|(segment, to)| {
                    copy_segment(from, to, source.start, Content::Dense { segment, slot })
                }));
            }
            Content::Rows { stripe, slot } => {
                let row_bytes = bytes as usize / part.plan.stripes[stripe].count;
                let target = |stripe| Content::Rows { stripe, slot };
                copies.extend(copy_stripe(&part.plan.stripes[stripe], wanted.plan, source, row_bytes, target));
            }
            Content::Steps { stripe } => {
                let target = |stripe| Content::Steps { stripe };
                copies.extend(copy_stripe(&part.plan.stripes[stripe], wanted.plan, source, size_of::<u64>(), target));
            }
        }
    }
    copies
}

/// The copies from a segment to stripes, or from a stripe to segments.
fn copies_between(
    content: Content,
    part: &PartRecord,
    wanted: &Restore<'_>,
    source: &Range<u64>,
    width: usize,
) -> Vec<Copy> {
    let copy = |target: Content, from: RowRun, to: RowRun| {
        let method = CopyMethod::Rows { from, to, row_bytes: width * size_of::<f32>() };
        Copy { source: source.clone(), target, method }
    };
    let parameter = content.parameter(&part.plan);
    let from = match content {
        Content::Dense { segment, .. } => RowRun::of_segment(&part.plan.segments[segment], wanted.table),
        Content::Rows { stripe, .. } | Content::Steps { stripe } => RowRun::of_stripe(&part.plan.stripes[stripe]),
    };
    let stripes = wanted.plan.stripes.iter().enumerate().filter(|(_, to)| to.parameter == parameter);
    let segments = wanted.plan.segments.iter().enumerate().filter(|(_, to)| to.parameter == parameter);
    let to_stripes =
        stripes.map(|(stripe, to)| copy(Content::Rows { stripe, slot: None }, from, RowRun::of_stripe(to)));
    let to_segments = segments
        .map(|(segment, to)| copy(Content::Dense { segment, slot: None }, from, RowRun::of_segment(to, wanted.table)));
    to_stripes.chain(to_segments).collect()
}

/// The copy of what two segments have in common.
fn copy_segment(from: &Segment, to: &Segment, source: u64, target: Content) -> Option<Copy> {
    let common = from.range.start.max(to.range.start)..from.range.end.min(to.range.end);
    if from.parameter != to.parameter || common.is_empty() {
        return None;
    }
    let byte = |elements: usize| elements * size_of::<f32>();
    let start = source + byte(common.start - from.range.start) as u64;
    let source = start..start + byte(common.len()) as u64;
    Some(Copy { source, target, method: CopyMethod::Run { offset: byte(common.start - to.range.start) } })
}

/// The copy of what a stripe has in common with a plan's stripe of the same parameter.
fn copy_stripe(
    from: &RowStripe,
    plan: &ServerPlan,
    source: Range<u64>,
    row_bytes: usize,
    target: impl Fn(usize) -> Content,
) -> Option<Copy> {
    let (stripe, to) = plan.stripes.iter().enumerate().find(|(_, to)| to.parameter == from.parameter)?;
    if from == to {
        return Some(Copy { source, target: target(stripe), method: CopyMethod::Run { offset: 0 } });
    }
    // Rows r with r ≡ a (mod m) and r ≡ b (mod n) exist only if a ≡ b (mod gcd(m, n)).
    let common = greatest_common_divisor(from.stride, to.stride);
    let meet = from.first % common == to.first % common;
    let (from, to) = (RowRun::of_stripe(from), RowRun::of_stripe(to));
    meet.then(|| Copy { source, target: target(stripe), method: CopyMethod::Rows { from, to, row_bytes } })
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Copy {
    /// The chunks of the part that it needs.
    fn chunks(&self) -> Range<usize> {
        let chunk = CHUNK_BYTES as u64;
        (self.source.start / chunk) as usize..self.source.end.div_ceil(chunk) as usize
    }

    /// Copies what a chunk has of these bytes.
    fn apply(&self, chunk: &Chunk, image: &mut ShardImageBuilder) {
        let common = self.source.start.max(chunk.range.start)..self.source.end.min(chunk.range.end);
        if common.is_empty() {
            return;
        }
        let bytes = &chunk.bytes[(common.start - chunk.range.start) as usize..][..(common.end - common.start) as usize];
        let start = (common.start - self.source.start) as usize;
        let target = image.bytes_mut(self.target);
        match self.method {
            CopyMethod::Run { offset } => target[offset + start..][..bytes.len()].copy_from_slice(bytes),
            CopyMethod::Rows { from, to, row_bytes } => {
                // The first and the last row may be incomplete: in the chunk, or on either side.
                let (start, wanted) = (start + from.skipped, to.skipped..to.skipped + target.len());
                let end = start + bytes.len();
                for row in start / row_bytes..end.div_ceil(row_bytes) {
                    let Some(local) = to.stripe.local(from.stripe.global(row)) else { continue };
                    // The part of the row that each side has.
                    let has = start.saturating_sub(row * row_bytes)..row_bytes.min(end - row * row_bytes);
                    let [first, last] = [wanted.start, wanted.end].map(|at| at.saturating_sub(local * row_bytes));
                    let common = has.start.max(first)..has.end.min(last);
                    if !common.is_empty() {
                        let bytes = &bytes[row * row_bytes + common.start - start..][..common.len()];
                        target[local * row_bytes + common.start - wanted.start..][..common.len()]
                            .copy_from_slice(bytes);
                    }
                }
            }
        }
    }
}
