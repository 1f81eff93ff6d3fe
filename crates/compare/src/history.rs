//! `RUN_DIR/history.jsonl`: the loss of a run over time, written line by line as the run trains. A run that was
//! interrupted and resumed, or rolled back, appends to the file, so steps that were repeated count once. A worker that
//! takes over as chief of a running run appends, too; its process may have been started at any time before.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::error::RunError;

const FILE: &str = "history.jsonl";

/// The loss of a run over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// In order of time and step.
    pub points: Vec<Point>,
    /// How much longer the run has trained than the process that wrote the last line has lived: the training time
    /// before the last resumption, or before that process became chief.
    pub earlier_seconds: f64,
    /// The time from the start of the run to its first step, even if the run was resumed since.
    pub first_step_seconds: Option<f64>,
}

/// A point of the curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// How long the run had been training, without interruptions.
    pub seconds: f64,
    /// The number of updates so far.
    pub step: u64,
    /// The number of samples so far, over all workers.
    pub samples: u64,
    /// The mean loss per sample since the previous point.
    pub loss: f64,
    /// How often the run had been resumed.
    pub resumptions: u32,
}

/// A line of the file, reduced to the fields needed here.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Line {
    /// In seconds since 1970; missing in files of earlier versions.
    time: Option<f64>,
    /// Since the start of the process.
    seconds: f64,
    step: u64,
    samples: u64,
    /// Missing in lines with scores, and where the loss was not finite.
    loss: Option<f64>,
}

impl Line {
    /// Whether the process that wrote this line was started after `last` was written, and so resumed the run. Its own
    /// clock may be ahead of that of the previous process, or behind it if it took over from another chief.
    fn is_of_a_later_process_than(&self, last: &Self) -> bool {
        match self.time.zip(last.time) {
            Some((time, last)) => time - self.seconds >= last,
            None => self.seconds < last.seconds,
        }
    }
}

/// Places lines on the time axis of a run, without interruptions.
#[derive(Default)]
struct Axis {
    last: Option<Line>,
    /// The position of the last line.
    seconds: f64,
    /// How long the run had trained when it was last resumed, and when that was, if the lines are timestamped.
    earlier_seconds: f64,
    began: Option<f64>,
    resumptions: u32,
}

impl Axis {
    fn place(&mut self, line: Line) -> f64 {
        if self.last.is_some_and(|last| line.is_of_a_later_process_than(&last)) {
            (self.earlier_seconds, self.began) = (self.seconds, None);
            self.resumptions += 1;
        }
        let in_one_go = match line.time {
            Some(time) => time - *self.began.get_or_insert(time - line.seconds),
            None => line.seconds,
        };
        self.last = Some(line);
        // The clocks of two hosts may differ slightly.
        self.seconds = self.seconds.max(self.earlier_seconds + in_one_go);
        self.seconds
    }
}

impl History {
    /// Reads the history of a run directory; empty if there is none, as in runs of older versions.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has no valid line.
    pub fn read(directory: &Path) -> Result<Self, RunError> {
        let path = directory.join(FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(RunError::Unreadable { path, source }),
        };
        let (mut history, mut lines, mut torn) = (Self::default(), 0, 0);
        let mut axis = Axis::default();
        for line in BufReader::new(file).split(b'\n') {
            let line = line.map_err(|source| RunError::Unreadable { path: path.clone(), source })?;
            lines += 1;
            // A process that is killed may leave half a line.
            match serde_json::from_slice::<Line>(&line) {
                Ok(line) => {
                    let seconds = axis.place(line);
                    history.earlier_seconds = seconds - line.seconds;
                    history.add(line, seconds, axis.resumptions);
                }
                Err(_) => torn += 1,
            }
        }
        match torn > 0 && torn == lines {
            true => Err(RunError::Damaged { path, why: "none of its lines is one of a history".to_owned() }),
            false => Ok(history),
        }
    }

    fn add(&mut self, Line { step, samples, loss, .. }: Line, seconds: f64, resumptions: u32) {
        self.first_step_seconds.get_or_insert(seconds);
        let loss = loss.filter(|loss| loss.is_finite());
        // A line with scores belongs to the step before it.
        let undone_from = if loss.is_some() { step } else { step + 1 };
        while self.points.last().is_some_and(|last| last.step >= undone_from) {
            self.points.pop();
        }
        if let Some(loss) = loss {
            self.points.push(Point { seconds, step, samples, loss, resumptions });
        }
    }

