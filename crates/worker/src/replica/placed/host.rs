//! Where a stage is computed: on a device of this process, or in another one. The step gives it values, inputs and
//! gradients as they lie in the host's memory, and does not know which it is.

use burn::tensor::TensorData;

use crate::buffer::TensorBuffer;
use crate::travel::Parcel;

/// A stage with its parameters.
pub(crate) trait StageHost: Send {
    /// How many parameters it has.
    fn parameters(&self) -> usize;

    /// Whether it has lost the values that it was given, and has to be given all of them with the next step.
    fn needs_all_values(&mut self) -> bool {
        false
    }

    /// Begins a step. Whatever was left of an earlier one is dropped.
    fn begin(&mut self, start: StageStart) -> anyhow::Result<()>;

    /// What the stage puts out for a micro-batch. It keeps what it takes to go back.
    fn forward(&mut self, micro: usize, input: StageForward) -> anyhow::Result<Vec<TensorData>>;

    /// Goes back through a micro-batch, with the gradient of each output unless nobody used it. Adds up the gradients of
    /// its parameters, and returns those of its inputs.
    fn backward(&mut self, micro: usize, gradients: Vec<Option<TensorData>>)
    -> anyhow::Result<Vec<Option<TensorData>>>;

    /// Ends a step: what has come of all micro-batches.
    fn finish(&mut self) -> anyhow::Result<StageResult>;
}

/// What a step begins with. Lists are of the stage's own parameters, in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StageStart {
    /// New values; where a buffer is empty, what is there stays. Of parameters accessed by row, the rows of the step.
    pub(crate) values: Vec<TensorBuffer>,
    /// Which rows those are, by the number of the parameter.
    pub(crate) rows: Vec<StageRows>,
}

/// Rows of a parameter, by its number among those of the stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StageRows {
    pub(crate) parameter: usize,
    pub(crate) rows: Vec<u32>,
}

/// What a stage computes a micro-batch on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StageForward {
    /// Its part of the micro-batch.
    pub(crate) feed: Parcel,
    /// What the stages before it have put out.
    pub(crate) inputs: Vec<TensorData>,
    /// The rows that the micro-batch has, of each parameter of [`StageStart::rows`].
    pub(crate) rows: Vec<Vec<u32>>,
    /// Of Burn's random numbers.
    pub(crate) seed: u64,
}

/// What comes of a step, by the stage's own parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StageResult {
    /// Empty if it is not trained.
    pub(crate) gradients: Vec<TensorBuffer>,
    /// Running state after the step; otherwise empty, or all are left out.
    pub(crate) state: Vec<TensorBuffer>,
}
