//! The tags of the curves that every run has. TensorBoard groups charts by the part before the slash, and draws curves
//! with the same tag into one chart, whichever directory they are in.

/// The loss: in training, the mean over the batches since the last point; in evaluation, that of held-out data.
pub const LOSS: &str = "loss/loss";
/// The learning rate.
pub const LEARNING_RATE: &str = "optimizer/learning_rate";
/// The Euclidean norm of the whole gradient.
pub const GRADIENT_NORM: &str = "optimizer/gradient_norm";
/// The age, in updates, of the parameters that a gradient was computed from.
pub const STALENESS: &str = "optimizer/staleness";
/// Samples per second: of all workers or, in a worker's directory, of that worker.
pub const SAMPLES_PER_SECOND: &str = "throughput/samples_per_second";
/// The duration of a step in milliseconds.
pub const STEP_MS: &str = "time/step_ms";
/// The time per step spent computing, in milliseconds.
pub const COMPUTE_MS: &str = "time/compute_ms";
/// The time per step spent waiting for parameter servers, in milliseconds.
pub const WAIT_MS: &str = "time/wait_ms";
/// The time per step spent waiting for data, in milliseconds.
pub const DATA_MS: &str = "time/data_ms";

/// The command line, as text.
pub const COMMAND_LINE: &str = "command_line";
