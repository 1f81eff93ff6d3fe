//! The chief's curves for TensorBoard: written while training, never a reason for it to stop.

use std::path::PathBuf;

use tracing::{info, warn};
use windlass_tensorboard::{BoardError, RunBoard, tag};

use crate::metrics::Metrics;

/// Where curves go, and what goes along.
#[derive(Debug, Clone, Default)]
pub struct BoardConfig {
    /// The directory; `None` for no curves.
    pub directory: Option<PathBuf>,
    /// The run's flags, for the Text tab.
    pub config: String,
    /// Whether histograms of the parameters are written whenever the network is scored.
    pub histograms: bool,
}

/// A point of the training curves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Point {
    pub(crate) step: u64,
    pub(crate) loss: f32,
    pub(crate) learning_rate: f32,
    pub(crate) step_ms: f64,
    pub(crate) samples_per_second: f64,
    pub(crate) gradient_norm: f64,
    pub(crate) staleness: u64,
}

/// The curves of a run, while this worker is its chief.
pub(crate) struct Board {
    config: BoardConfig,
    open: Option<RunBoard>,
    /// The step from which the next points are computed.
    from: u64,
    /// Whether those of evaluation begin with this step itself.
    evaluates_again: bool,
}

impl Board {
    pub(crate) fn new(config: BoardConfig) -> Self {
        Self { config, open: None, from: 0, evaluates_again: false }
    }

    /// Training begins, or goes on, after this step: later points give way to those that are computed
    /// again. So do those of an evaluation after this very step, if there is to be another.
    pub(crate) fn begin_after(&mut self, step: u64, evaluates_again: bool) {
        self.open = None;
        (self.from, self.evaluates_again) = (step, evaluates_again);
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.config.directory.is_some()
    }

    pub(crate) fn wants_histograms(&self) -> bool {
        self.is_wanted() && self.config.histograms
    }

    pub(crate) fn train(&mut self, point: Point) {
        self.write(|board| {
            let curves = [
                (tag::LOSS, f64::from(point.loss)),
                (tag::LEARNING_RATE, f64::from(point.learning_rate)),
                (tag::STEP_MS, point.step_ms),
                (tag::SAMPLES_PER_SECOND, point.samples_per_second),
                (tag::GRADIENT_NORM, point.gradient_norm),
                (tag::STALENESS, point.staleness as f64),
            ];
            board.train(point.step, &curves)
        });
    }

    pub(crate) fn eval(&mut self, step: u64, metrics: &Metrics) {
        let curves: Vec<(&str, f64)> = metrics.iter().map(|metric| (metric.name.as_str(), metric.value)).collect();
        self.write(|board| board.eval(step, &curves));
    }

    pub(crate) fn histogram<'a>(&mut self, step: u64, parameters: impl Iterator<Item = (&'a str, &'a [f32])>) {
        self.write(|board| {
            for (name, values) in parameters {
                board.histogram(step, &format!("parameters/{name}"), values)?;
            }
            Ok(())
        });
    }

    /// Writes, so that it can be seen at once. After a failure that is told once, there are no more curves.
    fn write(&mut self, write: impl FnOnce(&mut RunBoard) -> Result<(), BoardError>) {
        let Some(directory) = &self.config.directory else { return };
        let opened = match self.open.take() {
            Some(board) => Ok(board),
            None if self.from == 0 => {
                info!("curves for TensorBoard are in {}", directory.display());
                RunBoard::create(directory, &self.config.config)
            }
            None => RunBoard::resume(directory, self.from + 1, self.from + u64::from(!self.evaluates_again)),
        };
        let written = opened.and_then(|mut board| {
            write(&mut board)?;
            board.flush()?;
            Ok(board)
        });
        match written {
            Ok(board) => self.open = Some(board),
            Err(error) => {
                warn!("no more curves for TensorBoard: {error}");
                self.config.directory = None;
            }
        }
    }
}
