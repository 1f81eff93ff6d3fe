//! The pieces of a placed model's step, and the order in which its devices compute them.
//!
//! The schedule is known as 1F1B. A stage prefers backward passes to forward passes, and takes micro-batches in order.
//! So that it does not run ahead of later stages, each of its devices starts the forward pass of a micro-batch only
//! after the backward pass of an earlier one. How many micro-batches it holds meanwhile depends on the layout, not on
//! the number of parts of a batch.

use std::sync::Arc;

use windlass_core::executor::{Graph, Node, NodeId};

use super::layout::Layout;
use crate::stages::StagePlan;

/// A piece of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// A tower of a stage receives its values.
    Load { tower: usize },
    /// The forward pass of a micro-batch through a stage.
    Forward { stage: usize, micro: usize },
    /// The backward pass of a micro-batch through a stage.
    Backward { stage: usize, micro: usize },
    /// The sums of a tower's gradients are fetched.
    Gradients { tower: usize },
}

/// The graph of a step.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    graph: Arc<Graph>,
    pieces: Vec<Piece>,
}

impl Schedule {
    /// Schedules stages with this layout, for a batch with this many micro-batches.
    pub(super) fn new(plan: &StagePlan, layout: &Layout, micro_batches: usize) -> Self {
        let mut nodes = Vec::new();
        let mut pieces = Vec::new();
        let mut add = |name: String, tower: usize, after: Vec<String>, rank: usize, piece: Piece| {
            nodes.push(Node { name, lane: layout.towers()[tower].lane, after, rank: rank as u64 });
            pieces.push(piece);
        };
        for (index, stage) in plan.stages().iter().enumerate() {
            let name = &*stage.name;
            // The name of a stage's only device is left out.
            let on = |tower: usize| match layout.of(index).len() {
                1 => String::new(),
                _ => format!(" on {}", layout.lane_name(layout.towers()[tower].lane)),
            };
            let load = |tower: usize| format!("load {name}{}", on(tower));
            for tower in layout.of(index) {
                add(load(tower), tower, Vec::new(), 0, Piece::Load { tower });
                let after = (0..micro_batches).filter(|micro| layout.tower(index, *micro) == tower);
                let after = after.map(|micro| backward(name, micro)).chain([load(tower)]).collect();
                let gradients = format!("gradients of {name}{}", on(tower));
                add(gradients, tower, after, 2 * micro_batches, Piece::Gradients { tower });
            }
            for micro in 0..micro_batches {
                let (neighbour, tower) = (|of: &usize| &*plan.stages()[*of].name, layout.tower(index, micro));
                let mut after: Vec<String> = stage.inputs.iter().map(|of| forward(neighbour(of), micro)).collect();
                after.push(load(tower));
                after.extend(layout.makes_way_for(index, micro).map(|earlier| backward(name, earlier)));
                let piece = Piece::Forward { stage: index, micro };
                add(forward(name, micro), tower, after, micro_batches + micro, piece);
                let mut after: Vec<String> = stage.feeds.iter().map(|of| backward(neighbour(of), micro)).collect();
                after.push(forward(name, micro));
                add(backward(name, micro), tower, after, micro, Piece::Backward { stage: index, micro });
            }
        }
        let graph = Graph::new(nodes).expect("stages without circles make a step without circles");
        Self { graph: Arc::new(graph), pieces }
    }

    pub(super) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    pub(super) fn piece(&self, node: NodeId) -> Piece {
        self.pieces[node.0]
    }
}

fn forward(stage: &str, micro: usize) -> String {
    format!("forward {stage} {}", micro + 1)
}

fn backward(stage: &str, micro: usize) -> String {
    format!("backward {stage} {}", micro + 1)
}

#[cfg(test)]
mod tests {
    use windlass_core::executor::{Executor, LaneId};

    use super::super::layout::tests::{chain, on};
    use super::*;

