//! Which device a name stands for on this machine, and what replaces a missing one.

use windlass_core::cluster::TaskId;
use windlass_core::device::{DeviceKind, DeviceName, LocalName};

use super::{ComputeDevice, Inventory, Missing};

/// The devices that a worker computes on.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// One device for each requested name.
    pub devices: Vec<ComputeDevice>,
    /// The devices that replace missing ones.
    pub fallbacks: Vec<Fallback>,
}

/// A device that replaces a missing one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {wanted} is not on this machine ({why}): computing on {taken} instead")]
pub struct Fallback {
    /// The requested name.
    pub wanted: String,
    /// Why the device is not available.
    pub why: String,
    /// The device that is used instead.
    pub taken: LocalName,
}

/// Why a worker cannot compute on the requested devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The device does not exist.
    #[error("device {wanted} is not on this machine: {why}")]
    NotHere {
        /// The requested name.
        wanted: String,
        /// Why the device is not available.
        why: String,
        /// The names of all devices of this machine.
        there_are: Vec<String>,
    },
    /// The name belongs to another task.
    #[error("device {wanted} does not belong to {task}, which is to compute on it")]
    OtherTask {
        /// The requested name.
        wanted: String,
        /// The task that was given the name.
        task: TaskId,
    },
}

impl PlacementError {
    /// Returns what to do instead.
    pub fn hint(&self) -> String {
        match self {
            Self::NotHere { there_are, .. } => format!(
                "this machine has {}; --soft-placement on computes on a device that exists",
                there_are.join(", ")
            ),
            Self::OtherTask { .. } => {
                "each worker computes on devices of its own: omit the task, as in gpu:0".to_owned()
            }
        }
    }
}

/// Finds the devices of a task by their names. Soft placement replaces a missing device with another of the same kind,
/// or else with the CPU.
pub fn choose(
    names: &[DeviceName],
    task: TaskId,
    is_soft: bool,
    inventory: &Inventory,
) -> Result<Chosen, PlacementError> {
    let mut chosen = Chosen { devices: Vec::new(), fallbacks: Vec::new() };
    for name in names {
        if !name.may_be_of(task) {
            return Err(PlacementError::OtherTask { wanted: in_words(name), task });
        }
        let wanted = name.device.unwrap_or(LocalName::new(DeviceKind::Cpu, 0));
        let of_kind = inventory.of_kind(wanted.kind);
        if let Some(device) = of_kind.get(wanted.index.unwrap_or(0) as usize) {
            chosen.devices.push(device.clone());
            continue;
        }
        let (wanted, why) = (in_words(name), why_missing(wanted.kind, inventory));
        if !is_soft {
            return Err(PlacementError::NotHere { wanted, why, there_are: there_are(inventory) });
        }
        let device = of_kind.first().cloned().unwrap_or_else(ComputeDevice::cpu);
        chosen.fallbacks.push(Fallback { wanted, why, taken: device.name });
        chosen.devices.push(device);
    }
    Ok(chosen)
}

/// Returns a name as users write it.
fn in_words(name: &DeviceName) -> String {
    match name.device {
        Some(device) if *name == DeviceName::from(device) => device.to_string(),
        _ => name.to_string(),
    }
}

fn why_missing(kind: DeviceKind, inventory: &Inventory) -> String {
    let is_built = |missing: &Option<Missing>| !matches!(missing, Some(Missing::NotBuilt { .. }));
    let of_kind = inventory.of_kind(kind);
    if let [first, .., last] = of_kind {
        return format!("there are {} to {}", first.name, last.name);
    }
    if let [only] = of_kind {
        return format!("the only {} is {}", kind.name(), only.name);
    }
    let graphics = || inventory.backends.iter().filter(|backend| backend.kind != DeviceKind::Cpu);
    if kind != DeviceKind::Gpu {
        let backend = graphics().find(|backend| backend.kind == kind);
        let missing = backend.and_then(|backend| backend.missing.as_ref());
        return missing.map_or("there is none".to_owned(), |missing| format!("{}: {missing}", kind.name()));
    }
    let built: Vec<&str> =
        graphics().filter(|backend| is_built(&backend.missing)).map(|backend| backend.kind.name()).collect();
    match &built[..] {
        [] => {
            let features: Vec<&str> = graphics().map(|backend| backend.kind.name()).collect();
            format!("this build has no GPU backend (cargo features {})", features.join(", "))
        }
        built => format!("no card was found through {}", built.join(", ")),
    }
}

