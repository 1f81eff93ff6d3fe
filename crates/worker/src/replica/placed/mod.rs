//! One model across several devices: each stage where it was placed. To the training loop it is one replica.
//!
//! A step is a graph of forward and backward passes, a pair for each stage and micro-batch, which the lanes of the
//! devices execute as its dependencies allow. Work on the network as a whole, such as scoring, is done by a complete
//! replica on the client's own device.

mod attempt;
mod config;
mod host;
mod lanes;
mod layout;
mod local_stage;
mod remote_stage;
mod schedule;
mod source;
mod step;
#[cfg(test)]
mod tests;
mod trace;
mod worker;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use burn::tensor::Device;
use rayon::{ThreadPool, ThreadPoolBuildError};
use windlass_core::footprint::gradient_bytes;
use windlass_core::parameter::{ParameterId, ParameterTable};
use windlass_instruments::{Site, Sites};
use windlass_wire::client::{Interrupt, RowRequest};

pub use self::config::{Place, PlaceAt, PlaceError, PlacedConfig};
pub(crate) use self::host::{StageForward, StageHost, StageRows, StageStart};
use self::lanes::Lanes;
use self::layout::{Layout, StageTower};
use self::local_stage::LocalStage;
use self::remote_stage::{Joined, RemoteStage};
use self::schedule::Schedule;
use self::source::{MicroBatch, Source};
use self::step::Divided;
use self::trace::Usage;
pub use self::trace::{TRACED_STEPS, Trace};
pub use self::worker::StageWorker;
use super::{Batch, BatchSource, LaneReport, Local, LocalConfig, ModelInfo, Replica, StepResult};
use crate::batches::order::DataPosition;
use crate::buffer::TensorBuffer;
use crate::event::PlacedStage;
use crate::joined::protocol::StageAssigned;
use crate::metrics::Metrics;
use crate::model::{Model, PngImage};
use crate::randomness::Draw;
use crate::replica::remote::Crew;
use crate::report::Reports;
use crate::rows::RowParameters;
use crate::stages::{PlannedStage, StagePlan};
use crate::threads;

/// One model on several devices.
pub struct Placed {
    /// The complete network, for everything except steps.
    whole: Box<dyn Replica>,
    source: Arc<dyn BatchSource>,
    divided: Divided,
    lanes: Lanes,
    /// The last schedule, and the number of micro-batches that it is for.
    schedule: Option<(usize, Schedule)>,
    /// The current values, as far as they have been loaded.
    values: Vec<TensorBuffer>,
    /// Which of them have yet to be passed to the stages, and to the whole network.
    new_to_stages: Vec<bool>,
    new_to_whole: Vec<bool>,
    usage: Usage,
    trace: Option<Trace>,
    /// The joined workers, if stages are computed elsewhere, and the stages assigned to them.
    joined: Arc<OnceLock<Joined>>,
    assigned: Vec<StageAssigned>,
}

impl Placed {
    /// Divides a model.
    pub fn of<M: Model>(model: M, config: PlacedConfig) -> Result<Self, PlaceError> {
        let PlacedConfig { client, places, micro_batches, threads, seed, trace } = config;
        let staging = M::staging().ok_or(PlaceError::Whole { model: M::NAME })?;
        let model = Arc::new(model);
        let local = LocalConfig { device: client.1.clone(), ..LocalConfig::on_cpu(seed) };
        let whole = Local::sharing(model.clone(), local)?;
        let table = whole.table().clone();
        let plan = Arc::new(StagePlan::new(staging.stages(&model), &table)?);
        if let Some((stage, _)) = places.iter().find(|(stage, _)| !plan.names().contains(stage)) {
            let (stage, there_are) = (stage.clone(), plan.names());
            return Err(PlaceError::UnknownStage { model: M::NAME, stage, there_are });
        }
        let client = [Place { name: client.0, at: PlaceAt::Here(client.1) }];
        let place = |stage: &PlannedStage| places.iter().find(|(name, _)| *name == stage.name);
        PlacedConfig::check(&places, micro_batches)?;
        let layout = Layout::new(&plan, |stage| place(stage).map_or(&client[..], |(_, places)| places));
        let joined = Arc::new(OnceLock::new());
        let host = |tower: &StageTower| -> Box<dyn StageHost> {
            match &tower.at {
                PlaceAt::Here(device) => {
                    let stage = (&*plan, tower.stage);
                    Box::new(LocalStage::new(model.clone(), staging, stage, &table, (device, seed)))
                }
                PlaceAt::Worker(worker, _) => {
                    let PlannedStage { name, parameters, .. } = &plan.stages()[tower.stage];
                    Box::new(RemoteStage::new(joined.clone(), *worker, name.clone(), &table, parameters))
                }
            }
        };
        let hosts = Arc::new(layout.towers().iter().map(|tower| Mutex::new(host(tower))).collect());
        let pools = pools(layout.lanes(), threads)?;
        let lanes = layout.lanes().len();
        trace.iter().for_each(|trace| trace.name_lanes(layout.lanes().iter().map(|lane| lane.name.clone()).collect()));
        let by_rows = RowParameters::find(&table, model.row_parameters());
        let source = Arc::new(Source { model, staging, plan: plan.clone(), by_rows, seed, micro_batches });
        Ok(Self {
            whole: Box::new(whole),
            source,
            assigned: layout.assigned(&plan),
            divided: Divided { plan, layout: Arc::new(layout), hosts },
            lanes: Lanes::new(pools),
            usage: Usage::of(lanes),
            schedule: None,
            values: vec![TensorBuffer::default(); table.len()],
            new_to_stages: vec![false; table.len()],
            new_to_whole: vec![false; table.len()],
            trace,
            joined,
        })
    }

