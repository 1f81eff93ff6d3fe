//! The tags of the curves that every run has. TensorBoard groups charts by what is before the slash, and draws curves with
//! the same tag in one chart, whichever directory they are in.

/// The loss: in training the mean over the batches since the last point, in evaluation that of held-out data.
pub const LOSS: &str = "loss/loss";
/// The learning rate.
pub const LEARNING_RATE: &str = "optimizer/learning_rate";
/// The length of the gradient as one vector.
pub const GRADIENT_NORM: &str = "optimizer/gradient_norm";
/// How many updates old the parameters were from which a gradient was computed.
pub const STALENESS: &str = "optimizer/staleness";
/// Samples a second: of all workers, or in the directory of a worker of that one.
pub const SAMPLES_PER_SECOND: &str = "throughput/samples_per_second";
/// The duration of a step in milliseconds.
pub const STEP_MS: &str = "time/step_ms";
/// The part of it that was computing.
pub const COMPUTE_MS: &str = "time/compute_ms";
/// The part of it that was waiting for parameter servers.
pub const WAIT_MS: &str = "time/wait_ms";
/// The part of it that was waiting for data.
pub const DATA_MS: &str = "time/data_ms";

/// The command line, as text.
pub const COMMAND_LINE: &str = "command_line";