/// Returns all device names; cards are listed under both of theirs.
fn there_are(inventory: &Inventory) -> Vec<String> {
    let name = |device: &ComputeDevice| match inventory.card_number(device) {
        Some(number) => format!("{} (gpu:{number})", device.name),
        None => device.name.to_string(),
    };
    inventory.devices().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{BACKENDS, BackendDevices};
    use super::*;

    /// A machine with a CPU, this many NVIDIA cards, and a software driver.
    fn machine(cards: u32) -> Inventory {
        let device = |kind, index, is_software| ComputeDevice {
            name: LocalName::new(kind, index),
            device: burn::tensor::Device::flex(),
            is_software,
        };
        let cards: Vec<ComputeDevice> = (0..cards).map(|index| device(DeviceKind::Cuda, index, false)).collect();
        let backend = |kind: DeviceKind| {
            let devices = match kind {
                DeviceKind::Cpu => vec![ComputeDevice::cpu()],
                DeviceKind::Cuda => cards.clone(),
                DeviceKind::Wgpu => vec![device(kind, 0, true)],
                _ => Vec::new(),
            };
            let missing = match kind {
                _ if !devices.is_empty() => None,
                DeviceKind::Cuda => Some(Missing::NoDriver { driver: "an NVIDIA driver" }),
                kind => Some(Missing::NotBuilt { feature: kind.name(), driver: None }),
            };
            BackendDevices { kind, devices, missing }
        };
        Inventory { backends: BACKENDS.into_iter().map(backend).collect(), cards: cards.clone() }
    }

    fn chosen(names: &[&str], is_soft: bool, machine: &Inventory) -> Result<Chosen, PlacementError> {
        let names: Vec<DeviceName> = names.iter().map(|name| name.parse().unwrap()).collect();
        choose(&names, TaskId::worker(1), is_soft, machine)
    }

    fn taken(names: &[&str], cards: u32) -> Vec<String> {
        let chosen = chosen(names, false, &machine(cards)).unwrap();
        assert!(chosen.fallbacks.is_empty());
        chosen.devices.iter().map(|device| device.name.to_string()).collect()
    }

    #[test]
    fn a_name_stands_for_the_device_of_its_kind_and_number() {
        assert_eq!(taken(&["cpu", "cpu:0", "/job:worker/task:1"], 0), ["cpu:0", "cpu:0", "cpu:0"]);
        assert_eq!(taken(&["gpu", "gpu:1", "cuda:1", "/task:1/gpu:0"], 2), ["cuda:0", "cuda:1", "cuda:1", "cuda:0"]);
        assert_eq!(taken(&["wgpu:0"], 0), ["wgpu:0"]);
    }

    #[test]
    fn a_missing_device_is_refused_with_a_list_of_those_that_exist() {
        let refused = |name, cards| {
            let error = chosen(&[name], false, &machine(cards)).unwrap_err();
            (error.to_string(), error.hint())
        };
        let (error, hint) = refused("gpu:2", 2);
        assert_eq!(error, "device gpu:2 is not on this machine: there are cuda:0 to cuda:1");
        assert_eq!(
            hint,
            "this machine has cpu:0, cuda:0 (gpu:0), cuda:1 (gpu:1), wgpu:0; --soft-placement on computes on a device \
             that exists"
        );
        assert_eq!(refused("cpu:1", 2).0, "device cpu:1 is not on this machine: the only cpu is cpu:0");
        // A software driver does not count as a card.
        assert_eq!(refused("gpu", 0).0, "device gpu is not on this machine: no card was found through cuda, wgpu");
        assert_eq!(
            refused("cuda:0", 0).0,
            "device cuda:0 is not on this machine: cuda: this machine does not have an NVIDIA driver"
        );
        assert_eq!(
            refused("/task:1/rocm:0", 0).0,
            "device /task:1/device:ROCM:0 is not on this machine: rocm: not in this build (cargo feature `rocm`)"
        );
    }

    #[test]
    fn soft_placement_takes_another_of_the_kind_or_the_processor_and_says_so() {
        let soft = chosen(&["gpu:0", "gpu:1", "rocm:0"], true, &machine(1)).unwrap();
        let devices: Vec<String> = soft.devices.iter().map(|device| device.name.to_string()).collect();
        assert_eq!(devices, ["cuda:0", "cuda:0", "cpu:0"]);
        let told: Vec<String> = soft.fallbacks.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "device gpu:1 is not on this machine (the only gpu is cuda:0): computing on cuda:0 instead",
                "device rocm:0 is not on this machine (rocm: not in this build (cargo feature `rocm`)): computing on \
                 cpu:0 instead"
            ]
        );
    }

    #[test]
    fn a_device_of_another_task_is_refused_even_softly() {
        for name in ["/job:ps/task:0", "/task:0/gpu:0", "/replica:1"] {
            let error = chosen(&[name], true, &machine(1)).unwrap_err();
            assert!(matches!(&error, PlacementError::OtherTask { .. }), "{error}");
        }
        let error = chosen(&["/task:0/gpu:0"], true, &machine(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device /task:0/device:GPU:0 does not belong to worker 1, which is to compute on it"
        );
    }
}
