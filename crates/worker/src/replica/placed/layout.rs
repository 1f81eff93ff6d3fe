//! Which devices compute a stage: one, or several side by side that take its micro-batches in turn. A stage with its
//! parameters on one device is a *tower*, and each device is a lane.

use std::ops::Range;

use windlass_core::executor::LaneId;

use super::config::{Place, PlaceAt};
use crate::joined::protocol::StageAssigned;
use crate::stages::{PlannedStage, StagePlan};

/// The towers of all stages, and the lanes that they are on.
#[derive(Debug)]
pub(super) struct Layout {
    towers: Vec<StageTower>,
    /// The towers of each stage.
    of_stage: Vec<Range<usize>>,
    lanes: Vec<Place>,
    /// The most micro-batches that each tower of a stage holds.
    holds: Vec<usize>,
}

/// A stage on one device.
#[derive(Debug)]
pub(super) struct StageTower {
    pub(super) stage: usize,
    pub(super) lane: LaneId,
    pub(super) at: PlaceAt,
}

impl Layout {
    /// Assigns each stage to its places. Places with the same name share a lane.
    pub(super) fn new<'a>(plan: &StagePlan, places: impl Fn(&PlannedStage) -> &'a [Place]) -> Self {
        let (mut towers, mut of_stage, mut lanes) = (Vec::<StageTower>::new(), Vec::new(), Vec::<Place>::new());
        for (stage, planned) in plan.stages().iter().enumerate() {
            let (first, places) = (towers.len(), places(planned));
            for place in places {
                let lane = lanes.iter().position(|lane| lane.name == place.name).unwrap_or_else(|| {
                    lanes.push(place.clone());
                    lanes.len() - 1
                });
                towers.push(StageTower { stage, lane: LaneId(lane), at: place.at.clone() });
            }
            of_stage.push(first..towers.len());
        }
        let onward = onward(plan, &of_stage).into_iter().zip(&of_stage);
        let holds = onward.map(|(onward, towers)| onward.div_ceil(towers.len())).collect();
        Self { holds, towers, of_stage, lanes }
    }

    pub(super) fn towers(&self) -> &[StageTower] {
        &self.towers
    }

    pub(super) fn lanes(&self) -> &[Place] {
        &self.lanes
    }

    /// The name of a lane.
    pub(super) fn lane_name(&self, lane: LaneId) -> &str {
        &self.lanes[lane.0].name
    }

    /// The numbers of a stage's towers.
    pub(super) fn of(&self, stage: usize) -> Range<usize> {
        self.of_stage[stage].clone()
    }

    /// The tower that computes a micro-batch in a stage.
    pub(super) fn tower(&self, stage: usize, micro: usize) -> usize {
        let towers = &self.of_stage[stage];
        towers.start + micro % towers.len()
    }

    /// The micro-batch whose backward pass a stage must finish before the forward pass of this one, so that none of its
    /// towers holds more than it should.
    pub(super) fn makes_way_for(&self, stage: usize, micro: usize) -> Option<usize> {
        micro.checked_sub(self.holds[stage] * self.of_stage[stage].len())
    }

    /// The stages assigned to joined workers.
    pub(super) fn assigned(&self, plan: &StagePlan) -> Vec<StageAssigned> {
        let assigned = |tower: &StageTower| match &tower.at {
            PlaceAt::Here(_) => None,
            PlaceAt::Worker(worker, device) => {
                let stage = plan.stages()[tower.stage].name.clone();
                Some(StageAssigned { stage, worker: *worker, device: device.clone() })
            }
        };
        self.towers.iter().filter_map(assigned).collect()
    }
}

