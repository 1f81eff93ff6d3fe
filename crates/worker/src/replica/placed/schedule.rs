//! What a step of a placed model consists of, and in which order its devices do it.
//!
//! The schedule is the one known as 1F1B. A stage prefers to go back over going on, and takes micro-batches in their
//! order. So that it does not run ahead of those after it, it goes on with a micro-batch only when it has gone back through
//! the one that is as many before it as there are stages from it to the last. It holds the activations of no more
//! micro-batches than that, however many a batch is split into.

use std::sync::Arc;

use windlass_core::executor::{Graph, LaneId, Node, NodeId};

use crate::stages::StagePlan;

/// A piece of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// A stage gets its values.
    Load { stage: usize },
    /// A stage goes through a micro-batch.
    Forward { stage: usize, micro: usize },
    /// And back.
    Backward { stage: usize, micro: usize },
    /// The sums of its gradients are fetched.
    Gradients { stage: usize },
}

/// The graph of a step.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    graph: Arc<Graph>,
    work: Vec<Work>,
}

impl Schedule {
    /// Of these stages, each on its lane, with a batch in so many parts.
    pub(super) fn new(plan: &StagePlan, lanes: &[LaneId], micro_batches: usize) -> Self {
        let mut nodes = Vec::new();
        let mut work = Vec::new();
        let mut add = |name: String, lane: LaneId, after: Vec<String>, rank: usize, piece: Work| {
            nodes.push(Node { name, lane, after, rank: rank as u64 });
            work.push(piece);
        };
        for (index, stage) in plan.stages().iter().enumerate() {
            let (name, lane) = (&*stage.name, lanes[index]);
            let most = held(stage.following, micro_batches);
            add(load(name), lane, Vec::new(), 0, Work::Load { stage: index });
            for micro in 0..micro_batches {
                let neighbour = |of: &usize| &*plan.stages()[*of].name;
                let mut after: Vec<String> = stage.inputs.iter().map(|of| forward(neighbour(of), micro)).collect();
                after.push(load(name));
                after.extend(micro.checked_sub(most).map(|earlier| backward(name, earlier)));
                let piece = Work::Forward { stage: index, micro };
                add(forward(name, micro), lane, after, micro_batches + micro, piece);
                let mut after: Vec<String> = stage.feeds.iter().map(|of| backward(neighbour(of), micro)).collect();
                after.push(forward(name, micro));
                add(backward(name, micro), lane, after, micro, Work::Backward { stage: index, micro });
            }
            let after = (0..micro_batches).map(|micro| backward(name, micro)).collect();
            add(format!("gradients of {name}"), lane, after, 2 * micro_batches, Work::Gradients { stage: index });
        }
        let graph = Graph::new(nodes).expect("stages without circles make a step without circles");
        Self { graph: Arc::new(graph), work }
    }

    pub(super) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    pub(super) fn work(&self, node: NodeId) -> Work {
        self.work[node.0]
    }
}

/// How many micro-batches a stage holds at the most that so many stages follow.
pub(super) fn held(following: usize, micro_batches: usize) -> usize {
    micro_batches.min(following + 1)
}

fn load(stage: &str) -> String {
    format!("load {stage}")
}

fn forward(stage: &str, micro: usize) -> String {
    format!("forward {stage} {}", micro + 1)
}

fn backward(stage: &str, micro: usize) -> String {
    format!("backward {stage} {}", micro + 1)
}

#[cfg(test)]
mod tests {
    use windlass_core::executor::Executor;
    use windlass_core::parameter::ParameterTable;

    use super::*;
    use crate::stages::Stage;

    fn plan(stages: usize) -> StagePlan {
        let stage = |index: usize| {
            let stage = Stage::new(format!("s{index}"));
            if index == 0 { stage } else { stage.after(format!("s{}", index - 1)) }
        };
        StagePlan::new((0..stages).map(stage).collect(), &ParameterTable::new(Vec::new()).unwrap()).unwrap()
    }

    /// What each stage does when every piece takes as long: `F1` for going on, `B1` for going back.
    fn in_lockstep(stages: usize, micro_batches: usize) -> (Vec<String>, usize, Vec<usize>) {
        let lanes: Vec<LaneId> = (0..stages).map(LaneId).collect();
        let schedule = Schedule::new(&plan(stages), &lanes, micro_batches);
        let mut executor = Executor::new(schedule.graph().clone());
        let (mut told, mut ticks) = (vec![String::new(); stages], 0);
        let (mut holds, mut most) = (vec![0_usize; stages], vec![0; stages]);
        while !executor.is_done() {
            let started: Vec<NodeId> = lanes.iter().filter_map(|lane| executor.ready(*lane)).collect();
            let mut counts = false;
            for node in started {
                match schedule.work(node) {
                    Work::Forward { stage, micro } => {
                        told[stage] += &format!("F{} ", micro + 1);
                        holds[stage] += 1;
                        counts = true;
                    }
                    Work::Backward { stage, micro } => {
                        told[stage] += &format!("B{} ", micro + 1);
                        holds[stage] -= 1;
                        counts = true;
                    }
                    Work::Load { .. } | Work::Gradients { .. } => {}
                }
                executor.complete(node);
            }
            most.iter_mut().zip(&holds).for_each(|(most, holds)| *most = (*most).max(*holds));
            ticks += usize::from(counts);
        }
        (told.into_iter().map(|told| told.trim_end().to_owned()).collect(), ticks, most)
    }

    #[test]
    fn stages_go_on_and_back_in_turns() {
        let (told, ticks, _) = in_lockstep(2, 4);
        assert_eq!(told, ["F1 F2 B1 F3 B2 F4 B3 B4", "F1 B1 F2 B2 F3 B3 F4 B4"]);
        // Each stage has eight pieces, and waits for the other at the beginning and at the end.
        assert_eq!(ticks, 8 + 2);
        assert_eq!(in_lockstep(2, 1).1, 4, "nothing overlaps");
    }

    #[test]
    fn a_stage_holds_no_more_micro_batches_than_there_are_stages_from_it_to_the_last() {
        for stages in 1..6 {
            for micro_batches in 1..9 {
                let (_, ticks, most) = in_lockstep(stages, micro_batches);
                let bounds: Vec<usize> = (0..stages).map(|stage| held(stages - 1 - stage, micro_batches)).collect();
                assert!(most.iter().zip(&bounds).all(|(most, bound)| most <= bound), "{most:?} of {bounds:?}");
                assert_eq!(ticks, 2 * (micro_batches + stages - 1), "{stages} stages, {micro_batches} micro-batches");
            }
        }
    }
}
