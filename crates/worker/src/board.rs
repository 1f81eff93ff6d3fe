//! Curves for TensorBoard: the run's, written by its chief, and each worker's own. They are written during training,
//! and a failure to write them never stops it.

pub mod curves;
pub(crate) mod hparams;
pub(crate) mod pace;
pub(crate) mod point;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use windlass_tensorboard::{BoardError, Description, EventWriter, Moment, RunBoard, tag, worker_curves};

use self::pace::Pace;
use self::point::TallySnapshot;
use crate::event::Report;
use crate::metrics::Metrics;
use crate::model::PngImage;
use crate::tally::Tally;

/// Where curves are written, and what accompanies them.
#[derive(Debug, Clone, Default)]
pub struct BoardConfig {
    /// The directory; `None` disables the curves.
    pub directory: Option<PathBuf>,
    /// The user's command line, for the Text tab.
    pub command_line: String,
    /// Whether histograms of the parameters are written whenever the network is scored.
    pub histograms: bool,
}

/// The worker that the curves belong to.
#[derive(Debug, Clone)]
pub(crate) struct BoardOwner {
    pub(crate) worker: u32,
    /// The description of the run.
    pub(crate) description: Description,
    /// Samples in a step of this worker.
    pub(crate) samples_a_step: usize,
    /// Samples that make one update of the parameters.
    pub(crate) samples_an_update: usize,
}

/// Figures of a step that the tally does not hold.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepFigures {
    pub(crate) learning_rate: f32,
    /// The gradient norm, if it was measured.
    pub(crate) gradient_norm: Option<f64>,
    /// The duration of the step.
    pub(crate) duration: Duration,
}

/// The curves that a worker writes.
pub(crate) struct Board {
    config: BoardConfig,
    owner: BoardOwner,
    began: Beginning,
    points: Points,
    /// The run's curves, while this worker is the chief and after its first point.
    run: Option<RunBoard>,
    /// This worker's own curves.
    own: Option<EventWriter>,
    /// The steps of the last evaluation and of the last pictures that were written.
    scored: Option<u64>,
    drawn: Option<u64>,
}

/// Decides when curves get a point and pictures are drawn.
struct Points {
    began: Instant,
    pace: Pace,
    images: Pace,
    /// The tally at the last point.
    last: TallySnapshot,
    /// Whether the next step gets a point.
    is_next: bool,
}

impl Points {
    fn begin(tally: &Tally) -> Self {
        let began = Instant::now();
        Self {
            began,
            pace: pace::OF_POINTS,
            images: pace::OF_IMAGES,
            last: TallySnapshot::new(tally, began),
            is_next: true,
        }
    }
}

/// Where training began or resumed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Beginning {
    /// The step before the first one: later points are replaced by those that are computed again.
    pub(crate) after: u64,
    /// Whether the evaluation after exactly that step is repeated.
    pub(crate) evaluates_again: bool,
    /// Whether this worker was the chief.
    pub(crate) is_chief: bool,
}

impl Board {
    pub(crate) fn new(config: BoardConfig, owner: BoardOwner) -> Self {
        let (began, points) = (Beginning::default(), Points::begin(&Tally::default()));
        Self { config, owner, began, points, run: None, own: None, scored: None, drawn: None }
    }

    pub(crate) fn begin(&mut self, beginning: Beginning, tally: &Tally) {
        (self.run, self.own, self.scored, self.drawn) = (None, None, None, None);
        (self.began, self.points) = (beginning, Points::begin(tally));
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.config.directory.is_some()
    }

    pub(crate) fn wants_histograms(&self) -> bool {
        self.is_wanted() && self.config.histograms
    }

    /// Whether the norm of the next gradient is needed.
    pub(crate) fn wants_norm(&self) -> bool {
        self.is_wanted() && self.points.is_next
    }

    /// Whether pictures are to be drawn now.
    pub(crate) fn wants_images(&self) -> bool {
        self.is_wanted() && self.points.images.is_due(self.points.began.elapsed())
    }

    /// Records a step that has been done and counted.
    pub(crate) fn step(&mut self, tally: &Tally, figures: StepFigures, is_chief: bool) {
        if self.points.is_next {
            self.point(tally, figures, is_chief);
        }
        // The next step gets a point if one will be due when it has been done.
        self.points.is_next = self.points.pace.is_due(self.points.began.elapsed() + figures.duration);
    }