/// For each stage, the number of towers from it to the last stage, along the path with the most of them.
fn onward(plan: &StagePlan, of_stage: &[Range<usize>]) -> Vec<usize> {
    let mut onward = vec![0; of_stage.len()];
    let mut awaited: Vec<usize> = plan.stages().iter().map(|stage| stage.feeds.len()).collect();
    // Goes backwards from the last stage and visits each stage once, after all stages that it feeds. There are no
    // cycles.
    let mut known = vec![plan.last()];
    while let Some(stage) = known.pop() {
        let PlannedStage { inputs, feeds, .. } = &plan.stages()[stage];
        let behind = feeds.iter().map(|next| onward[*next]).max().unwrap_or(0);
        onward[stage] = of_stage[stage].len() + behind;
        for input in inputs {
            awaited[*input] -= 1;
            if awaited[*input] == 0 {
                known.push(*input);
            }
        }
    }
    onward
}

#[cfg(test)]
pub(super) mod tests {
    use burn::tensor::Device;
    use windlass_core::parameter::ParameterTable;

    use super::*;
    use crate::stages::Stage;

    /// Makes a chain of this many stages.
    pub(in crate::replica::placed) fn chain(stages: usize) -> StagePlan {
        let stage = |index: usize| {
            let stage = Stage::new(format!("s{index}"));
            if index == 0 { stage } else { stage.after(format!("s{}", index - 1)) }
        };
        StagePlan::new((0..stages).map(stage).collect(), &ParameterTable::new(Vec::new()).unwrap()).unwrap()
    }

    /// Places the stages of a chain, each on these lanes.
    pub(in crate::replica::placed) fn on(lanes: &[&[usize]]) -> Layout {
        let place = |lane: &usize| Place { name: format!("cpu:{lane}"), at: PlaceAt::Here(Device::flex()) };
        let places: Vec<Vec<Place>> = lanes.iter().map(|lanes| lanes.iter().map(place).collect()).collect();
        let number = |stage: &PlannedStage| stage.name[1..].parse::<usize>().unwrap();
        Layout::new(&chain(lanes.len()), |stage| &places[number(stage)])
    }

    #[test]
    fn micro_batches_of_a_stage_go_to_its_devices_in_turn() {
        let layout = on(&[&[0, 2, 1], &[1]]);
        let lanes = |stage| -> Vec<&str> {
            let lane = |micro| layout.towers()[layout.tower(stage, micro)].lane;
            (0..5).map(|micro| layout.lane_name(lane(micro))).collect()
        };
        assert_eq!(lanes(0), ["cpu:0", "cpu:2", "cpu:1", "cpu:0", "cpu:2"]);
        assert_eq!(lanes(1), ["cpu:1"; 5]);
        assert_eq!(layout.lanes().len(), 3, "two stages share a lane");
    }

    #[test]
    fn a_network_with_many_ways_from_the_first_stage_to_the_last_is_laid_out() {
        let stages = 100;
        let stage = |index: usize| {
            let inputs = index.saturating_sub(2)..index;
            inputs.fold(Stage::new(format!("s{index}")), |stage, input| stage.after(format!("s{input}")))
        };
        let table = ParameterTable::new(Vec::new()).unwrap();
        let plan = StagePlan::new((0..stages).map(stage).collect(), &table).unwrap();
        let place = [Place { name: "cpu:0".to_owned(), at: PlaceAt::Here(Device::flex()) }];
        assert_eq!(Layout::new(&plan, |_| &place).holds, (1..=stages).rev().collect::<Vec<_>>());
    }

    #[test]
    fn a_device_holds_as_many_micro_batches_as_keep_those_behind_it_busy() {
        // There are four devices from the first stage to the last, and two are its own: each holds two.
        let layout = on(&[&[0, 1], &[2], &[3]]);
        let waits = |stage| -> Vec<Option<usize>> { (3..6).map(|micro| layout.makes_way_for(stage, micro)).collect() };
        assert_eq!(waits(0), [None, Some(0), Some(1)]);
        assert_eq!(waits(1), [Some(1), Some(2), Some(3)]);
        assert_eq!(waits(2), [Some(2), Some(3), Some(4)]);
    }
}
