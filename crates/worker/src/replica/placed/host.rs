//! Where a stage is computed: on a device of this process, or in another process. The step passes values, inputs and
//! gradients in host memory, and does not know which it is.

use burn::tensor::TensorData;

use crate::buffer::TensorBuffer;
use crate::travel::Parcel;

/// A stage with its parameters.
pub(crate) trait StageHost: Send {
    /// The number of parameters.
    fn parameters(&self) -> usize;

    /// Whether the stage has lost the values that it was given, and needs all of them with the next step.
    fn needs_all_values(&mut self) -> bool {
        false
    }

    /// Begins a step and drops whatever is left of an earlier one.
    fn begin(&mut self, start: StageStart) -> anyhow::Result<()>;

    /// Returns the stage's outputs for a micro-batch, and keeps what the backward pass needs.
    fn forward(&mut self, micro: usize, input: StageForward) -> anyhow::Result<Vec<TensorData>>;

    /// Runs the backward pass of a micro-batch, with the gradient of each output that was used. Adds up the gradients
    /// of its parameters, and returns those of its inputs.
    fn backward(&mut self, micro: usize, gradients: Vec<Option<TensorData>>)
    -> anyhow::Result<Vec<Option<TensorData>>>;

    /// Ends a step and returns the result of all micro-batches.
    fn finish(&mut self) -> anyhow::Result<StageResult>;
}

/// What a step begins with. Lists are over the stage's own parameters, in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StageStart {
    /// New values; an empty buffer keeps the current ones. Parameters accessed by row have the rows of the step.
    pub(crate) values: Vec<TensorBuffer>,
    /// Those rows, by the number of the parameter.
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
    /// The stage's part of the micro-batch.
    pub(crate) feed: Parcel,
    /// The outputs of the stages that feed this one.
    pub(crate) inputs: Vec<TensorData>,
    /// The rows that the micro-batch uses of each parameter in [`StageStart::rows`].
    pub(crate) rows: Vec<Vec<u32>>,
    /// The seed of Burn's random numbers.
    pub(crate) seed: u64,
}

/// The result of a step, by the stage's own parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StageResult {
    /// The gradients; empty for parameters that are not trained.
    pub(crate) gradients: Vec<TensorBuffer>,
    /// Running state after the step, with empty buffers for other parameters; the list is empty if there is none.
    pub(crate) state: Vec<TensorBuffer>,
}