    /// Checks with one of these samples that every part of a batch finds its stage.
    pub fn check(&self, samples: &[usize]) -> anyhow::Result<()> {
        let draw = Draw { worker: 0, position: DataPosition { epoch: 0, batch: 0 }, first_part: 0 };
        self.source.batch(samples, draw).map(drop)
    }

    /// The stages assigned to joined workers.
    pub fn assigned(&self) -> &[StageAssigned] {
        &self.assigned
    }

    /// Passes the joined workers, and what ends all waits for them. Called before the first step.
    pub fn meet(&self, crew: Arc<Crew>, stop: Arc<Interrupt>) {
        let _ = self.joined.set(Joined { crew, stop });
    }

    /// Returns the device that a tower is on, as far as it is known.
    fn device(&self, tower: &StageTower) -> String {
        let lane = self.divided.layout.lane_name(tower.lane);
        let PlaceAt::Worker(worker, device) = &tower.at else { return lane.to_owned() };
        let own = || {
            let Joined { crew, stop } = self.joined.get()?;
            crew.devices(*worker, &|| stop.ends_all_waits()).into_iter().next()
        };
        device.clone().or_else(own).map_or_else(|| lane.to_owned(), |device| format!("{lane}/{device}"))
    }

    /// Returns the whole network with the current values.
    fn whole(&mut self) -> &mut dyn Replica {
        if self.new_to_whole.contains(&true) {
            let new = self.values.iter().zip(&self.new_to_whole);
            let new = new.map(|(values, is_new)| if *is_new { values.clone() } else { TensorBuffer::default() });
            self.whole.load(new.collect());
            self.new_to_whole.fill(false);
        }
        &mut *self.whole
    }
}

impl Replica for Placed {
    fn info(&self) -> &ModelInfo {
        self.whole.info()
    }

    fn table(&self) -> &ParameterTable {
        self.whole.table()
    }

    fn has_rows(&self) -> bool {
        self.whole.has_rows()
    }

    fn reports(&self) -> Option<Reports> {
        self.whole.reports()
    }

    /// Each tower of a stage has gradients of all of the stage's parameters.
    fn gradient_bytes(&self) -> u64 {
        let Divided { plan, layout, .. } = &self.divided;
        let of_stage = |(index, stage): (usize, &PlannedStage)| {
            let own = stage.parameters.iter().map(|index| self.table()[ParameterId(*index as u32)].clone());
            let bytes = ParameterTable::new(own.collect()).map_or(0, |own| gradient_bytes(&own));
            bytes.saturating_mul(layout.of(index).len() as u64)
        };
        plan.stages().iter().enumerate().map(of_stage).fold(0, u64::saturating_add)
    }

    fn source(&self) -> Arc<dyn BatchSource> {
        self.source.clone()
    }

    fn is_client(&self) -> bool {
        !self.assigned.is_empty()
    }

    fn sites(&self) -> Option<Sites> {
        // Each lane, with its joined worker if it has one.
        let seat = |lane: &Place| match lane.at {
            PlaceAt::Here(_) => None,
            PlaceAt::Worker(worker, _) => Some(worker),
        };
        let lanes = self.divided.layout.lanes().iter().map(|lane| (lane.name.clone(), seat(lane)));
        let (lanes, joined): (Vec<(String, Option<usize>)>, _) = (lanes.collect(), self.joined.clone());
        Some(Arc::new(move || {
            let site = |(name, seat): &(String, Option<usize>)| match (seat, joined.get()) {
                (Some(seat), Some(Joined { crew, .. })) => crew.site(*seat),
                (seat, _) => Site { name: name.clone(), replicas: 1, reachable: seat.is_none(), joined: None },
            };
            lanes.iter().map(site).collect()
        }))
    }

