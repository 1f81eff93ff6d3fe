//! What a worker computes on: device names as users give them, and the devices of this machine that they refer to.

use tracing::{info, warn};
use windlass_core::cluster::TaskId;
use windlass_core::device::{DeviceKind, DeviceName, LocalName};
use windlass_worker::devices::{Chosen, ComputeDevice, Inventory, choose};

use crate::args::{DeviceArgs, SoftPlacement};
use crate::failure::Failure;
use crate::output::count;

/// The highest number of replicas in one process: each has a network and threads of its own.
const MOST_TOWERS: usize = 256;

/// The devices that a user wants, which a machine may or may not have.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    /// One name for each replica of a worker.
    names: Vec<DeviceName>,
    /// Whether each replica was given a name by `--devices`.
    is_named: bool,
    is_soft: bool,
    pub(crate) is_logged: bool,
}

impl Placement {
    pub(crate) fn new(towers: usize, args: &DeviceArgs) -> Result<Self, Failure> {
        if towers == 0 {
            return Err(Failure::usage("--towers is 0, but must be at least 1"));
        }
        let names = match (&args.devices, &args.device) {
            (Some(names), _) => names.split(',').map(|name| parse("--devices", name)).collect::<Result<Vec<_>, _>>()?,
            (None, Some(name)) => vec![parse("--device", name)?; towers.min(MOST_TOWERS + 1)],
            (None, None) => vec![LocalName::new(DeviceKind::Cpu, 0).into(); towers.min(MOST_TOWERS + 1)],
        };
        if args.devices.is_some() && towers != 1 && towers != names.len() {
            let message = format!("--towers is {towers}, but --devices names {}", names.len());
            return Err(
                Failure::usage(message).with_hint("there is a replica on each device: omit --towers".to_owned())
            );
        }
        if names.len() > MOST_TOWERS {
            let given = match args.devices {
                Some(_) => format!("--devices names {}", names.len()),
                None => format!("--towers is {towers}"),
            };
            return Err(Failure::usage(format!("{given}, but there are at most {MOST_TOWERS} in a worker")));
        }
        let is_soft = args.soft_placement == SoftPlacement::On;
        Ok(Self { names, is_named: args.devices.is_some(), is_soft, is_logged: args.log_placement })
    }

    /// The CPU alone, for a process that computes no steps.
    pub(crate) fn of_the_processor(is_logged: bool) -> Self {
        let names = vec![LocalName::new(DeviceKind::Cpu, 0).into()];
        Self { names, is_named: false, is_soft: false, is_logged }
    }

    /// The same for a worker that does not know its number: task numbers in device names are ignored.
    pub(crate) fn of_any_worker(mut self) -> Self {
        self.names.iter_mut().for_each(|name| name.task = None);
        self
    }

    /// The number of replicas of the network in a worker, each of which needs at least one sample per step.
    pub(crate) fn replicas(&self, samples_a_step: usize) -> Result<usize, Failure> {
        let replicas = self.names.len();
        if replicas > samples_a_step {
            let samples = count(samples_a_step, "sample");
            let what = if self.is_named { "--devices names" } else { "--towers is" };
            return Err(Failure::usage(format!("{what} {replicas}, but a worker's step has only {samples}"))
                .with_hint("raise --batch-size, or use fewer towers".to_owned()));
        }
        Ok(replicas)
    }

    /// The devices for a worker of this process.
    pub(crate) fn devices(&self, task: TaskId) -> Result<Vec<ComputeDevice>, Failure> {
        let Chosen { devices, fallbacks } = self.choose(task, &self.inventory())?;
        fallbacks.iter().for_each(|fallback| warn!("{fallback}"));
        if devices.iter().any(|device| !device.is_cpu()) {
            info!("computing on {}", names(&devices).join(", "));
        }
        Ok(devices)
    }

    /// Refuses placements that any of this many workers on this machine would refuse, and warns only once about what
    /// applies to each of them.
    pub(crate) fn check(&self, workers: u32) -> Result<(), Failure> {
        let inventory = self.inventory();
        for worker in 0..workers {
            let Chosen { fallbacks, .. } = self.choose(TaskId::worker(worker), &inventory)?;
            fallbacks.iter().filter(|_| worker == 0).for_each(|fallback| warn!("{fallback}"));
        }
        Ok(())
    }

    fn choose(&self, task: TaskId, inventory: &Inventory) -> Result<Chosen, Failure> {
        let chosen = choose(&self.names, task, self.is_soft, inventory);
        chosen.map_err(|error| Failure::usage(&error).with_hint(error.hint()))
    }

    /// The devices of this machine. Drivers are not loaded unless they are needed.
    fn inventory(&self) -> Inventory {
        let processor = LocalName::new(DeviceKind::Cpu, 0);
        let is_processor =
            |device: LocalName| device.kind == DeviceKind::Cpu && device.index.is_none_or(|index| index == 0);
        let is_known = |name: &DeviceName| is_processor(name.device.unwrap_or(processor));
        if self.names.iter().all(is_known) { Inventory::of_the_processor() } else { Inventory::of_this_machine() }
    }
}

/// The names of devices.
pub(crate) fn names(devices: &[ComputeDevice]) -> Vec<String> {
    devices.iter().map(|device| device.name.to_string()).collect()
}

pub(crate) fn parse(flag: &str, name: &str) -> Result<DeviceName, Failure> {
    name.trim().parse().map_err(|error: windlass_core::device::DeviceNameError| {
        Failure::usage(format!("{flag}: {error}")).with_hint(error.hint())
    })
}
