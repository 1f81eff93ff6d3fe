//! The adapter between Burn and the parameters as the servers know them: one buffer of floats a parameter, in
//! the order of the module's paths. Values go in and gradients come out without being copied.

use std::path::PathBuf;
use std::sync::Mutex;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Shape, Tensor, TensorData};
use windlass_core::parameter::{Access, ParameterError, ParameterSpec, ParameterTable};
use windlass_wire::client::RowRequest;

use crate::event::HeldOut;
use crate::model::{Metrics, Model};
use crate::rows::{RowParameters, UnknownRowParameter};

/// Burn's random numbers are global: one network is made at a time, so that a seed gives the same one.
static INITIALISING: Mutex<()> = Mutex::new(());

/// Why a model's parameters cannot be trained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// They do not make a table.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    /// One that is to be reached by rows is not there.
    #[error(transparent)]
    Rows(#[from] UnknownRowParameter),
}

/// A worker's copy of the model.
pub struct Replica<M: Model> {
    model: M,
    network: Option<M::Network>,
    device: Device,
    table: ParameterTable,
    by_rows: RowParameters,
    seed: u64,
    /// Whether the network still has its first values.
    is_fresh: bool,
}

impl<M: Model> Replica<M> {
    /// Makes the network and lists its parameters.
    pub fn new(model: M, device: &Device, seed: u64) -> Result<Self, ReplicaError> {
        let device = device.clone().autodiff();
        let mut collector = Collector::default();
        let network = first(&model, &device, seed, &mut collector);
        let by_rows = RowParameters::mark(&mut collector.specs, model.row_parameters())?;
        let table = ParameterTable::new(collector.specs)?;
        Ok(Self { model, network: Some(network), device, table, by_rows, seed, is_fresh: true })
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
        let mut reader = Reader(Vec::with_capacity(self.table.len()));
        self.network().visit(&mut reader);
        reader.0
    }

    /// The values the network had before training, however far that has come.
    pub fn first_values(&self) -> Vec<Vec<f32>> {
        if self.is_fresh {
            return self.values();
        }
        let mut reader = Reader(Vec::with_capacity(self.table.len()));
        first(&self.model, &self.device, self.seed, &mut reader);
        reader.0
    }

    /// Replaces all values. Of a parameter reached by rows there may be any number of rows.
    pub fn load(&mut self, values: Vec<Vec<f32>>) {
        let network = self.network.take().expect("the network is put back after every use");
        let mut loader = Loader { values: values.into_iter(), device: &self.device };
        self.network = Some(network.map(&mut loader));
        self.is_fresh = false;
    }

    /// Puts a batch together.
    pub fn batch(&self, samples: &[usize]) -> M::Batch {
        self.model.batch(samples, &self.device)
    }

    /// Whether there are parameters that are reached by rows.
    pub(crate) fn has_rows(&self) -> bool {
        !self.by_rows.is_empty()
    }

    /// The rows that a batch touches.
    pub(crate) fn rows(&self, batch: &M::Batch) -> Vec<RowRequest> {
        self.by_rows.requests(self.model.rows(batch))
    }

    /// The loss on a batch and its gradients.
    pub fn step(&self, batch: M::Batch) -> (f32, Vec<Vec<f32>>) {
        let network = self.network();
        let loss = self.model.loss(network, batch);
        let mut gradients = loss.backward();
        let loss = loss.inner().into_data().iter::<f32>().next().unwrap_or(f32::NAN);
        let mut taker = Taker { gradients: &mut gradients, taken: Vec::with_capacity(self.table.len()) };
        network.visit(&mut taker);
        (loss, taker.taken)
    }

    /// Computes one step and throws it away. As in training, there are only the rows that the batch touches.
    pub(crate) fn rehearse(&mut self, batch: M::Batch) {
        if !self.has_rows() {
            self.step(batch);
            return;
        }
        let whole = self.network().clone();
        let mut values = self.values();
        for RowRequest { parameter, rows } in self.rows(&batch) {
            let (width, table) = (self.table[parameter].width(), &mut values[parameter.0 as usize]);
            *table = rows.iter().flat_map(|row| &table[*row as usize * width..][..width]).copied().collect();
        }
        let is_fresh = self.is_fresh;
        self.load(values);
        self.step(batch);
        (self.network, self.is_fresh) = (Some(whole), is_fresh);
    }

    /// The loss on each part of the held-out data, with the values that `pull` gives for the rows it is asked for.
    pub(crate) fn score_held_out<E>(
        &mut self,
        draw: u64,
        mut pull: impl FnMut(Vec<RowRequest>) -> Result<Vec<Vec<f32>>, E>,
    ) -> Result<Vec<HeldOut>, E> {
        let parts = self.model.held_out(draw, &self.device.clone().inner());
        let score = |(name, batch): (String, Option<M::Batch>)| {
            let Some(batch) = batch else { return Ok(HeldOut { name, loss: None }) };
            self.load(pull(self.rows(&batch))?);
            let loss = self.model.loss(&self.network().valid(), batch);
            Ok(HeldOut { name, loss: Some(loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN)) })
        };
        parts.into_iter().map(score).collect()
    }

    /// Scores the network.
    pub fn evaluate(&self) -> Metrics {
        self.model.evaluate(&self.network().valid(), &self.device.clone().inner())
    }

    /// Lets the model do what it does with a trained network, and returns the files that it wrote.
    pub fn conclude(&self) -> anyhow::Result<Vec<PathBuf>> {
        self.model.conclude(&self.network().valid(), &self.device.clone().inner())
    }

    fn network(&self) -> &M::Network {
        self.network.as_ref().expect("the network is put back after every use")
    }
}

/// The network before training. By being looked at, all its parameters are drawn.
fn first<M: Model>(model: &M, device: &Device, seed: u64, look: &mut impl ModuleVisitor) -> M::Network {
    let _alone = INITIALISING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    device.seed(seed);
    let network = model.network(device);
    network.visit(look);
    network
}

/// Lists the parameters, and by looking at each makes those that Burn would only make when they are used.
#[derive(Default)]
struct Collector {
    path: Vec<String>,
    specs: Vec<ParameterSpec>,
}

impl ModuleVisitor for Collector {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.val().dims().to_vec();
        self.specs.push(ParameterSpec { name: self.path.join("."), shape, access: Access::Dense });
    }
}

struct Reader(Vec<Vec<f32>>);

impl ModuleVisitor for Reader {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(into_floats(param.val().inner()));
    }
}

struct Loader<'a> {
    values: std::vec::IntoIter<Vec<f32>>,
    device: &'a Device,
}

impl ModuleMapper for Loader<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let values = self.values.next().expect("one buffer a parameter");
        param.map(|old| {
            let mut shape: Shape = old.shape();
            drop(old);
            // What is reached by rows has as many as were asked for.
            shape[0] = values.len() / shape.iter().skip(1).product::<usize>();
            Tensor::from_data(TensorData::new(values, shape), self.device).require_grad()
        })
    }
}

struct Taker<'a> {
    gradients: &'a mut Gradients,
    taken: Vec<Vec<f32>>,
}

impl ModuleVisitor for Taker<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        self.taken.push(match value.grad_remove(self.gradients) {
            Some(gradient) => into_floats(gradient),
            // A parameter that the loss does not depend on.
            None => vec![0.0; value.shape().num_elements()],
        });
    }
}

fn into_floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().expect("parameters are floats")
}
