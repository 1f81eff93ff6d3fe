//! A stage on a device of this process. Several micro-batches are in progress at a time, each with its own copy of the
//! network, because they have different rows of the parameters accessed by row.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, ensure};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use windlass_core::parameter::{ParameterId, ParameterKind, ParameterTable};

use super::host::{StageForward, StageHost, StageResult, StageRows, StageStart};
use crate::buffer::TensorBuffer;
use crate::model::Model;
use crate::replica::accumulation::Weighted;
use crate::replica::local::{Independence, first};
use crate::replica::{accumulation, tensors};
use crate::stages::{Activation, StageInput, StagePlan, Staging, flat};

/// A stage of a model, and where it is computed.
pub(super) struct LocalStage<M: Model> {
    model: Arc<M>,
    staging: Staging<M>,
    name: String,
    device: Device,
    table: ParameterTable,
    /// The indices of the stage's parameters in the table.
    own: Vec<usize>,
    has_state: bool,
    independence: Independence,
    /// Holds only the values of the stage's own parameters.
    network: M::Network,
    /// The row values loaded for this step, and which rows they are.
    row_values: Vec<TensorBuffer>,
    rows: Vec<StageRows>,
    on_the_way: BTreeMap<usize, OnTheWay<M::Network>>,
    /// The sums of the gradients of the stage's parameters so far.
    sums: Weighted,
}

/// A micro-batch between forward and backward.
struct OnTheWay<N> {
    network: N,
    inputs: Vec<Activation>,
    outputs: Vec<Activation>,
    rows: Vec<Vec<u32>>,
}

impl<M: Model> LocalStage<M> {
    /// Makes the stage with this index, with the network's initial values.
    pub(super) fn new(
        model: Arc<M>,
        staging: Staging<M>,
        (plan, index): (&StagePlan, usize),
        table: &ParameterTable,
        (device, seed): (&Device, u64),
    ) -> Self {
        let stage = &plan.stages()[index];
        let device = device.clone().autodiff();
        let kind = |parameter: usize| table[ParameterId(parameter as u32)].kind;
        // All running state is kept: it is small, and Burn holds it in shared memory behind a lock.
        let is_kept =
            |parameter: usize| stage.parameters.contains(&parameter) || kind(parameter) == ParameterKind::State;
        // Its values are loaded before the first step. The network is made in host memory, so that the device need not
        // hold all of it even for a moment.
        let (network, ()) = first(&*model, &Device::flex().autodiff(), seed, |_| ());
        let network = tensors::keep(network, &is_kept, &device);
        Self {
            staging,
            name: stage.name.clone(),
            table: table.clone(),
            own: stage.parameters.clone(),
            has_state: stage.parameters.iter().any(|parameter| kind(*parameter) == ParameterKind::State),
            independence: Independence::Unknown,
            network,
            row_values: Vec::new(),
            rows: Vec::new(),
            on_the_way: BTreeMap::new(),
            sums: Weighted::default(),
            model,
            device,
        }
    }

    fn width(&self, parameter: usize) -> usize {
        self.table[ParameterId(self.own[parameter] as u32)].width()
    }

    /// Returns one buffer per parameter of the network.
    fn spread_out(&self, values: impl IntoIterator<Item = (usize, TensorBuffer)>) -> Vec<TensorBuffer> {
        let mut all = vec![TensorBuffer::default(); self.table.len()];
        values.into_iter().for_each(|(parameter, values)| all[self.own[parameter]] = values);
        all
    }

    /// Returns the network with the rows of a micro-batch.
    fn with_rows(&self, rows: &[Vec<u32>]) -> anyhow::Result<M::Network> {
        ensure!(rows.len() == self.rows.len(), "rows of {} parameters instead of {}", rows.len(), self.rows.len());
        if rows.is_empty() {
            return Ok(self.network.clone());
        }
        let gathered = self.rows.iter().zip(&self.row_values).zip(rows).map(|((all, values), own)| {
            let is_there = own.iter().all(|row| all.rows.binary_search(row).is_ok());
            ensure!(is_there, "a micro-batch has rows that the step does not have");
            Ok((all.parameter, accumulation::gather(values, &all.rows, own, self.width(all.parameter)).into()))
        });
        let gathered = gathered.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(tensors::load(self.network.clone(), self.spread_out(gathered), &self.device))
    }
}

impl<M: Model> StageHost for LocalStage<M> {
    fn parameters(&self) -> usize {
        self.own.len()
    }

