//! The adapter between Burn and the parameters as the servers know them: one buffer of floats a parameter, in
//! the order of the module's paths. Values go in and gradients come out in the memory that Burn gave them, without
//! being copied (see [`crate::buffer`]).

use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::Device;
use windlass_core::parameter::{ParameterError, ParameterKind, ParameterTable};
use windlass_wire::client::RowRequest;

use crate::buffer::TensorBuffer;
use crate::event::HeldOut;
use crate::model::{Metrics, Model};
use crate::randomness::{self, Draw, Purpose};
use crate::rows::{RowParameters, UnknownRowParameter};
use crate::tensors::{self, LargeInteger};

/// Why a model's parameters cannot be trained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// They do not make a table.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    /// One that is to be reached by rows is not there.
    #[error(transparent)]
    Rows(#[from] UnknownRowParameter),
    /// One has an integer that cannot be kept.
    #[error(transparent)]
    Integer(#[from] LargeInteger),
}

/// A worker's copy of the model.
pub struct Replica<M: Model> {
    model: M,
    network: Option<M::Network>,
    device: Device,
    table: ParameterTable,
    by_rows: RowParameters,
    /// Whether there are running statistics.
    has_state: bool,
    seed: u64,
    /// Whether the network still has its first values.
    is_fresh: bool,
}

impl<M: Model> Replica<M> {
    /// Makes the network and lists its parameters.
    pub fn new(model: M, device: &Device, seed: u64) -> Result<Self, ReplicaError> {
        let device = device.clone().autodiff();
        let (network, specs) = first(&model, &device, seed, tensors::list);
        let mut specs = specs?;
        let by_rows = RowParameters::mark(&mut specs, model.row_parameters())?;
        let table = ParameterTable::new(specs)?;
        let has_state = table.iter().any(|(_, spec)| spec.kind == ParameterKind::State);
        Ok(Self { model, network: Some(network), device, table, by_rows, has_state, seed, is_fresh: true })
    }

    /// The parameters, by path.
    pub fn table(&self) -> &ParameterTable {
        &self.table
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// A copy of the values the network has now.
    pub fn values(&self) -> Vec<Vec<f32>> {
        tensors::values(self.network())
    }

    /// The values the network had before training, however far that has come.
    pub fn first_values(&self) -> Vec<Vec<f32>> {
        // A step may have left running statistics behind.
        if self.is_fresh && !self.has_state {
            return self.values();
        }
        first(&self.model, &self.device, self.seed, tensors::values).1
    }

    /// Replaces the values; where a buffer is empty, what is there stays. Of a parameter reached by rows there may be any
    /// number of rows.
    pub fn load<B: Into<TensorBuffer>>(&mut self, values: Vec<B>) {
        self.put(values);
        self.is_fresh = false;
    }

    fn put<B: Into<TensorBuffer>>(&mut self, values: Vec<B>) {
        let network = self.network.take().expect("the network is put back after every use");
        let values = values.into_iter().map(Into::into).collect();
        self.network = Some(tensors::load(network, values, &self.device));
    }

    /// Puts a batch together.
    pub fn batch(&self, samples: &[usize], draw: Draw) -> M::Batch {
        let seed = draw.seed(self.seed, Purpose::Batch);
        randomness::seeded(&self.device, seed, || self.model.batch(samples, &self.device))
    }

    /// Whether there are parameters that are reached by rows.
    pub(crate) fn has_rows(&self) -> bool {
        !self.by_rows.is_empty()
    }

    /// The rows that a batch touches.
    pub(crate) fn rows(&self, batch: &M::Batch) -> Vec<RowRequest> {
        self.by_rows.requests(self.model.rows(batch))
    }

    /// Whether there is anything to train.
    pub(crate) fn is_trainable(&self) -> bool {
        self.table.iter().any(|(_, spec)| spec.kind.is_trained())
    }

    /// What is pulled once, before training, and stays.
    pub(crate) fn constants(&self) -> Vec<RowRequest> {
        self.by_rows.constants(&self.table)
    }

    /// The loss on a batch and its gradients. The buffers of what is not trained are empty.
    pub fn step(&self, batch: M::Batch, draw: Draw) -> (f32, Vec<TensorBuffer>) {
        let network = self.network();
        let seed = draw.seed(self.seed, Purpose::Step);
        let loss = randomness::seeded(&self.device, seed, || self.model.loss(network, batch));
        if self.has_state {
            // Only this has Burn bring running state up to date. Otherwise the next forward pass would, with what it
            // has kept from this one, over whatever has been loaded in between.
            drop(network.valid());
        }
        let mut gradients = loss.backward();
        let loss = loss.inner().into_data().iter::<f32>().next().unwrap_or(f32::NAN);
        (loss, tensors::take_gradients(network, &mut gradients))
    }

    /// Puts the running statistics after a step in the places of the gradients that they do not have.
    pub fn add_state(&self, gradients: &mut [TensorBuffer]) {
        if self.has_state {
            let state = tensors::state(self.network(), &self.table).into_iter();
            let state = gradients.iter_mut().zip(state).filter(|(_, state)| !state.is_empty());
            state.for_each(|(place, state)| *place = state);
        }
    }

    /// Computes one step and throws it away. As in training, there are only the rows that the batch touches.
    pub(crate) fn rehearse(&mut self, batch: M::Batch, draw: Draw) {
        let state = self.has_state.then(|| tensors::state(self.network(), &self.table));
        if self.has_rows() {
            let whole = self.network().clone();
            let mut values = self.values();
            for RowRequest { parameter, rows } in self.rows(&batch) {
                let (width, table) = (self.table[parameter].width(), &mut values[parameter.0 as usize]);
                *table = rows.iter().flat_map(|row| &table[*row as usize * width..][..width]).copied().collect();
            }
            self.put(values);
            self.step(batch, draw);
            self.network = Some(whole);
        } else {
            self.step(batch, draw);
        }
        // Burn's copies of a network share its running state.
        state.into_iter().for_each(|state| self.put(state));
    }

    /// The loss on each part of the held-out data, with the values that `pull` gives for the rows it is asked for.
    pub(crate) fn score_held_out<E>(
        &mut self,
        draw: u64,
        mut pull: impl FnMut(Vec<RowRequest>) -> Result<Vec<TensorBuffer>, E>,
    ) -> Result<Vec<HeldOut>, E> {
        let (device, seed) = (self.device.clone().inner(), randomness::scoring_seed(self.seed, draw));
        let parts = randomness::seeded(&device, seed, || self.model.held_out(draw, &device));
        let score = |(name, batch): (String, Option<M::Batch>)| {
            let Some(batch) = batch else { return Ok(HeldOut { name, loss: None }) };
            self.load(pull(self.rows(&batch))?);
            let network = self.network().valid();
            let loss = randomness::seeded(&device, seed, || self.model.loss(&network, batch));
            Ok(HeldOut { name, loss: Some(loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN)) })
        };
        parts.into_iter().map(score).collect()
    }

    /// Scores the network.
    pub fn evaluate(&self) -> Metrics {
        self.scoring(|network, device| self.model.evaluate(network, device))
    }

    /// Lets the model do what it does with a trained network, and returns the files that it wrote.
    pub fn conclude(&self) -> anyhow::Result<Vec<PathBuf>> {
        self.scoring(|network, device| self.model.conclude(network, device))
    }

    /// Uses the network as it is in use, when it is no longer trained.
    fn scoring<T>(&self, work: impl FnOnce(&M::Network, &Device) -> T) -> T {
        let (device, network) = (self.device.clone().inner(), self.network().valid());
        randomness::seeded(&device, randomness::scoring_seed(self.seed, 0), || work(&network, &device))
    }

    fn network(&self) -> &M::Network {
        self.network.as_ref().expect("the network is put back after every use")
    }
}

/// The network before training, with every parameter drawn, and what is made of it.
fn first<M: Model, T>(model: &M, device: &Device, seed: u64, look: impl FnOnce(&M::Network) -> T) -> (M::Network, T) {
    randomness::seeded(device, seed, || {
        // Whatever device it was made on, it is one that is trained.
        let network = model.network(device).train();
        let seen = look(&network);
        (network, seen)
    })
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