    /// Writes a point that covers all steps since the last one: to this worker's curves, and to the run's if it is the
    /// chief.
    pub(crate) fn point(&mut self, tally: &Tally, figures: StepFigures, is_chief: bool) {
        let now = Instant::now();
        let Some(span) = self.points.last.since(tally, now) else { return };
        self.points.last = TallySnapshot::new(tally, now);
        self.points.pace.wrote(now - self.points.began);
        let step = tally.global_step;
        let times = [
            (tag::STEP_MS, span.step_ms()),
            (tag::COMPUTE_MS, span.compute_ms),
            (tag::WAIT_MS, span.wait_ms),
            (tag::DATA_MS, span.data_ms),
        ];
        // A single worker's own curves would duplicate the run's.
        let is_alone = self.owner.description.workers == Some(1);
        if is_chief {
            let mut curves = vec![
                (tag::LOSS, span.loss),
                (tag::LEARNING_RATE, f64::from(figures.learning_rate)),
                (tag::STALENESS, span.staleness),
                (tag::SAMPLES_PER_SECOND, span.updates_per_second * self.owner.samples_an_update as f64),
            ];
            curves.extend(figures.gradient_norm.map(|norm| (tag::GRADIENT_NORM, norm)));
            curves.extend(times.into_iter().filter(|_| is_alone));
            self.write(step, |board| board.train(step, &curves));
        }
        if !is_alone {
            let samples_per_second = span.own_steps_per_second * self.owner.samples_a_step as f64;
            let speed = (tag::SAMPLES_PER_SECOND, samples_per_second);
            self.write_own(step, &[&[speed], &times[..]].concat());
        }
    }

    /// Writes the network's scores after this step.
    pub(crate) fn eval(&mut self, step: u64, metrics: &Metrics) {
        // The end of the last epoch is scored twice, with the same result.
        if self.scored.replace(step) != Some(step) {
            self.write_scores(step, &curves::of_scores(metrics));
        }
    }

    pub(crate) fn report(&mut self, report: &Report) {
        self.write_scores(report.global_step, &curves::of_report(report));
    }

    fn write_scores(&mut self, step: u64, scores: &[(String, f64)]) {
        let curves: Vec<(&str, f64)> = scores.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
        self.write(step, |board| board.eval(step, &curves));
    }

    /// Writes pictures of the network's results after this step.
    pub(crate) fn images(&mut self, step: u64, images: &[PngImage]) {
        self.points.images.wrote(self.points.began.elapsed());
        if self.drawn.replace(step) == Some(step) {
            return;
        }
        let write = |board: &mut RunBoard| {
            images.iter().try_for_each(|image| board.image(step, &format!("images/{}", image.name), &image.bytes))
        };
        self.write(step, write);
    }

    pub(crate) fn histogram<'a>(&mut self, step: u64, parameters: impl Iterator<Item = (&'a str, &'a [f32])>) {
        self.write(step, |board| {
            for (name, values) in parameters {
                board.histogram(step, &format!("parameters/{name}"), values)?;
            }
            Ok(())
        });
    }

    /// Records that the run has ended well.
    pub(crate) fn end(&mut self, step: u64) {
        self.write(step, |board| board.end(step));
    }

    /// Writes to the run's curves and flushes, so that the points are visible at once.
    fn write(&mut self, step: u64, write: impl FnOnce(&mut RunBoard) -> Result<(), BoardError>) {
        let Some(directory) = &self.config.directory else { return };
        let opened = match (self.run.take(), self.began) {
            (Some(board), _) => Ok(board),
            (None, Beginning { after: 0, is_chief: true, .. }) => {
                info!("curves for TensorBoard are in {}", directory.display());
                RunBoard::create(directory, &self.owner.description)
            }
            (None, Beginning { after, evaluates_again, is_chief: true }) => {
                RunBoard::resume(directory, &self.owner.description, after + 1, after + u64::from(!evaluates_again))
            }
            // The previous chief has died. What it wrote remains.
            (None, Beginning { is_chief: false, .. }) => {
                RunBoard::resume(directory, &self.owner.description, step, step)
            }
        };
        let written = opened.and_then(|mut board| {
            write(&mut board)?;
            board.flush()?;
            Ok(board)
        });
        self.run = self.keep(written);
    }

    fn write_own(&mut self, step: u64, curves: &[(&str, f64)]) {
        let Some(directory) = &self.config.directory else { return };
        let first = if self.began.after == 0 { 0 } else { self.began.after + 1 };
        let opened = self.own.take().map_or_else(|| worker_curves(directory, self.owner.worker, first), Ok);
        let written = opened.and_then(|mut writer| {
            writer.scalars(Moment::now(step), curves)?;
            writer.flush()?;
            Ok(writer)
        });
        self.own = self.keep(written);
    }

    /// Logs a failure once and stops writing curves.
    fn keep<T>(&mut self, written: Result<T, BoardError>) -> Option<T> {
        written
            .inspect_err(|error| {
                warn!("cannot write TensorBoard curves, stopping them: {error}");
                self.config.directory = None;
            })
            .ok()
    }
}
