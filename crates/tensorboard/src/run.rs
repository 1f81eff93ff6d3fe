//! What one training run shows: its description, and its curves, in directories. TensorBoard draws curves with the same
//! tag into one chart.
//!
//! ```text
//! train/     the curves of training, over all workers; the command line; histograms
//! eval/      the scores of evaluations, pictures, hyperparameters
//! worker_0/  speed and times of each worker
//! ```
//!
//! Hyperparameters are in `eval` rather than in its parent directory: the metrics of a session are the curves in its
//! own directory and below, but TensorBoard finds nothing below the directory that it was started with.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::BoardError;
use crate::hparams::HParam;
use crate::tag;
use crate::writer::{EventWriter, Moment, set_aside};

/// The description of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Description {
    /// The command line that started it.
    pub command_line: String,
    /// Its hyperparameters, by name.
    pub hparams: Vec<(String, HParam)>,
    /// The number of workers, if known.
    pub workers: Option<u32>,
}

/// The curves and other data that a run shows in TensorBoard. The caller decides how often a point is worth writing.
#[derive(Debug)]
pub struct RunBoard {
    train: EventWriter,
    eval: EventWriter,
}

impl RunBoard {
    /// Starts the curves of a new run in `directory`. Those of an earlier run there are no longer shown.
    pub fn create(directory: impl AsRef<Path>, description: &Description) -> Result<Self, BoardError> {
        let directory = directory.as_ref();
        set_aside_workers_from(description.workers, directory)?;
        let train = EventWriter::create(directory.join("train"))?;
        let eval = EventWriter::create(directory.join("eval"))?;
        Self { train, eval }.described(description, [0, 0])
    }

    /// Continues the curves in `directory`. `train` and `eval` are the first steps of either that are computed again:
    /// from there on, new points replace the old ones.
    pub fn resume(
        directory: impl AsRef<Path>,
        description: &Description,
        train: u64,
        eval: u64,
    ) -> Result<Self, BoardError> {
        let directory = directory.as_ref();
        let board = Self {
            train: EventWriter::resume(directory.join("train"), train)?,
            eval: EventWriter::resume(directory.join("eval"), eval)?,
        };
        board.described(description, [train.saturating_sub(1), eval.saturating_sub(1)])
    }

    /// Writes the description of the run to both directories, at these steps.
    fn described(mut self, description: &Description, [train, eval]: [u64; 2]) -> Result<Self, BoardError> {
        self.train.text(Moment::now(train), tag::COMMAND_LINE, &preformatted(&description.command_line))?;
        self.eval.session_start(Moment::now(eval), &description.hparams)?;
        self.flush()?;
        Ok(self)
    }

    /// Writes one point of several curves of training.
    pub fn train(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<(), BoardError> {
        self.train.scalars(Moment::now(step), scalars)
    }

    /// Writes one point of several curves of evaluation.
    pub fn eval(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<(), BoardError> {
        self.eval.scalars(Moment::now(step), scalars)
    }

    /// Writes a picture that shows how well the network performs, as a PNG file.
    pub fn image(&mut self, step: u64, tag: &str, png: &[u8]) -> Result<(), BoardError> {
        self.eval.image(Moment::now(step), tag, png)
    }

    /// Writes the histogram of the finite values. Returns how many were not finite and hence left out.
    pub fn histogram(&mut self, step: u64, tag: &str, values: &[f32]) -> Result<usize, BoardError> {
        self.train.histogram(Moment::now(step), tag, values)
    }

    /// Writes that the run has ended successfully after this step.
    pub fn end(&mut self, step: u64) -> Result<(), BoardError> {
        self.eval.session_end(Moment::now(step))
    }

    /// Writes out all buffered events, for TensorBoard to show. Also called before a checkpoint is published, so that a
    /// run that resumes from it has no gap.
    pub fn flush(&mut self) -> Result<(), BoardError> {
        self.train.flush().and(self.eval.flush())
    }
}

/// The curves of one worker from this step on. Step 0 starts those of a new run.
pub fn worker_curves(directory: &Path, worker: u32, step: u64) -> Result<EventWriter, BoardError> {
    let directory = directory.join(format!("{WORKER_PREFIX}{worker}"));
    if step == 0 { EventWriter::create(directory) } else { EventWriter::resume(directory, step) }
}

const WORKER_PREFIX: &str = "worker_";

/// Hides the curves of workers of an earlier run that do not exist in a run of this many workers.
fn set_aside_workers_from(first: Option<u32>, directory: &Path) -> Result<(), BoardError> {
    let Some(first) = first else { return Ok(()) };
    let unusable = |source| BoardError::Directory { path: directory.into(), source };
    fs::create_dir_all(directory).map_err(unusable)?;
    for entry in fs::read_dir(directory).map_err(unusable)? {
        let path: PathBuf = entry.map_err(unusable)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(WORKER_PREFIX));
        if name.and_then(|index| index.parse::<u32>().ok()).is_some_and(|index| index >= first) {
            set_aside(&path)?;
        }
    }
    Ok(())
}

/// `text` as a code block in Markdown. Indented, because the text could contain a fence.
fn preformatted(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::What;

    /// The (step, tag) of everything shown from one subdirectory, in file order.
    fn shown(directory: &Path) -> Vec<(i64, String)> {
        let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.to_str().unwrap().contains("tfevents"));
        paths.sort();
        let events = paths.iter().flat_map(|path| crate::record::parse(&fs::read(path).unwrap()));
        let summaries = events.filter_map(|event| match event.what {
            Some(What::Summary(summary)) => Some((event.step, summary)),
            _ => None,
        });
        summaries.flat_map(|(step, summary)| summary.values.into_iter().map(move |value| (step, value.tag))).collect()
    }

