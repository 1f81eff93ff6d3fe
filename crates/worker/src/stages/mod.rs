//! A model in stages that can be divided among devices: an optional trait beside [`Model`].
//!
//! Each stage has some of the network's parameters. It gets its own part of a batch and the outputs of the stages
//! before it; the last one returns the loss. This module does not know where and when stages run.

mod activation;
mod plan;

use std::collections::VecDeque;

use anyhow::{anyhow, ensure};
use burn::tensor::Device;

pub use self::activation::Activation;
pub(crate) use self::activation::flat;
pub use self::plan::StagesError;
pub(crate) use self::plan::{PlannedStage, StagePlan};
use crate::model::Model;
use crate::travel::{Parcel, Travel};

/// A model that can be divided. Its [`Model`] declares so with one line:
/// `fn staging() -> Option<Staging<Self>> { Some(Staging::declared()) }`
pub trait Staged: Model {
    /// The stages, which may depend on the model's flags. Each parameter of the network belongs to one of them.
    fn stages(&self) -> Vec<Stage>;

    /// Gives each stage its part of a batch, such as images to the first and labels to the last. This runs where
    /// batches are made, ahead of time.
    fn feed(&self, batch: Self::Batch, feeds: &mut Feeds) -> anyhow::Result<()>;

    /// Returns the outputs of a stage. Of the network, only the parameters of this stage have their values. The last
    /// stage returns the loss, as [`Model::loss`] does.
    fn forward(&self, network: &Self::Network, stage: &str, input: StageInput) -> anyhow::Result<Vec<Activation>>;
}

/// A part of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    name: String,
    parameters: Vec<String>,
    inputs: Vec<String>,
}

impl Stage {
    /// A stage without parameters or inputs.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), parameters: Vec::new(), inputs: Vec::new() }
    }

    /// Adds the parameter at this path in the network, or all parameters of the module at this path.
    #[must_use]
    pub fn with(mut self, path: impl Into<String>) -> Self {
        self.parameters.push(path.into());
        self
    }

    /// Adds a stage that feeds this one: its outputs come after those of the stages added before it.
    #[must_use]
    pub fn after(mut self, stage: impl Into<String>) -> Self {
        self.inputs.push(stage.into());
        self
    }
}

/// The parts of a batch, one for each stage.
#[derive(Debug)]
pub struct Feeds {
    stages: Vec<(String, Parcel)>,
}

impl Feeds {
    pub(crate) fn of(plan: &StagePlan) -> Self {
        Self { stages: plan.stages().iter().map(|stage| (stage.name.clone(), Parcel::default())).collect() }
    }

    /// Gives a value to a stage, which takes its values in the same order with [`StageInput::feed`].
    pub fn to(&mut self, stage: &str, value: impl Travel) -> anyhow::Result<()> {
        let found = self.stages.iter_mut().find(|(name, _)| name == stage);
        let (_, parcel) = found.ok_or_else(|| anyhow!("`feed` names `{stage}`, but the model has no such stage"))?;
        Ok(value.pack(parcel)?)
    }

    pub(crate) fn into_parcels(self) -> Vec<Parcel> {
        self.stages.into_iter().map(|(_, parcel)| parcel).collect()
    }
}

/// The input of a stage.
#[derive(Debug)]
pub struct StageInput {
    feed: Parcel,
    received: VecDeque<Activation>,
    device: Device,
}

impl StageInput {
    pub(crate) fn new(feed: Parcel, received: Vec<Activation>, device: Device) -> Self {
        Self { feed, received: received.into(), device }
    }

    /// Returns the next value of the stage's part of the batch.
    pub fn feed<T: Travel>(&mut self) -> anyhow::Result<T> {
        Ok(T::unpack(&mut self.feed, &self.device)?)
    }

    /// Returns the next tensor of the outputs of earlier stages.
    pub fn tensor<const D: usize>(&mut self) -> anyhow::Result<burn::tensor::Tensor<D>> {
        let next = self.received.pop_front();
        next.ok_or_else(|| anyhow!("a stage asks for more tensors than its input stages produce"))?.into_tensor()
    }

    /// The number of those tensors that are left.
    pub fn left(&self) -> usize {
        self.received.len()
    }
}

/// The functions of a model's [`Staged`], for code that only knows that it is a [`Model`].
pub struct Staging<M: Model> {
    stages: fn(&M) -> Vec<Stage>,
    feed: fn(&M, M::Batch, &mut Feeds) -> anyhow::Result<()>,
    forward: Forward<M>,
}

/// See [`Staged::forward`].
type Forward<M> = fn(&M, &<M as Model>::Network, &str, StageInput) -> anyhow::Result<Vec<Activation>>;

impl<M: Model> Clone for Staging<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Model> Copy for Staging<M> {}

impl<M: Staged> Staging<M> {
    /// Returns the functions of the trait.
    pub fn declared() -> Self {
        Self { stages: M::stages, feed: M::feed, forward: M::forward }
    }
}

impl<M: Model> Staging<M> {
    /// The names of the stages.
    pub fn names(&self, model: &M) -> Vec<String> {
        self.stages(model).into_iter().map(|stage| stage.name).collect()
    }

    pub(crate) fn stages(&self, model: &M) -> Vec<Stage> {
        (self.stages)(model)
    }

    /// Returns the parts of a batch, in the order of the stages.
    pub(crate) fn feeds(&self, model: &M, batch: M::Batch, plan: &StagePlan) -> anyhow::Result<Vec<Parcel>> {
        let mut feeds = Feeds::of(plan);
        (self.feed)(model, batch, &mut feeds)?;
        Ok(feeds.into_parcels())
    }

    pub(crate) fn forward(
        &self,
        model: &M,
        network: &M::Network,
        stage: &str,
        input: StageInput,
    ) -> anyhow::Result<Vec<Activation>> {
        let outputs = (self.forward)(model, network, stage, input)?;
        ensure!(!outputs.is_empty(), "stage {stage} has no output");
        Ok(outputs)
    }
}