    /// Returns what each lane does if every piece takes equally long: `F1` for forward passes, `B1` for backward
    /// passes. Also returns how long that takes, and how many micro-batches each tower holds at most.
    fn in_lockstep(lanes: &[&[usize]], micro_batches: usize) -> (Vec<String>, usize, Vec<usize>) {
        let layout = on(lanes);
        let schedule = Schedule::new(&chain(lanes.len()), &layout, micro_batches);
        let mut executor = Executor::new(schedule.graph().clone());
        let lanes: Vec<LaneId> = (0..layout.lanes().len()).map(LaneId).collect();
        let (mut told, mut ticks) = (vec![String::new(); lanes.len()], 0);
        let (mut holds, mut most) = (vec![0_usize; layout.towers().len()], vec![0; layout.towers().len()]);
        while !executor.is_done() {
            let started: Vec<NodeId> = lanes.iter().filter_map(|lane| executor.ready(*lane)).collect();
            assert!(!started.is_empty(), "what is left waits for itself");
            let mut counts = false;
            for node in started {
                let lane = &mut told[schedule.graph().nodes()[node.0].lane.0];
                match schedule.piece(node) {
                    Piece::Forward { stage, micro } => {
                        *lane += &format!("F{} ", micro + 1);
                        holds[layout.tower(stage, micro)] += 1;
                        counts = true;
                    }
                    Piece::Backward { stage, micro } => {
                        *lane += &format!("B{} ", micro + 1);
                        holds[layout.tower(stage, micro)] -= 1;
                        counts = true;
                    }
                    Piece::Load { .. } | Piece::Gradients { .. } => {}
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
        let (told, ticks, _) = in_lockstep(&[&[0], &[1]], 4);
        assert_eq!(told, ["F1 F2 B1 F3 B2 F4 B3 B4", "F1 B1 F2 B2 F3 B3 F4 B4"]);
        // Each stage has eight pieces, and waits for the other stage at the beginning and at the end.
        assert_eq!(ticks, 8 + 2);
        assert_eq!(in_lockstep(&[&[0], &[1]], 1).1, 4, "nothing overlaps");
    }

    #[test]
    fn devices_of_a_stage_take_its_micro_batches_in_turn() {
        let (told, ticks, most) = in_lockstep(&[&[0, 1], &[2]], 4);
        assert_eq!(told, ["F1 F3 B1 B3", "F2 F4 B2 B4", "F1 B1 F2 B2 F3 B3 F4 B4"]);
        assert_eq!((ticks, most), (10, vec![2, 2, 1]));
        // With the same number of pieces for both, twice as many devices take half as long.
        assert_eq!(in_lockstep(&[&[0, 1], &[2, 3]], 8).1, in_lockstep(&[&[0], &[1]], 4).1);
    }

    #[test]
    fn a_device_holds_no_more_micro_batches_than_there_are_stages_from_its_own_to_the_last() {
        for stages in 1..6 {
            for micro_batches in 1..9 {
                let lanes: Vec<Vec<usize>> = (0..stages).map(|stage| vec![stage]).collect();
                let lanes: Vec<&[usize]> = lanes.iter().map(|lanes| &lanes[..]).collect();
                let (_, ticks, most) = in_lockstep(&lanes, micro_batches);
                let bounds: Vec<usize> = (0..stages).map(|stage| micro_batches.min(stages - stage)).collect();
                assert!(most.iter().zip(&bounds).all(|(most, bound)| most <= bound), "{most:?} of {bounds:?}");
                assert_eq!(ticks, 2 * (micro_batches + stages - 1), "{stages} stages, {micro_batches} micro-batches");
            }
        }
    }

    #[test]
    fn whatever_the_layout_a_step_comes_to_its_end() {
        for (lanes, micro_batches) in [
            (&[&[0, 1, 2][..], &[0, 1], &[3]][..], 7),
            (&[&[0, 1], &[1, 0], &[0, 1]], 2),
            (&[&[0], &[1, 2, 3, 4, 5], &[0]], 11),
            (&[&[2, 1, 0]], 5),
        ] {
            let (_, _, most) = in_lockstep(lanes, micro_batches);
            let layout = on(lanes);
            for (tower, most) in most.into_iter().enumerate() {
                let stage = layout.towers()[tower].stage;
                let onward: usize = lanes[stage..].iter().map(|lanes| lanes.len()).sum();
                assert!(most <= onward.div_ceil(lanes[stage].len()), "tower {tower} of {lanes:?} holds {most}");
            }
        }
    }
}