    fn points(points: &[(i64, &str)]) -> Vec<(i64, String)> {
        points.iter().map(|(step, tag)| (*step, tag.to_string())).collect()
    }

    const START: &str = "_hparams_/session_start_info";

    #[test]
    fn training_and_evaluation_have_the_same_tags_in_directories_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let description = Description { command_line: "windlass train".into(), ..Description::default() };
        let mut board = RunBoard::create(directory.path(), &description).unwrap();
        board.train(1, &[(tag::LOSS, 2.0), (tag::STEP_MS, 1.0)]).unwrap();
        board.eval(1, &[(tag::LOSS, 2.1)]).unwrap();
        board.histogram(1, "weights", &[0.5]).unwrap();
        drop(board);
        let mut board = RunBoard::resume(directory.path(), &description, 2, 2).unwrap();
        board.train(2, &[(tag::LOSS, 1.9)]).unwrap();
        board.end(2).unwrap();
        board.flush().unwrap();
        let train = [
            (0, "command_line"),
            (1, "loss/loss"),
            (1, "time/step_ms"),
            (1, "weights"),
            (1, "command_line"),
            (2, "loss/loss"),
        ];
        assert_eq!(shown(&directory.path().join("train")), points(&train));
        let eval = [(0, START), (1, "loss/loss"), (1, START), (2, "_hparams_/session_end_info")];
        assert_eq!(shown(&directory.path().join("eval")), points(&eval));
    }

    #[test]
    fn a_new_run_shows_nothing_of_an_earlier_one_in_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let description = |workers| Description { workers: Some(workers), ..Description::default() };
        for workers in [3, 2] {
            let mut board = RunBoard::create(directory.path(), &description(workers)).unwrap();
            (0..workers).for_each(|worker| drop(worker_curves(directory.path(), worker, 0).unwrap()));
            board.eval(workers.into(), &[(tag::LOSS, 2.1)]).unwrap();
        }
        assert_eq!(shown(&directory.path().join("eval")), points(&[(0, START), (2, "loss/loss")]));
        let files = |name: &str| {
            let entries = fs::read_dir(directory.path().join(name)).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names.iter().map(|name| name.split('.').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!([files("train"), files("eval")], [["earlier-run", "events"], ["earlier-run", "events"]]);
        assert_eq!(files("worker_1"), ["earlier-run", "events"]);
        assert_eq!(files("worker_2"), ["earlier-run"]);
    }

    #[test]
    fn a_worker_continues_its_curves() {
        let directory = tempfile::tempdir().unwrap();
        for (step, first) in [(5, 0), (8, 6)] {
            let mut curves = worker_curves(directory.path(), 1, first).unwrap();
            curves.scalars(Moment::now(step), &[(tag::SAMPLES_PER_SECOND, 1.0)]).unwrap();
        }
        let expected = [(5, "throughput/samples_per_second"), (8, "throughput/samples_per_second")];
        assert_eq!(shown(&directory.path().join("worker_1")), points(&expected));
    }

    #[test]
    fn a_command_line_is_shown_as_it_is_whatever_marks_it_has() {
        assert_eq!(preformatted("[a]\n\n```\nb = \"*\""), "    [a]\n    \n    ```\n    b = \"*\"\n");
    }
}
