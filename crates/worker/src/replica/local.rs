//! A model on one device of this process: the adapter between Burn and the parameters on the servers.

use std::path::PathBuf;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use rand::SeedableRng;
use rand::rngs::StdRng;
use windlass_core::identity::Fingerprint;
use windlass_core::parameter::{ParameterError, ParameterKind, ParameterSpec, ParameterTable};
use windlass_wire::client::RowRequest;

use super::accumulation::{self, Sums};
use super::packed::PackedPart;
use super::tensors::{self, LargeInteger};
use super::{Batch, BatchSource, ModelInfo, Replica, StepResult};
use crate::buffer::TensorBuffer;
use crate::metrics::Metrics;
use crate::model::{Model, PngImage};
use crate::randomness::{self, Draw, Purpose};
use crate::report::Reports;
use crate::rows::{RowParameters, UnknownRowParameter};
use crate::travel::{Parcel, Travel, TravelError};

/// Why a model's parameters cannot be trained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// The parameters do not form a valid table.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    /// A parameter that is to be accessed by row does not exist.
    #[error(transparent)]
    Rows(#[from] UnknownRowParameter),
    /// A tensor has an integer that servers cannot store.
    #[error(transparent)]
    Integer(#[from] LargeInteger),
}

/// How a model is trained in this process.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The device that it computes on.
    pub device: Device,
    /// The run's seed.
    pub seed: u64,
    /// The number of parts in which a batch is computed, one after the other.
    pub accumulate: usize,
    /// Whether other replicas in this process compute at the same time.
    pub is_tower: bool,
}

impl LocalConfig {
    /// On the CPU, a whole batch at a time.
    pub fn on_cpu(seed: u64) -> Self {
        Self { device: Device::flex(), seed, accumulate: 1, is_tower: false }
    }
}

/// A model on one device.
pub struct Local<M: Model> {
    source: Arc<Source<M>>,
    network: Option<M::Network>,
    info: ModelInfo,
    table: ParameterTable,
    /// Whether the network has running statistics.
    has_state: bool,
    /// Whether the network still has its initial values.
    is_fresh: bool,
    /// Whether it may compute without waiting for other replicas, which requires that it draws no random numbers.
    is_independent: Independence,
}

/// Whether the forward pass of a tower or a stage draws random numbers. Burn has one generator per process, so passes
/// that draw from it must take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Independence {
    /// The pass draws numbers, or is assumed to.
    Never,
    /// The next step will show.
    Unknown,
    /// The first step drew nothing.
    Drawless,
}

impl Independence {
    /// Runs `work`, which may draw random numbers, with this seed. Also returns what is known about it afterwards.
    pub(super) fn run<T>(self, device: &Device, seed: u64, work: impl FnOnce() -> T) -> (T, Self) {
        match self {
            Self::Never => (randomness::seeded(device, seed, work), Self::Never),
            Self::Drawless => (work(), Self::Drawless),
            Self::Unknown => match randomness::watched(device, seed, work) {
                (done, true) => (done, Self::Never),
                (done, false) => (done, Self::Drawless),
            },
        }
    }
}

/// The model, and what it takes to make batches of its data.
struct Source<M: Model> {
    model: Arc<M>,
    device: Device,
    by_rows: RowParameters,
    seed: u64,
    accumulate: usize,
}

/// The part of a batch that is computed at a time.
struct Part<B> {
    batch: B,
    samples: usize,
    rows: Vec<RowRequest>,
    /// The seed of Burn's random numbers in the forward pass.
    seed: u64,
}

impl<M: Model> Local<M> {
    /// Makes the network and lists its parameters.
    pub fn new(model: M, config: LocalConfig) -> Result<Self, ReplicaError> {
        Self::sharing(Arc::new(model), config)
    }