    fn placement(&self) -> Vec<PlacedStage> {
        let names: Vec<&str> = self.table().iter().map(|(_, spec)| spec.name.as_str()).collect();
        let Divided { plan, layout, .. } = &self.divided;
        let device = |tower: usize| self.device(&layout.towers()[tower]);
        let devices = |stage: usize| layout.of(stage).map(device);
        let placed = |(index, stage): (usize, &PlannedStage)| PlacedStage {
            name: stage.name.clone(),
            device: devices(index).collect::<Vec<_>>().join("+"),
            parameters: stage.parameters.iter().map(|index| names[*index].to_owned()).collect(),
        };
        plan.stages().iter().enumerate().map(placed).collect()
    }

    fn lanes(&self) -> Vec<LaneReport> {
        let Divided { plan, layout, .. } = &self.divided;
        let report = |(lane, place): (usize, &Place)| {
            let own = layout.towers().iter().filter(|tower| tower.lane.0 == lane);
            let stages = own.map(|tower| plan.stages()[tower.stage].name.clone()).collect();
            LaneReport { device: place.name.clone(), stages, busy: self.usage.busy(lane) }
        };
        layout.lanes().iter().enumerate().map(report).collect()
    }

    fn first_values(&self) -> Vec<TensorBuffer> {
        self.whole.first_values()
    }

    fn load(&mut self, values: Vec<TensorBuffer>) {
        for (index, values) in values.into_iter().enumerate().filter(|(_, values)| !values.is_empty()) {
            // All towers read the same memory.
            self.values[index] = values.shared();
            (self.new_to_stages[index], self.new_to_whole[index]) = (true, true);
        }
    }

    fn step(&mut self, batch: Batch) -> anyhow::Result<StepResult> {
        let Batch { content, rows, samples } = batch;
        self.step_on(micro_batches(content), &rows, samples)
    }

    fn rehearse(&mut self, batch: Batch) -> anyhow::Result<()> {
        let first = self.first_values();
        let mut before = std::mem::take(&mut self.values);
        before
            .iter_mut()
            .zip(first)
            .filter(|(values, _)| values.is_empty())
            .for_each(|(values, first)| *values = first);
        let mut values = before.clone();
        for RowRequest { parameter, rows } in batch.rows() {
            let (width, whole) = (self.table()[*parameter].width(), &before[parameter.0 as usize]);
            let own: Vec<f32> = rows.iter().flat_map(|row| &whole[*row as usize * width..][..width]).copied().collect();
            values[parameter.0 as usize] = own.into();
        }
        self.values = vec![TensorBuffer::default(); before.len()];
        self.load(values);
        let done = self.step(batch).map(drop);
        self.load(before);
        done
    }

    fn held_out(&self, draw: u64) -> anyhow::Result<Vec<(String, Option<Batch>)>> {
        self.whole.held_out(draw)
    }

    fn loss(&mut self, batch: Batch) -> anyhow::Result<f64> {
        self.whole().loss(batch)
    }

    fn evaluate(&mut self) -> anyhow::Result<Metrics> {
        self.whole().evaluate()
    }

    fn images(&mut self) -> anyhow::Result<Vec<PngImage>> {
        self.whole().images()
    }

    fn conclude(&mut self) -> anyhow::Result<Vec<PathBuf>> {
        self.whole().conclude()
    }
}

fn micro_batches(content: Box<dyn std::any::Any + Send>) -> Vec<MicroBatch> {
    *content.downcast().expect("a batch goes to the replica whose source has made it")
}

/// Makes the thread pool of each lane. A lane that waits for another process needs a thread, but no core.
fn pools(lanes: &[Place], threads: usize) -> Result<Vec<ThreadPool>, ThreadPoolBuildError> {
    let device = |place: &Place| match &place.at {
        PlaceAt::Here(device) => Some(device.clone()),
        PlaceAt::Worker(..) => None,
    };
    let here: Vec<Device> = lanes.iter().filter_map(device).collect();
    let mut here = threads::shared_out(&here, threads)?.into_iter();
    let pool = |place: &Place| match place.at {
        PlaceAt::Here(_) => here.next().map_or_else(|| threads::pool(1), Ok),
        PlaceAt::Worker(..) => threads::pool(1),
    };
    lanes.iter().map(pool).collect()
}
