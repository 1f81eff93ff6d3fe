//! A stage computed by a joined worker at the other end of a connection. Its answers are checked before they are used.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, anyhow, bail, ensure};
use burn::tensor::{DType, TensorData};
use windlass_core::parameter::{ParameterKind, ParameterSpec, ParameterTable};
use windlass_wire::client::Interrupt;
use windlass_wire::compute::{Section, Tensor};

use super::host::{StageForward, StageHost, StageResult, StageRows, StageStart};
use crate::buffer::TensorBuffer;
use crate::gradient;
use crate::joined::protocol::{Answer, Ask, StageAnswered, StageAsked, StagePiece, stage_limits, written};
use crate::replica::packed;
use crate::replica::remote::{AskError, Crew, CrewError, in_words};

/// A worker was lost during a step, which can be repeated when the worker is back.
#[derive(Debug, thiserror::Error)]
#[error("lost {worker}: {why}")]
pub(super) struct Lost {
    pub(super) worker: String,
    pub(super) why: String,
}

/// The joined workers, once they have been called, and the interrupt that ends all waits for them.
pub(super) struct Joined {
    pub(super) crew: Arc<Crew>,
    pub(super) stop: Arc<Interrupt>,
}

/// A stage that a joined worker computes.
pub(super) struct RemoteStage {
    joined: Arc<OnceLock<Joined>>,
    seat: usize,
    name: String,
    table: ParameterTable,
    /// The stage's own parameters.
    parameters: Vec<ParameterSpec>,
    /// How many times the worker had joined when it was last sent all values. `None` if it was absent.
    told: Option<u64>,
    rows: Vec<StageRows>,
    /// The input shapes of the micro-batches in progress.
    inputs: BTreeMap<usize, Vec<Vec<usize>>>,
    /// Whether a backward pass has run in this step, so that there are gradients.
    has_gradients: bool,
    /// Whether everything that the worker was given in this step is finite. If not, non-finite results are not its
    /// fault.
    is_given_finite: bool,
}

impl RemoteStage {
    pub(super) fn new(
        joined: Arc<OnceLock<Joined>>,
        seat: usize,
        name: String,
        table: &ParameterTable,
        own: &[usize],
    ) -> Self {
        let parameters = table.iter().enumerate().filter(|(index, _)| own.contains(index));
        let parameters = parameters.map(|(_, (_, spec))| spec.clone()).collect();
        let (table, rows, inputs) = (table.clone(), Vec::new(), BTreeMap::new());
        let (has_gradients, is_given_finite) = (false, true);
        Self { joined, seat, name, table, parameters, told: None, rows, inputs, has_gradients, is_given_finite }
    }

    /// Asks the worker to compute a piece of a step.
    fn ask(&self, piece: StagePiece, sections: Vec<Section<'_>>) -> anyhow::Result<(StageAnswered, Vec<Tensor>)> {
        let Joined { crew, stop } = self.joined.get().context("its worker has not been called")?;
        let lost = |why: String| Lost { worker: crew.name(self.seat), why };
        let joined = self.told.ok_or_else(|| lost("it is not there".to_owned()))?;
        let head = written(&Ask::Stage(StageAsked { stage: self.name.clone(), piece }));
        let limits = stage_limits(&self.table);
        match crew.ask((self.seat, joined), (head, sections), limits, &|| stop.ends_all_waits()) {
            Ok((Answer::Staged(answer), tensors)) => {
                let expected = answer.given.iter().chain(&answer.state).filter(|given| **given).count();
                ensure!(
                    tensors.len() == expected,
                    self.wrong(&format!("{} tensors instead of {expected}", tensors.len()))
                );
                Ok((answer, tensors))
            }
            Ok(_) => Err(self.wrong("something that was not asked for")),
            Err(AskError::Model(reason)) => Err(anyhow!("{}: {reason}", crew.name(self.seat))),
            Err(AskError::Stopped) => Err(CrewError::Interrupted.into()),
            Err(AskError::Worker(why)) => Err(lost(why).into()),
        }
    }

    /// Makes the error for an answer that does not match the request.
    fn wrong(&self, what: &str) -> anyhow::Error {
        anyhow!("{}: it answered for stage {} with {what}", self.worker(), self.name)
    }

    /// The name of the worker.
    fn worker(&self) -> String {
        self.joined.get().map(|joined| joined.crew.name(self.seat)).unwrap_or_default()
    }

    /// Returns the tensors of an answer in the positions where `given` is true.
    fn listed(
        &self,
        given: &[bool],
        tensors: &mut impl Iterator<Item = Tensor>,
    ) -> anyhow::Result<Vec<Option<TensorData>>> {
        let next = |is_given: &bool| match is_given {
            true => {
                let tensor = packed::parcel(tensors, 1)?.into_items().next();
                let floats = tensor.filter(|tensor| tensor.dtype() == DType::F32);
                floats.map(Some).ok_or_else(|| self.wrong("a tensor that has no floats"))
            }
            false => Ok(None),
        };
        given.iter().map(next).collect()
    }

    /// The number of values that a parameter has in this step.
    fn values_of(&self, parameter: usize) -> usize {
        let spec = &self.parameters[parameter];
        let rows = self.rows.iter().find(|rows| rows.parameter == parameter);
        rows.map_or(spec.elements(), |rows| rows.rows.len() * spec.width())
    }