    /// Like [`Local::new`], with a model and data that are shared with other replicas.
    pub fn sharing(model: Arc<M>, config: LocalConfig) -> Result<Self, ReplicaError> {
        let LocalConfig { device, seed, accumulate, is_tower } = config;
        let is_independent = if is_tower { Independence::Unknown } else { Independence::Never };
        let device = device.autodiff();
        let (mut network, specs) = first(&*model, &device, seed, tensors::list);
        if device != Device::flex() {
            let values = on_the_processor(&*model, seed).into_iter().map(Into::into).collect();
            network = tensors::load(network, values, &device);
        }
        let (by_rows, table) = described(&*model, specs?)?;
        let has_state = table.iter().any(|(_, spec)| spec.kind == ParameterKind::State);
        let info = ModelInfo {
            name: M::NAME,
            samples: model.samples(),
            sample_files: model.sample_files(),
            fingerprint: fingerprint(&*model),
            files: model.files(),
            chance_loss: model.chance_loss(),
            loss_is_summed: model.loss_is_summed(),
        };
        let source = Arc::new(Source { model, device, by_rows, seed, accumulate });
        Ok(Self { source, network: Some(network), info, table, has_state, is_fresh: true, is_independent })
    }

    /// Copies the network's current values.
    pub fn values(&self) -> Vec<Vec<f32>> {
        tensors::values(self.network(), &self.source.device)
    }

    /// Makes a batch of these samples.
    pub fn batch(&self, samples: &[usize], draw: Draw) -> anyhow::Result<Batch> {
        self.source.batch(samples, draw)
    }

    fn put(&mut self, values: Vec<TensorBuffer>) {
        let network = self.network.take().expect("the network is put back after every use");
        self.network = Some(tensors::load(network, values, &self.source.device));
    }

    /// Returns the loss of a part, as the model reduces it, and its gradients.
    fn compute(&mut self, batch: M::Batch, seed: u64) -> (f32, Vec<TensorBuffer>) {
        let (model, network, device) = (&*self.source.model, self.network(), &self.source.device);
        let (loss, is_independent) = self.is_independent.run(device, seed, || model.loss(network, batch));
        if self.has_state {
            // This makes Burn update the running state now. Otherwise the next forward pass would do so from what it
            // remembers of this one, overwriting whatever has been loaded in between.
            drop(network.valid());
        }
        let mut gradients = loss.backward();
        let (loss, gradients) = tensors::take_gradients(network, loss.inner(), &mut gradients);
        self.is_independent = is_independent;
        (loss, gradients)
    }

    /// Like [`Local::compute`], for several parts, one after the other. If the loss is a mean, each part is weighted by
    /// its samples: the share of a tower need not divide into equal parts.
    fn accumulate(&mut self, parts: Vec<Part<M::Batch>>, rows: &[RowRequest]) -> (f32, Vec<TensorBuffer>) {
        let table = self.table.clone();
        let (mut sums, mut losses) = (Sums::new(&table, rows), 0.0);
        let is_summed = self.source.model.loss_is_summed();
        let samples: usize = parts.iter().map(|part| part.samples).sum();
        let largest = parts.iter().map(|part| part.samples).max().unwrap_or(1) as f32;
        let is_by_row = |index: usize| rows.iter().any(|request| request.parameter.0 as usize == index);
        let whole = tensors::some_values(self.network(), &is_by_row, &self.source.device);
        for Part { batch, samples, rows: own, seed } in parts {
            if !rows.is_empty() {
                // Parameters that are not accessed by row keep their values.
                let mut values = vec![TensorBuffer::default(); table.len()];
                for (all, own) in rows.iter().zip(&own) {
                    let index = all.parameter.0 as usize;
                    let width = table[all.parameter].width();
                    values[index] = accumulation::gather(&whole[index], &all.rows, &own.rows, width).into();
                }
                self.put(values);
            }
            let (loss, gradients) = self.compute(batch, seed);
            let weight = if is_summed { 1.0 } else { samples as f32 / largest };
            losses += weight * loss;
            sums.add_times(weight, gradients, &own);
        }
        let factor = if is_summed { 1.0 } else { largest / samples as f32 };
        (losses * factor, sums.scaled(factor))
    }

    /// Runs `work` on the network in inference mode.
    fn scoring<T>(&self, work: impl FnOnce(&M, &M::Network, &Device) -> T) -> T {
        let (device, network) = (self.source.scoring_device(), self.network().valid());
        let seed = randomness::scoring_seed(self.source.seed, 0);
        randomness::seeded(&device, seed, || work(&self.source.model, &network, &device))
    }

    fn network(&self) -> &M::Network {
        self.network.as_ref().expect("the network is put back after every use")
    }
}