    fn begin(&mut self, start: StageStart) -> anyhow::Result<()> {
        let StageStart { mut values, rows } = start;
        ensure!(values.len() == self.own.len(), "values of {} parameters instead of {}", values.len(), self.own.len());
        self.on_the_way.clear();
        self.sums = Weighted::default();
        let mut row_values = Vec::with_capacity(rows.len());
        for StageRows { parameter, rows } in &rows {
            ensure!(rows.is_sorted_by(|row, next| row < next), "rows are not in rising order");
            let given = values.get_mut(*parameter).map(std::mem::take);
            let given =
                given.with_context(|| format!("rows of parameter {parameter}, which the stage does not have"))?;
            let kept = self.rows.iter().position(|kept| kept.parameter == *parameter && kept.rows == *rows);
            let given = match kept {
                Some(kept) if given.is_empty() => std::mem::take(&mut self.row_values[kept]),
                _ => given,
            };
            let expected = rows.len() * self.width(*parameter);
            ensure!(given.len() == expected, "{} values for {} rows, and not {expected}", given.len(), rows.len());
            row_values.push(given);
        }
        (self.rows, self.row_values) = (rows, row_values);
        for (values, own) in values.iter().zip(&self.own).filter(|(values, _)| !values.is_empty()) {
            let spec = &self.table[ParameterId(*own as u32)];
            ensure!(
                values.len() == spec.elements(),
                "{} values for {}, which has {}",
                values.len(),
                spec.name,
                spec.elements()
            );
        }
        let values = self.spread_out(values.into_iter().enumerate());
        let network = self.network.clone();
        self.network = tensors::load(network, values, &self.device);
        Ok(())
    }

    fn forward(&mut self, micro: usize, input: StageForward) -> anyhow::Result<Vec<TensorData>> {
        let StageForward { feed, inputs, rows, seed } = input;
        let network = self.with_rows(&rows)?;
        let inputs: Vec<Activation> = inputs.into_iter().map(|data| Activation::received(data, &self.device)).collect();
        let input = StageInput::new(feed, inputs.clone(), self.device.clone());
        let forward = || self.staging.forward(&self.model, &network, &self.name, input);
        let (outputs, independence) = self.independence.run(&self.device, seed, forward);
        let outputs = outputs?;
        self.independence = independence;
        if self.has_state {
            // As in a replica: this makes Burn update the running state.
            drop(network.valid());
        }
        let put_out = outputs.iter().map(Activation::data).collect();
        self.on_the_way.insert(micro, OnTheWay { network, inputs, outputs, rows });
        Ok(put_out)
    }

    fn backward(
        &mut self,
        micro: usize,
        gradients: Vec<Option<TensorData>>,
    ) -> anyhow::Result<Vec<Option<TensorData>>> {
        let there = self.on_the_way.remove(&micro);
        let OnTheWay { network, inputs, outputs, rows } =
            there.with_context(|| format!("no forward pass of micro-batch {}", micro + 1))?;
        ensure!(
            gradients.len() == outputs.len(),
            "gradients of {} outputs, and not {}",
            gradients.len(),
            outputs.len()
        );
        // Burn's backward pass starts at a scalar, so this makes one with these gradients. Its first term is tracked
        // whatever the stage consists of.
        let mut scalar = Tensor::<1>::zeros([1], &self.device).require_grad();
        for (output, gradient) in outputs.iter().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            let (got, expected) = (gradient.shape().to_vec(), output.shape());
            ensure!(got == expected, "a gradient of shape {got:?} for an output of shape {expected:?}");
            scalar = scalar + (output.flat().clone() * flat(gradient, &self.device)).sum();
        }
        let mut gradients = scalar.backward();
        let of_inputs: Vec<Option<Tensor<1>>> =
            inputs.iter().map(|input| input.flat().grad_remove(&mut gradients)).collect();
        let is_used: Vec<bool> = of_inputs.iter().map(Option::is_some).collect();
        let of_inputs = of_inputs.into_iter().flatten().collect();
        let (of_inputs, mut taken) = tensors::take_gradients_beside(&network, of_inputs, &mut gradients, &self.device);
        let mut own: Vec<TensorBuffer> = self.own.iter().map(|index| std::mem::take(&mut taken[*index])).collect();
        for (all, part) in self.rows.iter().zip(&rows) {
            let width = self.width(all.parameter);
            own[all.parameter] = accumulation::spread(&own[all.parameter], &all.rows, part, width);
        }
        self.sums.add_times(1.0, own);
        let mut of_inputs = of_inputs.into_iter();
        let back = inputs.iter().zip(is_used).map(|(input, is_used)| {
            let values = is_used.then(|| of_inputs.next()).flatten()?;
            Some(values.into_data(input.shape().to_vec()))
        });
        Ok(back.collect())
    }

    fn finish(&mut self) -> anyhow::Result<StageResult> {
        self.on_the_way.clear();
        let mut gradients = std::mem::take(&mut self.sums).into_values();
        gradients.resize(self.own.len(), TensorBuffer::default());
        let state = match self.has_state {
            true => {
                let mut all = tensors::state(&self.network, &self.table, &self.device);
                self.own.iter().map(|index| std::mem::take(&mut all[*index])).collect()
            }
            false => Vec::new(),
        };
        Ok(StageResult { gradients, state })
    }
}
