//! From the parts of a checkpoint to what one server of any layout holds. Only the chunks that overlap it are read.

use std::collections::BTreeSet;
use std::ops::Range;

use futures::{StreamExt, TryStreamExt, stream};
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::ParameterTable;
use windlass_core::plan::{RowStripe, Segment, ServerPlan};

use crate::checksum::CHUNK_BYTES;
use crate::error::CheckpointError;
use crate::image::{Canvas, ShardImage};
use crate::layout::{Content, contents};
use crate::manifest::{Manifest, PartRecord};
use crate::read::{Chunk, READ_AHEAD};
use crate::store::Store;

/// What a server wants of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Restore<'a> {
    /// The parameters of the model.
    pub table: &'a ParameterTable,
    /// What the server holds of them.
    pub plan: &'a ServerPlan,
    /// The optimizer of the run.
    pub optimizer: &'a Optimizer,
    /// What becomes of the optimizer's state.
    pub slots: SlotPolicy,
}

/// What becomes of the optimizer's state in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotPolicy {
    /// It is restored, and must be of the same optimizer. Its constants may differ.
    #[default]
    Restore,
    /// It is left, and so are the step counts of rows: training goes on as with a new optimizer.
    Reset,
}

impl Store {
    /// What a server holds at a checkpoint. If it turns out to be damaged
    /// ([`CheckpointError::is_damage`]), an older one may do.
    pub async fn restore(&self, manifest: &Manifest, wanted: &Restore<'_>) -> Result<ShardImage, CheckpointError> {
        check_fit(manifest, wanted)?;
        self.paint(manifest, wanted).await
    }

    /// As [`Store::restore`], of parameters and an optimizer known to fit.
    pub(crate) async fn paint(&self, manifest: &Manifest, wanted: &Restore<'_>) -> Result<ShardImage, CheckpointError> {
        let copies: Vec<_> = manifest.parts.iter().map(|part| copies(manifest, part, wanted)).collect();
        let mut reads = Vec::new();
        for (part, copies) in manifest.parts.iter().zip(&copies) {
            let chunks: BTreeSet<usize> = copies.iter().flat_map(Copy::chunks).collect();
            reads.extend(chunks.into_iter().map(|chunk| self.read_for(copies, part, chunk)));
        }
        let mut canvas = Canvas::new(wanted.table, wanted.plan, wanted.optimizer);
        let mut chunks = stream::iter(reads).buffer_unordered(READ_AHEAD);
        while let Some((chunk, copies)) = chunks.try_next().await? {
            for copy in copies {
                copy.apply(&chunk, &mut canvas);
            }
        }
        drop(chunks);
        Ok(canvas.finish())
    }

    /// Reads a chunk of which these copies are to be made.
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
        if expected != found {
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

/// Bytes of a part that belong to one tensor of the image.
struct Copy {
    /// Where they are in the part.
    source: Range<u64>,
    /// Where they belong.
    target: Content,
    way: Way,
}

enum Way {
    /// One run of bytes, to this offset in the target.
    Run { offset: usize },
    /// Rows of one stripe, of which the other has some.
    Rows { from: RowStripe, to: RowStripe, row_bytes: usize },
}

/// Everything that is wanted of a part.
fn copies(manifest: &Manifest, part: &PartRecord, wanted: &Restore<'_>) -> Vec<Copy> {
    let mut copies = Vec::new();
    let mut start = part.header_bytes;
    for content in contents(&part.plan, manifest.run.optimizer.slots()) {
        let bytes = content.bytes(&manifest.run.parameters, &part.plan) as u64;
        let source = start..start + bytes;
        start = source.end;
        match content {
            Content::Dense { slot: Some(_), .. } | Content::Rows { slot: Some(_), .. } | Content::Steps { .. }
                if wanted.slots == SlotPolicy::Reset => {}
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

/// What one segment has of another.
fn copy_segment(from: &Segment, to: &Segment, source: u64, target: Content) -> Option<Copy> {
    let common = from.range.start.max(to.range.start)..from.range.end.min(to.range.end);
    if from.parameter != to.parameter || common.is_empty() {
        return None;
    }
    let byte = |elements: usize| elements * size_of::<f32>();
    let start = source + byte(common.start - from.range.start) as u64;
    let source = start..start + byte(common.len()) as u64;
    Some(Copy { source, target, way: Way::Run { offset: byte(common.start - to.range.start) } })
}

/// What one stripe has of a plan's stripe of the same parameter.
fn copy_stripe(
    from: &RowStripe,
    plan: &ServerPlan,
    source: Range<u64>,
    row_bytes: usize,
    target: impl Fn(usize) -> Content,
) -> Option<Copy> {
    let (stripe, to) = plan.stripes.iter().enumerate().find(|(_, to)| to.parameter == from.parameter)?;
    if from == to {
        return Some(Copy { source, target: target(stripe), way: Way::Run { offset: 0 } });
    }
    // Rows r with r ≡ a (mod m) and r ≡ b (mod n) exist only if a ≡ b (mod gcd(m, n)).
    let common = greatest_common_divisor(from.stride, to.stride);
    let meet = from.first % common == to.first % common;
    meet.then(|| Copy { source, target: target(stripe), way: Way::Rows { from: *from, to: *to, row_bytes } })
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

    /// Copies what a chunk has of it.
    fn apply(&self, chunk: &Chunk, canvas: &mut Canvas) {
        let common = self.source.start.max(chunk.range.start)..self.source.end.min(chunk.range.end);
        if common.is_empty() {
            return;
        }
        let bytes = &chunk.bytes[(common.start - chunk.range.start) as usize..][..(common.end - common.start) as usize];
        let start = (common.start - self.source.start) as usize;
        let target = canvas.bytes_mut(self.target);
        match self.way {
            Way::Run { offset } => target[offset + start..][..bytes.len()].copy_from_slice(bytes),
            Way::Rows { from, to, row_bytes } => {
                // The first and the last row may be cut by the chunk.
                let end = start + bytes.len();
                for row in start / row_bytes..end.div_ceil(row_bytes) {
                    let Some(local) = to.local(from.global(row)) else { continue };
                    let row_start = row * row_bytes;
                    let piece = start.max(row_start)..end.min(row_start + row_bytes);
                    let offset = local * row_bytes + (piece.start - row_start);
                    target[offset..][..piece.len()].copy_from_slice(&bytes[piece.start - start..piece.end - start]);
                }
            }
        }
    }
}
