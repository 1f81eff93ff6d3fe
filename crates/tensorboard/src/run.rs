//! The curves of one training run: `train/` and `eval/` below its directory, which TensorBoard shows in one chart when
//! their tags are the same.

use std::path::Path;

use crate::error::BoardError;
use crate::writer::{EventWriter, Moment};

/// The tags of the curves that every run has.
pub mod tag {
    /// The loss.
    pub const LOSS: &str = "loss";
    /// The share of samples that were right, from 0 to 1.
    pub const ACCURACY: &str = "accuracy";
    /// e to the mean loss of a word.
    pub const PERPLEXITY: &str = "perplexity";
    /// The learning rate.
    pub const LEARNING_RATE: &str = "learning_rate";
    /// The duration of a step in milliseconds.
    pub const STEP_MS: &str = "step_ms";
    /// Samples a second, over all workers.
    pub const SAMPLES_PER_SECOND: &str = "samples_per_second";
    /// The length of the gradient as one vector.
    pub const GRADIENT_NORM: &str = "gradient_norm";
    /// How many updates old the parameters were from which a gradient was computed.
    pub const STALENESS: &str = "staleness";
}

/// What a run shows in TensorBoard. How often is worth a point is for the caller to decide.
#[derive(Debug)]
pub struct RunBoard {
    train: EventWriter,
    eval: EventWriter,
}

impl RunBoard {
    /// Starts the curves of a new run in `directory`, with its configuration in the Text tab, as it is. Curves of a run
    /// that was there before are no longer shown.
    pub fn create(directory: impl AsRef<Path>, config: &str) -> Result<Self, BoardError> {
        let mut board = Self::resume(directory, 0)?;
        board.train.text(Moment::now(0), "config", &preformatted(config))?;
        board.flush()?;
        Ok(board)
    }

    /// Continues the curves in `directory`. `step` is the first that is computed again: from there on the old points
    /// give way to new ones.
    pub fn resume(directory: impl AsRef<Path>, step: u64) -> Result<Self, BoardError> {
        let directory = directory.as_ref();
        let train = EventWriter::resume(directory.join("train"), step)?;
        let eval = EventWriter::resume(directory.join("eval"), step)?;
        Ok(Self { train, eval })
    }

    /// Writes one point of several curves of training.
    pub fn train(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<(), BoardError> {
        self.train.scalars(Moment::now(step), scalars)
    }

    /// Writes one point of several curves of evaluation.
    pub fn eval(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<(), BoardError> {
        self.eval.scalars(Moment::now(step), scalars)
    }

    /// Writes the histogram of the finite ones of `values`. Returns how many were not finite and so left out.
    pub fn histogram(&mut self, step: u64, tag: &str, values: &[f32]) -> Result<usize, BoardError> {
        self.train.histogram(Moment::now(step), tag, values)
    }

    /// Hands everything to the system: for those who watch, and before a checkpoint is published, so that a run that
    /// resumes from it has no gap.
    pub fn flush(&mut self) -> Result<(), BoardError> {
        self.train.flush().and(self.eval.flush())
    }
}

/// `text` as a block of code in Markdown. Indented, because a fence could be in the text.
fn preformatted(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