    /// Samples per second over all workers, without the time from each start to the first step after it.
    pub fn samples_per_second(&self) -> Option<f64> {
        let pairs = self.points.iter().zip(self.points.iter().skip(1));
        let in_one_go = pairs.filter(|(earlier, later)| earlier.resumptions == later.resumptions);
        let (samples, seconds) = in_one_go.fold((0, 0.0), |(samples, seconds), (earlier, later)| {
            (samples + later.samples.saturating_sub(earlier.samples), seconds + later.seconds - earlier.seconds)
        });
        (samples > 0 && seconds > 0.0).then(|| samples as f64 / seconds)
    }

    /// How long the first worker trained, if that is known.
    pub fn training_seconds(&self) -> Option<f64> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        (last.seconds > first.seconds).then_some(last.seconds - first.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<History, RunError> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), text).unwrap();
        History::read(directory.path())
    }

    fn line(seconds: f64, step: u64, loss: &str) -> String {
        format!("{{\"seconds\":{seconds},\"step\":{step},\"samples\":{},\"loss\":{loss}}}\n", step * 10)
    }

    #[test]
    fn a_resumed_run_goes_on_where_it_was_and_what_it_computes_again_counts_once() {
        let lines = [
            line(0.5, 1, "3.0"),
            line(1.0, 10, "2.0"),
            line(2.0, 20, "1.0"),
            "{\"seconds\":2.1,\"st".to_owned(),
            "\n".to_owned(),
            line(0.25, 11, "1.9"),
            line(1.25, 21, "0.9"),
        ];
        let history = read(&lines.concat()).unwrap();
        let points: Vec<_> = history.points.iter().map(|point| (point.seconds, point.step, point.loss)).collect();
        assert_eq!(points, [(0.5, 1, 3.0), (1.0, 10, 2.0), (2.25, 11, 1.9), (3.25, 21, 0.9)]);
        assert_eq!((history.earlier_seconds, history.first_step_seconds), (2.0, Some(0.5)));
        assert_eq!(history.training_seconds(), Some(2.75));
    }

    fn timed(time: f64, seconds: f64, step: u64) -> String {
        let samples = 10 * step;
        format!("{{\"time\":{time},\"seconds\":{seconds},\"step\":{step},\"samples\":{samples},\"loss\":1.0}}\n")
    }

    #[test]
    fn a_run_that_was_interrupted_early_and_loaded_for_longer_was_resumed_all_the_same() {
        let lines = [timed(101.0, 1.0, 1), timed(102.0, 2.0, 11), timed(203.0, 3.0, 12), timed(205.0, 5.0, 52)];
        let history = read(&lines.concat()).unwrap();
        let points: Vec<_> = history.points.iter().map(|point| (point.seconds, point.resumptions)).collect();
        assert_eq!((points, history.earlier_seconds), (vec![(1.0, 0), (2.0, 0), (5.0, 1), (7.0, 1)], 2.0));
        assert_eq!(history.samples_per_second(), Some(500.0 / 3.0));
    }

    #[test]
    fn a_run_goes_on_when_its_chief_changes_whenever_the_new_one_was_started() {
        let before = [timed(101.0, 1.0, 1), timed(102.0, 2.0, 11)].concat();
        for started in [101.5, 90.0] {
            let after = [timed(103.0, 103.0 - started, 12), timed(105.0, 105.0 - started, 52)].concat();
            let history = read(&(before.clone() + &after)).unwrap();
            let points: Vec<_> = history.points.iter().map(|point| (point.seconds, point.resumptions)).collect();
            assert_eq!(points, [(1.0, 0), (2.0, 0), (3.0, 0), (5.0, 0)], "started at {started}");
            // Together with the lifetime of the last chief, this is the lifetime of the run.
            assert_eq!(history.earlier_seconds, started - 100.0);
            assert_eq!(history.samples_per_second(), Some(510.0 / 4.0));
        }
    }

    #[test]
    fn losses_that_are_not_finite_and_lines_with_scores_are_no_points() {
        let scores = "{\"seconds\":2.5,\"step\":20,\"samples\":200,\"metrics\":{\"test_accuracy\":0.5}}\n";
        let history = read(&[&line(1.0, 10, "null"), &*line(2.0, 20, "0.5"), scores].concat()).unwrap();
        assert_eq!(history.points.iter().map(|point| point.step).collect::<Vec<_>>(), [20]);
    }

    #[test]
    fn a_file_that_is_something_else_is_damaged_and_one_that_is_missing_is_empty() {
        assert!(read("hello\nworld\n").unwrap_err().to_string().contains("history.jsonl is damaged"));
        assert_eq!(History::read(tempfile::tempdir().unwrap().path()).unwrap(), History::default());
        assert_eq!(read("").unwrap(), History::default());
    }
}
