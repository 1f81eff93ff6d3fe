//! What a server's part holds, and where. This follows from the run and the plan alone; no bytes are moved here.

use safetensors::tensor::Dtype;
use windlass_core::parameter::{ParameterId, ParameterKind, ParameterTable};
use windlass_core::plan::{RowStripe, Segment, ServerPlan};
use windlass_core::run::RunSpec;

use crate::header::{self, TensorSpec};
use crate::id::CheckpointId;

/// What one server writes: its place among the servers, and its plan of the run's parameters.
#[derive(Debug, Clone)]
pub struct PartLayout {
    pub(crate) run: RunSpec,
    pub(crate) plan: ServerPlan,
    pub(crate) server: usize,
    pub(crate) servers: usize,
}

impl PartLayout {
    /// The part of server `server` of `servers`, which holds what `plan` says of the run's parameters.
    pub fn new(run: &RunSpec, plan: &ServerPlan, server: usize, servers: usize) -> Self {
        assert!(server < servers, "a server is one of all");
        Self { run: run.clone(), plan: plan.clone(), server, servers }
    }

    /// How many bytes of tensors it holds.
    pub fn tensor_bytes(&self) -> usize {
        self.contents().iter().map(|content| content.bytes(&self.run.parameters, &self.plan)).sum()
    }

    /// How many bytes of row steps come before everything else.
    pub(crate) fn step_bytes(&self) -> usize {
        self.plan.stripes.iter().map(|stripe| stripe.count * size_of::<u64>()).sum()
    }

    pub(crate) fn contents(&self) -> Vec<Content> {
        contents(&self.run.parameters, &self.plan, self.run.optimizer.slots())
    }

    /// The tensors, in the order of their bytes.
    pub(crate) fn tensors(&self) -> Vec<TensorSpec> {
        self.contents().into_iter().map(|content| self.tensor(content)).collect()
    }

    /// The head of the file, with all that is needed to understand the part by itself.
    pub(crate) fn header(&self, id: &CheckpointId) -> Vec<u8> {
        let json = |value: serde_json::Result<String>| value.expect("plain data are JSON");
        let metadata = [
            ("format", "windlass-part-1".to_owned()),
            ("model", self.run.model.clone()),
            ("checkpoint", id.to_string()),
            ("step", id.step.to_string()),
            ("server", self.server.to_string()),
            ("servers", self.servers.to_string()),
            ("optimizer", json(serde_json::to_string(&self.run.optimizer))),
            ("parameters", json(serde_json::to_string(&self.run.parameters))),
            ("plan", json(serde_json::to_string(&self.plan))),
        ];
        header::encode(metadata, &self.tensors())
    }

    fn tensor(&self, content: Content) -> TensorSpec {
        let Self { run, plan, .. } = self;
        let (base, shape, slot) = match content {
            Content::Steps { stripe } => {
                let stripe = &plan.stripes[stripe];
                let name = format!("{}/steps", self.stripe_name(stripe));
                return TensorSpec { name, dtype: Dtype::U64, shape: vec![stripe.count] };
            }
            Content::Dense { segment, slot } => {
                let Segment { parameter, range } = &plan.segments[segment];
                let name = format!("{}[{}..{}]", run.parameters[*parameter].name, range.start, range.end);
                (name, vec![range.len()], slot)
            }
            Content::Rows { stripe, slot } => {
                let stripe = &plan.stripes[stripe];
                (self.stripe_name(stripe), vec![stripe.count, run.parameters[stripe.parameter].width()], slot)
            }
        };
        match slot {
            None => TensorSpec::f32(base, shape),
            Some(slot) => TensorSpec::f32(format!("{base}/{}", run.optimizer.slot_name(slot)), shape),
        }
    }

    fn stripe_name(&self, stripe: &RowStripe) -> String {
        format!("{}[{}::{}]", self.run.parameters[stripe.parameter].name, stripe.first, stripe.stride)
    }
}

/// One tensor of a part. The slot is `None` for the values themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Steps { stripe: usize },
    Dense { segment: usize, slot: Option<usize> },
    Rows { stripe: usize, slot: Option<usize> },
}

impl Content {
    /// Returns the parameter that the tensor belongs to.
    pub fn parameter(self, plan: &ServerPlan) -> ParameterId {
        match self {
            Content::Dense { segment, .. } => plan.segments[segment].parameter,
            Content::Rows { stripe, .. } | Content::Steps { stripe } => plan.stripes[stripe].parameter,
        }
    }

    /// True for state of the optimizer, as opposed to values.
    pub fn is_optimizer_state(self) -> bool {
        !matches!(self, Content::Dense { slot: None, .. } | Content::Rows { slot: None, .. })
    }

    /// How many bytes it takes in a part with that plan.
    pub fn bytes(self, table: &ParameterTable, plan: &ServerPlan) -> usize {
        match self {
            Content::Steps { stripe } => plan.stripes[stripe].count * size_of::<u64>(),
            Content::Dense { segment, .. } => plan.segments[segment].range.len() * size_of::<f32>(),
            Content::Rows { stripe, .. } => {
                let RowStripe { parameter, count, .. } = plan.stripes[stripe];
                count * table[parameter].width() * size_of::<f32>()
            }
        }
    }
}

/// Returns all tensors of a part in the order of their bytes. Frozen parameters have no optimizer state.
pub(crate) fn contents(table: &ParameterTable, plan: &ServerPlan, slots: usize) -> Vec<Content> {
    let (segments, stripes) = (0..plan.segments.len(), 0..plan.stripes.len());
    let numbers = |slots: usize| std::iter::once(None).chain((0..slots).map(Some));
    let steps = stripes.clone().map(|stripe| Content::Steps { stripe });
    let dense = numbers(slots).flat_map(|slot| segments.clone().map(move |segment| Content::Dense { segment, slot }));
    let rows = stripes.flat_map(|stripe| {
        let is_constant = table[plan.stripes[stripe].parameter].kind == ParameterKind::Constant;
        numbers(if is_constant { 0 } else { slots }).map(move |slot| Content::Rows { stripe, slot })
    });
    steps.chain(dense).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use windlass_core::optimizer::Optimizer;

    use super::*;
    use crate::manifest::tests::run;

    #[test]
    fn a_part_lists_steps_then_dense_values_then_slots_then_rows() {
        let run = run(Optimizer::named("momentum").unwrap());
        let plan = windlass_core::plan::ShardPlan::new(&run.parameters, 2, run.sharding).servers.remove(1);
        let layout = PartLayout::new(&run, &plan, 1, 2);
        let id = CheckpointId { step: 7, generation: 1, attempt: 2 };
        let tensors = header::decode(&layout.header(&id)).unwrap();
        let names: Vec<_> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.clone())).collect();
        assert_eq!(
            names,
            [
                ("embedding[1::2]/steps", vec![3]),
                ("hidden.weight[2048..4096]", vec![2048]),
                ("hidden.bias[0..2]", vec![2]),
                ("hidden.weight[2048..4096]/velocity", vec![2048]),
                ("hidden.bias[0..2]/velocity", vec![2]),
                ("embedding[1::2]", vec![3, 3]),
                ("embedding[1::2]/velocity", vec![3, 3]),
            ]
        );
        assert_eq!(tensors.iter().map(TensorSpec::bytes).sum::<usize>(), layout.tensor_bytes());
    }
}