impl<M: Model> Replica for Local<M> {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn table(&self) -> &ParameterTable {
        &self.table
    }

    fn has_rows(&self) -> bool {
        !self.source.by_rows.is_empty()
    }

    fn reports(&self) -> Option<Reports> {
        self.source.model.reports()
    }

    fn source(&self) -> Arc<dyn BatchSource> {
        self.source.clone()
    }

    fn first_values(&self) -> Vec<TensorBuffer> {
        // A step may have changed the running statistics.
        let values = if self.is_fresh && !self.has_state {
            self.values()
        } else {
            on_the_processor(&*self.source.model, self.source.seed)
        };
        values.into_iter().map(Into::into).collect()
    }

    fn load(&mut self, values: Vec<TensorBuffer>) {
        self.put(values);
        self.is_fresh = false;
    }

    fn step(&mut self, batch: Batch) -> anyhow::Result<StepResult> {
        let Batch { content, rows, samples } = batch;
        let mut parts = parts::<M::Batch>(content);
        let (loss, gradients) = if parts.len() == 1 {
            let Part { batch, seed, .. } = parts.remove(0);
            self.compute(batch, seed)
        } else {
            self.accumulate(parts, &rows)
        };
        let loss = if self.source.model.loss_is_summed() { loss * (1.0 / samples as f32) } else { loss };
        let state =
            if self.has_state { tensors::state(self.network(), &self.table, &self.source.device) } else { Vec::new() };
        Ok(StepResult { loss, gradients, state, samples })
    }

    fn rehearse(&mut self, batch: Batch) -> anyhow::Result<()> {
        let state = self.has_state.then(|| tensors::state(self.network(), &self.table, &self.source.device));
        if batch.rows().is_empty() {
            self.step(batch)?;
        } else {
            // As in training, only the rows that the batch touches are loaded.
            let whole = self.network().clone();
            let mut values = self.values();
            for RowRequest { parameter, rows } in batch.rows() {
                let (width, table) = (self.table[*parameter].width(), &mut values[parameter.0 as usize]);
                *table = rows.iter().flat_map(|row| &table[*row as usize * width..][..width]).copied().collect();
            }
            self.put(values.into_iter().map(Into::into).collect());
            self.step(batch)?;
            self.network = Some(whole);
        }
        // Burn's copies of a network share its running state.
        state.into_iter().for_each(|state| self.put(state));
        Ok(())
    }

    fn held_out(&self, draw: u64) -> anyhow::Result<Vec<(String, Option<Batch>)>> {
        let source = &self.source;
        let (device, seed) = (source.scoring_device(), randomness::scoring_seed(source.seed, draw));
        let parts = randomness::seeded(&device, seed, || source.model.held_out(draw, &device))?;
        let made = |batch: M::Batch| {
            let rows = source.by_rows.requests(source.model.rows(&batch));
            let part = Part { batch, samples: 0, rows: rows.clone(), seed };
            Batch { content: Box::new(vec![part]), rows, samples: 0 }
        };
        Ok(parts.into_iter().map(|(name, batch)| (name, batch.map(made))).collect())
    }

    fn loss(&mut self, batch: Batch) -> anyhow::Result<f64> {
        let device = self.source.scoring_device();
        let network = self.network().valid();
        let mut summed = 0.0;
        for Part { batch, seed, .. } in parts::<M::Batch>(batch.content) {
            let loss = randomness::seeded(&device, seed, || self.source.model.loss(&network, batch));
            summed += loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN);
        }
        Ok(summed)
    }

    fn evaluate(&mut self) -> anyhow::Result<Metrics> {
        self.scoring(M::evaluate)
    }

    fn images(&mut self) -> anyhow::Result<Vec<PngImage>> {
        self.scoring(M::images)
    }

    fn conclude(&mut self) -> anyhow::Result<Vec<PathBuf>> {
        self.scoring(M::conclude)
    }
}

impl<M: Model> Source<M> {
    /// Returns the device without gradient tracking.
    fn scoring_device(&self) -> Device {
        self.device.clone().inner()
    }

