//! A server's complete values in memory: the source of a part, and the result of a restore.

use windlass_core::block::{Block, block_ranges};
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{ParameterKind, ParameterTable};
use windlass_core::plan::ServerPlan;
use windlass_core::rows::RowTable;

use crate::layout::Content;

/// All values and optimizer state of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardImage {
    /// The dense segments of its plan, end to end.
    pub dense: Block,
    /// One table for each stripe of its plan.
    pub tables: Vec<RowTable>,
}

impl ShardImage {
    /// Splits the dense values into the blocks that a server keeps.
    pub fn into_blocks(self) -> (Vec<Block>, Vec<RowTable>) {
        let Block { values, slots } = self.dense;
        let blocks = block_ranges(values.len()).map(|range| Block {
            values: values[range.clone()].to_vec(),
            slots: slots.iter().map(|slot| slot[range.clone()].to_vec()).collect(),
        });
        (blocks.collect(), self.tables)
    }
}

/// An image being filled from the bytes of parts.
pub(crate) struct ShardImageBuilder {
    dense: Block,
    /// Where each segment begins in the dense values; and the end.
    segments: Vec<usize>,
    rows: Vec<RestoredTable>,
}

struct RestoredTable {
    width: usize,
    block: Block,
    steps: Vec<u64>,
}

impl ShardImageBuilder {
    /// The initial state of a server: zeros, and the optimizer's state before the first update.
    pub fn new(table: &ParameterTable, plan: &ServerPlan, optimizer: &Optimizer) -> Self {
        let segments = std::iter::once(0).chain(plan.segments.iter().scan(0, |end, segment| {
            *end += segment.range.len();
            Some(*end)
        }));
        let rows = plan.stripes.iter().map(|stripe| {
            let spec = &table[stripe.parameter];
            let rows = match spec.kind {
                ParameterKind::Constant => RowTable::constant(stripe.count, spec.width()),
                _ => RowTable::new(stripe.count, spec.width(), optimizer),
            };
            RestoredTable { width: spec.width(), steps: rows.steps().to_vec(), block: rows.into_block() }
        });
        let dense = Block::new(plan.dense_elements(), optimizer);
        Self { dense, segments: segments.collect(), rows: rows.collect() }
    }

    /// The memory of one of the plan's tensors.
    pub fn bytes_mut(&mut self, content: Content) -> &mut [u8] {
        fn numbers(block: &mut Block, slot: Option<usize>) -> &mut [f32] {
            slot.map_or(&mut block.values, |slot| &mut block.slots[slot])
        }
        match content {
            Content::Steps { stripe } => bytemuck::cast_slice_mut(&mut self.rows[stripe].steps),
            Content::Dense { segment, slot } => {
                let range = self.segments[segment]..self.segments[segment + 1];
                bytemuck::cast_slice_mut(&mut numbers(&mut self.dense, slot)[range])
            }
            Content::Rows { stripe, slot } => bytemuck::cast_slice_mut(numbers(&mut self.rows[stripe].block, slot)),
        }
    }

    pub fn finish(self) -> ShardImage {
        let tables = self.rows.into_iter().map(|rows| RowTable::restore(rows.width, rows.block, rows.steps));
        ShardImage { dense: self.dense, tables: tables.collect() }
    }
}
