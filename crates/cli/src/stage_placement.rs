//! `--place`: which stages of a model go to which devices, as users write it. The stages of a model are known only once
//! it has been loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use burn::tensor::Device;
use tracing::warn;
use windlass_core::cluster::{Job, TaskId};
use windlass_core::device::{DeviceKind, DeviceName, LocalName};
use windlass_worker::devices::{Chosen, Inventory, choose};
use windlass_worker::model::{Model, Setup};
use windlass_worker::replica::{Place, PlaceAt, PlaceError, PlacedConfig};
use windlass_worker::threads;

use crate::args::{PlaceArgs, SoftPlacement, TrainArgs};
use crate::failure::Failure;
use crate::output::count;
use crate::placement::parse;

/// The highest number of lanes on the CPU in one process: each has threads of its own.
const MOST_LANES: u32 = 256;

/// Where stages are placed, and how batches pass through them.
#[derive(Debug, Clone)]
pub(crate) struct StagePlacement {
    /// Stages with the names of their devices, in the order given.
    pub(crate) places: Vec<(String, Vec<DeviceName>)>,
    pub(crate) micro_batches: usize,
    pub(crate) trace: Option<PathBuf>,
    /// Whether another device may replace one that does not exist.
    pub(crate) is_soft: bool,
}

impl StagePlacement {
    /// The placement that the user requests, if any, for steps with this number of samples.
    pub(crate) fn new(args: &TrainArgs, samples_a_step: usize) -> Result<Option<Self>, Failure> {
        let PlaceArgs { place, microbatches, trace } = &args.place;
        if *microbatches == Some(0) {
            return Err(Failure::usage("--microbatches is 0, but must be at least 1"));
        }
        let Some(place) = place else {
            let hint = "such as --place hidden=cpu:0,output=cpu:1".to_owned();
            return match (microbatches, trace) {
                (None | Some(1), None) => Ok(None),
                (None | Some(1), Some(_)) => Err(Failure::usage("--trace needs --place").with_hint(hint)),
                _ => Err(Failure::usage("--microbatches needs --place").with_hint(hint)),
            };
        };
        let mut places: Vec<(String, Vec<DeviceName>)> = Vec::new();
        let mut written: BTreeMap<&str, &str> = BTreeMap::new();
        for entry in place.split(',') {
            let (stage, devices) = divided(entry).ok_or_else(|| {
                Failure::usage(format!("--place: {entry:?} names no device"))
                    .with_hint("write it as in --place hidden=cpu:0,output=/job:worker/task:1".to_owned())
            })?;
            if let Some(first) = written.insert(stage, devices) {
                return Err(Failure::usage(format!("--place puts {stage} both on {first} and on {devices}"))
                    .with_hint(format!("to have both compute it, write {stage}={first}+{devices}")));
            }
            let devices = devices.split('+').map(|device| parse("--place", device.trim()));
            places.push((stage.to_owned(), devices.collect::<Result<_, _>>()?));
        }
        let most_devices = places.iter().map(|(_, devices)| devices.len()).max().unwrap_or(1);
        let micro_batches = microbatches.unwrap_or(most_devices);
        let (training, device) = (&args.training, &args.device);
        if training.in_graph {
            return Err(Failure::usage(
                "--place cannot be combined with --in-graph: it divides the model; that divides batches",
            )
            .with_hint("joined workers compute stages without it".to_owned()));
        }
        if training.towers != 1 || device.devices.is_some() {
            return Err(Failure::usage(
                "--place cannot be combined with --towers or --devices: it divides the model; they divide batches",
            )
            .with_hint("--place STAGE=cpu:0+cpu:1 has several devices compute a stage".to_owned()));
        }
        if training.accumulate != 1 {
            return Err(Failure::usage("--place cannot be combined with --accumulate")
                .with_hint("--microbatches splits each batch, and adds up the gradients of its parts".to_owned()));
        }
        if micro_batches > samples_a_step {
            let samples = count(samples_a_step, "sample");
            let why = match microbatches {
                Some(_) => format!("--microbatches is {micro_batches}, but a batch has only {samples}"),
                None => format!("--place puts a stage on {micro_batches} devices, but a batch has only {samples}"),
            };
            return Err(Failure::usage(why).with_hint(match microbatches {
                Some(_) => "raise --batch-size, or use fewer micro-batches".to_owned(),
                None => "raise --batch-size, or use fewer devices".to_owned(),
            }));
        }
        let is_soft = device.soft_placement == SoftPlacement::On;
        Ok(Some(Self { places, micro_batches, trace: trace.clone(), is_soft }))
    }

