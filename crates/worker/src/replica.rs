//! The adapter between Burn and the parameters as the servers know them: one buffer of floats a parameter, in
//! the order of the module's paths. Values go in and gradients come out without being copied.

use std::path::PathBuf;
use std::sync::Mutex;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Shape, Tensor, TensorData};
use windlass_core::parameter::{Access, ParameterError, ParameterSpec, ParameterTable};

use crate::model::{Metrics, Model};

/// Burn's random numbers are global: one network is made at a time, so that a seed gives the same one.
static INITIALISING: Mutex<()> = Mutex::new(());

/// A worker's copy of the model.
pub struct Replica<M: Model> {
    model: M,
    network: Option<M::Network>,
    device: Device,
    table: ParameterTable,
}

impl<M: Model> Replica<M> {
    /// Makes the network and lists its parameters.
    pub fn new(model: M, device: &Device, seed: u64) -> Result<Self, ParameterError> {
        let device = device.clone().autodiff();
        let mut collector = Collector::default();
        let network = {
            let _alone = INITIALISING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            device.seed(seed);
            let network = model.network(&device);
            network.visit(&mut collector);
            network
        };
        let table = ParameterTable::new(collector.specs)?;
        Ok(Self { model, network: Some(network), device, table })
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

    /// Replaces all values.
    pub fn load(&mut self, values: Vec<Vec<f32>>) {
        let network = self.network.take().expect("the network is put back after every use");
        let mut loader = Loader { values: values.into_iter(), device: &self.device };
        self.network = Some(network.map(&mut loader));
    }

    /// Puts a batch together.
    pub fn batch(&self, samples: &[usize]) -> M::Batch {
        self.model.batch(samples, &self.device)
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
            let shape: Shape = old.shape();
            drop(old);
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
