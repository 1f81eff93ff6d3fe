//! A model in stages, for those that are to be divided among devices: an optional trait beside [`Model`].
//!
//! Each stage has some of the network's parameters. It gets its own part of a batch and what the stages before it have
//! put out; the last one puts out the loss. Where stages run, and when, is not known here.

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

/// A model that can be divided. It says so in its [`Model`] with one line:
/// `fn staging() -> Option<Staging<Self>> { Some(Staging::declared()) }`
pub trait Staged: Model {
    /// The stages, which may depend on the model's flags. Each parameter of the network belongs to one of them.
    fn stages(&self) -> Vec<Stage>;

    /// Gives each stage its part of a batch, such as images to the first and labels to the last. This is done where the
    /// batches are made, ahead of time.
    fn feed(&self, batch: Self::Batch, feeds: &mut Feeds) -> anyhow::Result<()>;

    /// What a stage puts out. Of the network only the parameters of this stage have their values. The last stage puts out
    /// the loss, as [`Model::loss`] does.
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
    /// A stage without parameters, which is fed by no other.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), parameters: Vec::new(), inputs: Vec::new() }
    }

    /// With a parameter of this path in the network, or all those of the module at this path.
    #[must_use]
    pub fn with(mut self, path: impl Into<String>) -> Self {
        self.parameters.push(path.into());
        self
    }

    /// Fed by this stage: it gets all that one puts out, after what those named before it do.
    #[must_use]
    pub fn after(mut self, stage: impl Into<String>) -> Self {
        self.inputs.push(stage.into());
        self
    }
}

/// Parts of a batch, one for each stage.
#[derive(Debug)]
pub struct Feeds {
    stages: Vec<(String, Parcel)>,
}

impl Feeds {
    pub(crate) fn of(plan: &StagePlan) -> Self {
        Self { stages: plan.stages().iter().map(|stage| (stage.name.clone(), Parcel::default())).collect() }
    }

    /// Gives something to a stage, which takes it in the same order by [`StageInput::feed`].
    pub fn to(&mut self, stage: &str, value: impl Travel) -> anyhow::Result<()> {
        let found = self.stages.iter_mut().find(|(name, _)| name == stage);
        let (_, parcel) = found.ok_or_else(|| anyhow!("`feed` names `{stage}`, but the model has no such stage"))?;
        Ok(value.pack(parcel)?)
    }

    pub(crate) fn into_parcels(self) -> Vec<Parcel> {
        self.stages.into_iter().map(|(_, parcel)| parcel).collect()
    }
}

/// What a stage computes on.
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

    /// The next thing of its part of the batch.
    pub fn feed<T: Travel>(&mut self) -> anyhow::Result<T> {
        Ok(T::unpack(&mut self.feed, &self.device)?)
    }

    /// The next tensor of those that the stages before it put out.
    pub fn tensor<const D: usize>(&mut self) -> anyhow::Result<burn::tensor::Tensor<D>> {
        let next = self.received.pop_front();
        next.ok_or_else(|| anyhow!("a stage asks for more tensors than its input stages produce"))?.into_tensor()
    }

    /// How many of those are left.
    pub fn left(&self) -> usize {
        self.received.len()
    }
}

/// What a model's [`Staged`] has, where it is only known that it is a [`Model`].
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
    /// As the trait says.
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

    /// The parts of a batch, in the order of the stages.
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
