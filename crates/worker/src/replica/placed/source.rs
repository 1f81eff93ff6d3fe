//! The batches of a placed model: each split into micro-batches, and each of those into the parts that feed its stages.

use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use rand::SeedableRng;
use rand::rngs::StdRng;
use windlass_wire::client::RowRequest;

use crate::model::Model;
use crate::randomness::{Draw, Purpose};
use crate::replica::division::evenly;
use crate::replica::{Batch, BatchSource, accumulation};
use crate::rows::RowParameters;
use crate::stages::{StagePlan, Staging};
use crate::travel::Parcel;

/// Makes batches ahead of time.
pub(super) struct Source<M: Model> {
    pub(super) model: Arc<M>,
    pub(super) staging: Staging<M>,
    pub(super) plan: Arc<StagePlan>,
    pub(super) by_rows: RowParameters,
    pub(super) seed: u64,
    pub(super) micro_batches: usize,
}

/// A micro-batch: a part of a batch.
pub(super) struct MicroBatch {
    pub(super) samples: usize,
    pub(super) rows: Vec<RowRequest>,
    /// The seed of Burn's random numbers in the forward pass.
    pub(super) seed: u64,
    /// The input of each stage, until the stage takes it.
    pub(super) feeds: Vec<Mutex<Option<Parcel>>>,
}

impl<M: Model> Source<M> {
    fn micro_batch(&self, samples: &[usize], draw: Draw, index: usize) -> anyhow::Result<MicroBatch> {
        let mut random = StdRng::seed_from_u64(draw.seed(self.seed, Purpose::Batch, index));
        // Each stage has its own device, and gets its input in host memory.
        let batch = self.model.batch(samples, &Device::flex(), &mut random)?;
        let rows = self.by_rows.requests(self.model.rows(&batch));
        let feeds = self.staging.feeds(&self.model, batch, &self.plan)?;
        let feeds = feeds.into_iter().map(|feed| Mutex::new(Some(feed))).collect();
        Ok(MicroBatch { samples: samples.len(), rows, seed: draw.seed(self.seed, Purpose::Step, index), feeds })
    }
}

impl<M: Model> BatchSource for Source<M> {
    fn batch(&self, samples: &[usize], draw: Draw) -> anyhow::Result<Batch> {
        let mut rest = samples;
        let mut made = Vec::with_capacity(self.micro_batches);
        for (index, count) in evenly(samples.len(), self.micro_batches).into_iter().enumerate() {
            let (share, others) = rest.split_at(count);
            rest = others;
            if !share.is_empty() {
                made.push(self.micro_batch(share, draw, index)?);
            }
        }
        let rows = accumulation::union(&made.iter().map(|micro| &micro.rows[..]).collect::<Vec<_>>());
        Ok(Batch { content: Box::new(made), rows, samples: samples.len() })
    }

    fn parts(&self) -> usize {
        self.micro_batches
    }
}