    /// Returns the buffers of an answer. Those of parameters of this kind must be present and of the right length.
    fn buffers(
        &self,
        kind: ParameterKind,
        given: &[bool],
        tensors: &mut impl Iterator<Item = Tensor>,
    ) -> anyhow::Result<Vec<TensorBuffer>> {
        let mut buffers = Vec::with_capacity(self.parameters.len());
        for (index, data) in self.listed(given, tensors)?.into_iter().enumerate() {
            let spec = &self.parameters[index];
            let is_there = spec.kind == kind && (kind == ParameterKind::State || self.has_gradients);
            let expected = if is_there { self.values_of(index) } else { 0 };
            let got = data.as_ref().map_or(0, TensorData::num_elements);
            if got != expected {
                return Err(self.wrong(&format!("{got} values of {} instead of {expected}", spec.name)));
            }
            let values = data.map(TensorBuffer::read).unwrap_or_default();
            if self.is_given_finite
                && let Some(value) = gradient::first_not_finite(&values)
            {
                let what = format!("its {} of {} contains {value}", in_words(kind), spec.name);
                return Err(CrewError::NotFinite { worker: self.worker(), what }.into());
            }
            buffers.push(values);
        }
        Ok(buffers)
    }
}

impl StageHost for RemoteStage {
    fn parameters(&self) -> usize {
        self.parameters.len()
    }

    fn needs_all_values(&mut self) -> bool {
        let joined = |Joined { crew, stop }: &Joined| crew.joined(self.seat, &|| stop.ends_all_waits());
        let joined = self.joined.get().and_then(joined);
        let is_new = joined.is_none() || joined != self.told;
        self.told = joined;
        is_new
    }

    fn begin(&mut self, start: StageStart) -> anyhow::Result<()> {
        self.inputs.clear();
        (self.has_gradients, self.is_given_finite) = (false, true);
        let StageStart { values, rows } = start;
        let changed: Vec<usize> = (0..values.len()).filter(|index| !values[*index].is_empty()).collect();
        let lengths: Vec<[usize; 1]> = changed.iter().map(|index| [values[*index].len()]).collect();
        let sections = changed.iter().zip(&lengths).map(|(index, length)| Section::floats(length, &values[*index]));
        let asked_rows = rows.iter().map(|rows| rows.parameter).collect();
        let numbers: Vec<TensorData> = rows.iter().map(|rows| numbers(&rows.rows)).collect();
        let sections = sections.chain(numbers.iter().map(packed::section)).collect();
        self.ask(StagePiece::Begin { changed, rows: asked_rows }, sections)?;
        self.rows = rows;
        Ok(())
    }

    fn forward(&mut self, micro: usize, input: StageForward) -> anyhow::Result<Vec<TensorData>> {
        let StageForward { feed, inputs, rows, seed } = input;
        let numbers: Vec<TensorData> = rows.iter().map(|rows| numbers(rows)).collect();
        self.is_given_finite &= feed.items().chain(&inputs).all(is_finite);
        let sections = feed.items().chain(&numbers).chain(&inputs).map(packed::section).collect();
        let piece = StagePiece::Forward { micro, feed: feed.len(), rows: rows.len(), seed };
        let (answer, tensors) = self.ask(piece, sections)?;
        let outputs = self.listed(&answer.given, &mut tensors.into_iter())?;
        self.inputs.insert(micro, inputs.iter().map(|input| input.shape().to_vec()).collect());
        outputs.into_iter().map(|output| output.ok_or_else(|| self.wrong("an output that is missing"))).collect()
    }

    fn backward(
        &mut self,
        micro: usize,
        gradients: Vec<Option<TensorData>>,
    ) -> anyhow::Result<Vec<Option<TensorData>>> {
        let given: Vec<bool> = gradients.iter().map(Option::is_some).collect();
        self.is_given_finite &= gradients.iter().flatten().all(is_finite);
        let sections = gradients.iter().flatten().map(packed::section).collect();
        let (answer, tensors) = self.ask(StagePiece::Backward { micro, given }, sections)?;
        self.has_gradients = true;
        let back = self.listed(&answer.given, &mut tensors.into_iter())?;
        let Some(shapes) = self.inputs.remove(&micro) else { bail!("no forward pass of micro-batch {}", micro + 1) };
        if back.len() != shapes.len() {
            return Err(self.wrong(&format!("gradients of {} inputs instead of {}", back.len(), shapes.len())));
        }
        for (gradient, expected) in back.iter().zip(&shapes) {
            let got = gradient.as_ref().map(|gradient| gradient.shape().to_vec());
            if got.as_ref().is_some_and(|got| got != expected) {
                return Err(
                    self.wrong(&format!("a gradient of shape {:?} instead of {expected:?}", got.unwrap_or_default()))
                );
            }
        }
        Ok(back)
    }

    fn finish(&mut self) -> anyhow::Result<StageResult> {
        let (answer, tensors) = self.ask(StagePiece::Finish, Vec::new())?;
        let has_state = self.parameters.iter().any(|spec| spec.kind == ParameterKind::State);
        let (of_gradients, of_state) = (answer.given.len(), answer.state.len());
        let expected = (self.parameters.len(), if has_state { self.parameters.len() } else { 0 });
        if (of_gradients, of_state) != expected {
            return Err(self.wrong(&format!("the gradients of {of_gradients} parameters instead of {}", expected.0)));
        }
        let mut tensors = tensors.into_iter();
        let gradients = self.buffers(ParameterKind::Trained, &answer.given, &mut tensors)?;
        let state = self.buffers(ParameterKind::State, &answer.state, &mut tensors)?;
        Ok(StageResult { gradients, state })
    }
}

/// Encodes row numbers as a tensor.
fn numbers(rows: &[u32]) -> TensorData {
    TensorData::new(rows.iter().map(|row| i64::from(*row)).collect::<Vec<i64>>(), [rows.len()])
}

/// Whether a tensor has no infinities or NaN.
fn is_finite(tensor: &TensorData) -> bool {
    tensor.as_slice::<f32>().map_or(true, |values| gradient::first_not_finite(values).is_none())
}