    fn part(&self, samples: &[usize], draw: Draw, index: usize) -> anyhow::Result<Part<M::Batch>> {
        let mut random = StdRng::seed_from_u64(draw.seed(self.seed, Purpose::Batch, index));
        let batch = self.model.batch(samples, &self.device, &mut random)?;
        let rows = self.by_rows.requests(self.model.rows(&batch));
        Ok(Part { batch, samples: samples.len(), rows, seed: draw.seed(self.seed, Purpose::Step, index) })
    }
}

impl<M: Model> BatchSource for Source<M> {
    fn batch(&self, samples: &[usize], draw: Draw) -> anyhow::Result<Batch> {
        let each = samples.len().div_ceil(self.accumulate).max(1);
        let parts = samples.chunks(each).enumerate().map(|(index, samples)| self.part(samples, draw, index));
        Ok(whole(parts.collect::<anyhow::Result<_>>()?))
    }

    fn parts(&self) -> usize {
        self.accumulate
    }

    fn pack(&self, batch: Batch) -> Result<Vec<PackedPart>, TravelError> {
        let pack = |Part { batch, samples, seed, .. }: Part<M::Batch>| {
            let mut parcel = Parcel::default();
            batch.pack(&mut parcel)?;
            Ok(PackedPart { samples, seed, parcel })
        };
        parts(batch.content).into_iter().map(pack).collect()
    }

    fn unpack(&self, parts: Vec<PackedPart>) -> Result<Batch, TravelError> {
        let unpack = |PackedPart { samples, seed, mut parcel }: PackedPart| {
            let batch = M::Batch::unpack(&mut parcel, &self.device)?;
            if !parcel.is_empty() {
                return Err(TravelError::Malformed(format!("{} tensors too many", parcel.len())));
            }
            let rows = self.by_rows.requests(self.model.rows(&batch));
            Ok(Part { batch, samples, rows, seed })
        };
        Ok(whole(parts.into_iter().map(unpack).collect::<Result<_, _>>()?))
    }
}

/// Makes a batch from these parts.
fn whole<B: Send + 'static>(parts: Vec<Part<B>>) -> Batch {
    let rows = accumulation::union(&parts.iter().map(|part| &part.rows[..]).collect::<Vec<_>>());
    let samples = parts.iter().map(|part| part.samples).sum();
    Batch { content: Box::new(parts), rows, samples }
}

/// A fingerprint of the samples and of how they are spread over files, which decides which worker reads what.
fn fingerprint<M: Model>(model: &M) -> Option<Fingerprint> {
    let (samples, files) = (model.data_fingerprint(), model.sample_files());
    if files.is_empty() {
        return samples;
    }
    Some(Fingerprint::of(format!("{samples:?} in {files:?}").as_bytes()))
}

fn parts<B: 'static>(content: Box<dyn std::any::Any + Send>) -> Vec<Part<B>> {
    *content.downcast().expect("a batch goes to the replica whose source has made it")
}

/// Returns the parameters of a model, from a temporary network.
pub(super) fn table<M: Model>(model: &M, seed: u64) -> Result<ParameterTable, ReplicaError> {
    let (_, specs) = first(model, &Device::flex().autodiff(), seed, tensors::list);
    Ok(described(model, specs?)?.1)
}

/// Makes the table of these parameters, and marks those that are accessed by row.
fn described<M: Model>(
    model: &M,
    mut specs: Vec<ParameterSpec>,
) -> Result<(RowParameters, ParameterTable), ReplicaError> {
    let by_rows = RowParameters::mark(&mut specs, model.row_parameters())?;
    Ok((by_rows, ParameterTable::new(specs)?))
}

/// Makes the network before training, with every parameter drawn, and returns it with what `read` makes of it.
pub(super) fn first<M: Model, T>(
    model: &M,
    device: &Device,
    seed: u64,
    read: impl FnOnce(&M::Network) -> T,
) -> (M::Network, T) {
    randomness::seeded(device, seed, || {
        // Makes the network trainable, whatever device the model made it on.
        let network = model.network(device).train();
        let seen = read(&network);
        (network, seen)
    })
}

/// Returns the values before training. Each device draws different numbers; the CPU's are used everywhere, so that all
/// devices begin with the same values.
fn on_the_processor<M: Model>(model: &M, seed: u64) -> Vec<Vec<f32>> {
    let device = Device::flex().autodiff();
    first(model, &device, seed, |network| tensors::values(network, &device)).1
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
