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
        let mut board = Self::resume(directory, 0, 0)?;
        board.train.text(Moment::now(0), "config", &preformatted(config))?;
        board.flush()?;
        Ok(board)
    }

    /// Continues the curves in `directory`. `train` and `eval` are the first steps of either that are computed again: from
    /// there on the old points give way to new ones.
    pub fn resume(directory: impl AsRef<Path>, train: u64, eval: u64) -> Result<Self, BoardError> {
        let directory = directory.as_ref();
        Ok(Self {
            train: EventWriter::resume(directory.join("train"), train)?,
            eval: EventWriter::resume(directory.join("eval"), eval)?,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::What;

    /// The (step, tag) of everything shown in one sub-directory, in the order of the files.
    fn shown(directory: &Path) -> Vec<(i64, String)> {
        let mut paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let events = paths.iter().flat_map(|path| crate::record::parse(&std::fs::read(path).unwrap()));
        let summaries = events.filter_map(|event| match event.what {
            Some(What::Summary(summary)) => Some((event.step, summary)),
            _ => None,
        });
        summaries.flat_map(|(step, summary)| summary.values.into_iter().map(move |value| (step, value.tag))).collect()
    }

    #[test]
    fn training_and_evaluation_have_the_same_tags_in_directories_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let mut board = RunBoard::create(directory.path(), "seed = 1").unwrap();
        board.train(1, &[(tag::LOSS, 2.0), (tag::STEP_MS, 1.0)]).unwrap();
        board.eval(1, &[(tag::LOSS, 2.1)]).unwrap();
        board.histogram(1, "weights", &[0.5]).unwrap();
        drop(board);
        let mut board = RunBoard::resume(directory.path(), 2, 2).unwrap();
        board.train(2, &[(tag::LOSS, 1.9)]).unwrap();
        board.flush().unwrap();
        let points = |points: &[(i64, &str)]| points.iter().map(|(step, tag)| (*step, tag.to_string())).collect();
        let train: Vec<_> = points(&[(0, "config"), (1, "loss"), (1, "step_ms"), (1, "weights"), (2, "loss")]);
        assert_eq!(shown(&directory.path().join("train")), train);
        let eval: Vec<_> = points(&[(1, "loss")]);
        assert_eq!(shown(&directory.path().join("eval")), eval);
    }

    #[test]
    fn a_config_is_shown_as_it_is_whatever_marks_it_has() {
        assert_eq!(preformatted("[a]\n\n```\nb = \"*\""), "    [a]\n    \n    ```\n    b = \"*\"\n");
    }
}
