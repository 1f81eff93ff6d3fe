//! Computes the pieces of steps that a client requests from a joined worker, for a divided model. Requests are checked
//! before its stages answer them.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use burn::tensor::{DType, TensorData};
use rayon::ThreadPool;
use windlass_instruments::{StepMeasurement, WorkerInstruments};
use windlass_wire::compute::{Contents, Limits, Tensor};

use super::protocol::{Answer, Ask, StageAnswered, StageAsked, StagePiece, stage_limits};
use super::requests::Stepping;
use crate::buffer::TensorBuffer;
use crate::replica::{StageForward, StageHost, StageRows, StageStart, StageWorker, packed};
use crate::threads;

/// Computes with some stages of a model.
pub(super) struct StageStepper {
    stages: StageWorker,
    threads: ThreadPool,
    steps: u64,
    counts: WorkerInstruments,
    course: Course,
}

impl StageStepper {
    /// Computes on this many threads, or on all cores.
    pub(super) fn new(stages: StageWorker, threads: Option<usize>, counts: WorkerInstruments) -> anyhow::Result<Self> {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads::pool(threads.unwrap_or_else(all))?;
        Ok(Self { stages, threads, steps: 0, counts, course: Course::default() })
    }
}

impl Stepping for StageStepper {
    type Asked = StageAsked;

    fn asked(ask: Ask) -> anyhow::Result<StageAsked> {
        match ask {
            Ask::Stage(asked) => Ok(asked),
            _ => bail!("it asked for a step, but was given stages of the model"),
        }
    }

    fn limits(&self) -> Limits {
        stage_limits(self.stages.table())
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn answer(&mut self, asked: StageAsked, tensors: Vec<Tensor>) -> anyhow::Result<(Answer, Vec<TensorData>)> {
        let StageAsked { stage, piece } = asked;
        if matches!(piece, StagePiece::Begin { .. }) {
            self.course.begin(&stage, Instant::now());
        }
        let is_last_piece = matches!(piece, StagePiece::Finish);
        let host = self.stages.host(&stage)?;
        let (answer, tensors) =
            threads::compute(&self.threads, || done(host, piece, tensors)).with_context(|| format!("stage {stage}"))?;
        if is_last_piece && let Some(began) = self.course.finish(&stage) {
            let took = began.elapsed();
            self.steps += 1;
            self.counts.stepped(&StepMeasurement { step: took, compute: took, ..StepMeasurement::default() });
        }
        Ok((Answer::Staged(answer), tensors))
    }
}

/// The step in progress. Every stage here begins it before the first of them finishes.
#[derive(Default)]
struct Course {
    /// The stages that have begun and not finished.
    open: BTreeSet<String>,
    began: Option<Instant>,
}

impl Course {
    fn begin(&mut self, stage: &str, now: Instant) {
        let is_first = self.open.is_empty();
        // A stage that begins again repeats a step that was interrupted.
        if !self.open.insert(stage.to_owned()) || is_first {
            self.began = Some(now);
        }
    }

    /// Returns when the step began, if this is the last stage to finish it.
    fn finish(&mut self, stage: &str) -> Option<Instant> {
        self.open.remove(stage);
        if self.open.is_empty() { self.began.take() } else { None }
    }
}

/// Carries out a piece of a step on its stage.
fn done(
    host: &mut dyn StageHost,
    piece: StagePiece,
    tensors: Vec<Tensor>,
) -> anyhow::Result<(StageAnswered, Vec<TensorData>)> {
    let mut tensors = tensors.into_iter();
    let all = |given: Vec<Option<TensorData>>| {
        let answer =
            StageAnswered { given: given.iter().map(Option::is_some).collect(), state: Vec::new(), usage: None };
        (answer, given.into_iter().flatten().collect())
    };
    Ok(match piece {
        StagePiece::Begin { changed, rows } => {
            let mut values = vec![TensorBuffer::default(); host.parameters()];
            for index in changed {
                let slot = values.get_mut(index).with_context(|| format!("there is no parameter {index}"))?;
                let contents = tensors.next().map(|tensor| tensor.contents);
                let Some(Contents::F32(floats)) = contents else {
                    bail!("the values of parameter {index} are not floats")
                };
                *slot = floats.into();
            }
            let rows = rows.into_iter().map(|parameter| Ok(StageRows { parameter, rows: numbers(tensors.next())? }));
            let rows = rows.collect::<anyhow::Result<_>>()?;
            ensure!(tensors.next().is_none(), "the request has unexpected extra tensors");
            host.begin(StageStart { values, rows })?;
            all(Vec::new())
        }
        StagePiece::Forward { micro, feed, rows, seed } => {
            let feed = packed::parcel(&mut tensors, feed)?;
            let rows = (0..rows).map(|_| numbers(tensors.next())).collect::<anyhow::Result<_>>()?;
            let inputs = floats(tensors)?;
            all(host.forward(micro, StageForward { feed, inputs, rows, seed })?.into_iter().map(Some).collect())
        }
        StagePiece::Backward { micro, given } => {
            let mut gradients = floats(tensors)?.into_iter();
            let listed = given.iter().map(|is_given| match is_given {
                true => gradients.next().context("fewer gradients than announced").map(Some),
                false => Ok(None),
            });
            let listed = listed.collect::<anyhow::Result<Vec<_>>>()?;
            ensure!(gradients.next().is_none(), "more gradients than announced");
            all(host.backward(micro, listed)?)
        }
        StagePiece::Finish => {
            let result = host.finish()?;
            let flags = |values: &[TensorBuffer]| values.iter().map(|values| !values.is_empty()).collect();
            let answer = StageAnswered { given: flags(&result.gradients), state: flags(&result.state), usage: None };
            let tensors = result.gradients.into_iter().chain(result.state).filter(|values| !values.is_empty());
            (answer, tensors.map(TensorBuffer::into_flat_data).collect())
        }
    })
}

/// Decodes row numbers.
fn numbers(tensor: Option<Tensor>) -> anyhow::Result<Vec<u32>> {
    let Some(Contents::I64(numbers)) = tensor.map(|tensor| tensor.contents) else { bail!("rows without numbers") };
    let number = |number: i64| u32::try_from(number).with_context(|| format!("there is no row {number}"));
    numbers.into_iter().map(number).collect()
}

/// Takes the remaining tensors of a message.
fn floats(tensors: impl Iterator<Item = Tensor>) -> anyhow::Result<Vec<TensorData>> {
    let tensors: Vec<Tensor> = tensors.collect();
    let count = tensors.len();
    let all: Vec<TensorData> = packed::parcel(&mut tensors.into_iter(), count)?.into_items().collect();
    ensure!(
        all.iter().all(|tensor| tensor.dtype() == DType::F32),
        "a tensor between stages does not consist of floats"
    );
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_step_is_over_when_the_last_of_its_stages_is_and_began_with_the_first() {
        let (start, mut course) = (Instant::now(), Course::default());
        let after = |seconds| start + Duration::from_secs(seconds);
        course.begin("encoder", after(0));
        course.begin("decoder", after(1));
        assert_eq!(course.finish("decoder"), None);
        assert_eq!(course.finish("encoder"), Some(after(0)));
        // The next step is interrupted after one stage has finished, and repeated.
        course.begin("encoder", after(2));
        course.begin("decoder", after(2));
        assert_eq!(course.finish("decoder"), None);
        course.begin("decoder", after(9));
        course.begin("encoder", after(9));
        assert_eq!(course.finish("decoder"), None);
        assert_eq!(course.finish("encoder"), Some(after(9)));
    }
}