    /// The stages, placed on devices of this process or of `joined` joined workers.
    pub(crate) fn places(&self, joined: Option<usize>) -> Result<Vec<(String, Vec<Place>)>, Failure> {
        let places = |(stage, names): &(String, Vec<DeviceName>)| {
            let place = |name| if is_of_task(name) { elsewhere(stage, name, joined) } else { self.here(name) };
            let mut places = names.iter().map(place).collect::<Result<Vec<_>, _>>()?;
            if self.is_soft {
                // The same device may have replaced two that do not exist. A device that the user wrote twice is an
                // error.
                let is_own = |at: usize| names.iter().filter(|name| **name == names[at]).count() == 1;
                let (mut known, mut at) = (BTreeSet::new(), 0..);
                places.retain(|place| {
                    let is_substitute = at.next().is_some_and(is_own) && matches!(place.at, PlaceAt::Here(_));
                    known.insert(place.name.clone()) || !is_substitute
                });
            }
            Ok((stage.clone(), places))
        };
        let places = self.places.iter().map(places).collect::<Result<Vec<_>, Failure>>()?;
        PlacedConfig::check(&places, self.micro_batches).map_err(|error| failure(&error))?;
        Ok(places)
    }

    fn here(&self, name: &DeviceName) -> Result<Place, Failure> {
        let device = name.device.unwrap_or(LocalName::new(DeviceKind::Cpu, 0));
        if device.kind == DeviceKind::Cpu {
            // Not another processor, but other threads on it, so that a pipeline can be tried on any machine.
            let index = device.index.unwrap_or(0);
            if index >= MOST_LANES {
                return Err(Failure::usage(format!(
                    "--place: {device} is one too many: {MOST_LANES} is the most that a process has"
                )));
            }
            return Ok(Place { name: format!("cpu:{index}"), at: PlaceAt::Here(Device::flex()) });
        }
        let chosen = choose(&[DeviceName::from(device)], TaskId::CHIEF, self.is_soft, &Inventory::of_this_machine());
        let Chosen { mut devices, fallbacks } =
            chosen.map_err(|error| Failure::usage(format!("--place: {error}")).with_hint(error.hint()))?;
        fallbacks.iter().for_each(|fallback| warn!("{fallback}"));
        let chosen = devices.remove(0);
        Ok(Place { name: chosen.name.to_string(), at: PlaceAt::Here(chosen.device) })
    }
}

/// Splits an entry into its stage and devices.
fn divided(entry: &str) -> Option<(&str, &str)> {
    entry.split_once('=').map(|(stage, devices)| (stage.trim(), devices.trim()))
}

/// Refuses stages that a model does not have, before anything is started. If the model cannot be built without its
/// data, the process that loads it checks this instead.
pub(crate) fn check_stages<M: Model>(args: &PlaceArgs, flags: &M::Flags, setup: &Setup) -> Result<(), PlaceError> {
    let Some(place) = &args.place else { return Ok(()) };
    let staging = M::staging().ok_or(PlaceError::Whole { model: M::NAME })?;
    let Ok(model) = threads::caught("making the model", || M::without_data(flags, setup, &[])) else { return Ok(()) };
    let there_are = staging.names(&model);
    let named = place.split(',').filter_map(divided).map(|(stage, _)| stage);
    match named.into_iter().find(|stage| !there_are.iter().any(|known| known == stage)) {
        Some(stage) => Err(PlaceError::UnknownStage { model: M::NAME, stage: stage.to_owned(), there_are }),
        None => Ok(()),
    }
}

/// Whether stages are placed on other tasks, as far as that is known before the flags are checked.
pub(crate) fn names_tasks(args: &PlaceArgs) -> bool {
    let devices = args.place.iter().flat_map(|place| place.split(',')).filter_map(divided);
    let names = devices.flat_map(|(_, devices)| devices.split('+'));
    names.filter_map(|device| device.trim().parse().ok()).any(|name| is_of_task(&name))
}

/// The failure for a model that cannot be divided, with a hint.
pub(crate) fn failure(error: &PlaceError) -> Failure {
    let failure = Failure::usage(error);
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

fn is_of_task(name: &DeviceName) -> bool {
    name.job.is_some() || name.task.is_some() || name.replica.is_some()
}

/// A place on one of `joined` joined workers.
fn elsewhere(stage: &str, name: &DeviceName, joined: Option<usize>) -> Result<Place, Failure> {
    let refuse = |why: String| Failure::usage(format!("--place puts {stage} on {name}, {why}"));
    let Some(joined) = joined else {
        return Err(refuse("but only a client of joined workers reaches other tasks".to_owned()).with_hint(
            "list them with --worker_hosts and omit --job_name; or name a device of this process, as cpu:1".to_owned(),
        ));
    };
    let hint = match joined {
        1 => "there is worker 0 alone".to_owned(),
        2 => "there are workers 0 and 1".to_owned(),
        joined => format!("there are workers 0 to {}", joined - 1),
    };
    if name.job.as_ref().is_some_and(|job| *job != Job::Worker.to_string()) || name.replica.unwrap_or(0) != 0 {
        return Err(refuse("but only workers compute stages".to_owned()).with_hint(hint));
    }
    let task = name.task.ok_or_else(|| refuse("which does not say which task".to_owned()).with_hint(hint.clone()))?;
    if task as usize >= joined {
        return Err(refuse("but there is no such worker".to_owned()).with_hint(hint));
    }
    // Everything that a worker computes passes through one connection, so the worker is one lane whatever devices it
    // has.
    let device = name.device.map(|device| device.to_string());
    Ok(Place { name: format!("/job:worker/task:{task}"), at: PlaceAt::Worker(task as usize, device) })
}
