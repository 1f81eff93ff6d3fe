//! The devices of this machine that this build can compute on, and what keeps it from others. Nothing here trains.
//!
//! A backend may not be compiled in, its driver may be missing, and a mask may hide some of the driver's devices. Each
//! case is reported and never panics.

mod backend;
mod choose;
mod driver;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
pub use choose::{Chosen, Fallback, PlacementError, choose};
pub use driver::{Mask, masks};
use tracing::info;
use windlass_core::device::{DeviceKind, LocalName};
use windlass_core::footprint::in_words as bytes_in_words;

/// The backends. The name `gpu` reaches a card by the first of them that has it.
pub const BACKENDS: [DeviceKind; 6] =
    [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Rocm, DeviceKind::Metal, DeviceKind::Vulkan, DeviceKind::Wgpu];

/// The devices of this machine.
#[derive(Debug, Clone)]
pub struct Inventory {
    /// One for each of [`BACKENDS`].
    pub backends: Vec<BackendDevices>,
    /// The graphics cards, each listed once even if several backends reach it: `gpu:0`, `gpu:1`…
    pub cards: Vec<ComputeDevice>,
}

/// The devices of a backend.
#[derive(Debug, Clone)]
pub struct BackendDevices {
    /// The backend.
    pub kind: DeviceKind,
    /// Its devices.
    pub devices: Vec<ComputeDevice>,
    /// Why there are none.
    pub missing: Option<Missing>,
}

/// A device that this build can compute on.
#[derive(Debug, Clone)]
pub struct ComputeDevice {
    /// The name: backend and number.
    pub name: LocalName,
    /// Burn's handle of the device.
    pub device: Device,
    /// Whether it is a CPU that a graphics driver presents as a card. It does not count as a `gpu`.
    pub is_software: bool,
}

impl ComputeDevice {
    /// Returns the CPU.
    pub fn cpu() -> Self {
        Self { name: LocalName::new(DeviceKind::Cpu, 0), device: Device::flex(), is_software: false }
    }

    /// Whether it computes in this process's own memory and threads.
    pub fn is_cpu(&self) -> bool {
        self.name.kind == DeviceKind::Cpu
    }

    /// The bytes of its memory that this process has reserved and that are in use, if the backend counts them.
    pub fn reserved_memory(&self) -> Option<(u64, u64)> {
        self.device.memory_pool_usage().map(|usage| (usage.bytes_reserved, usage.bytes_in_use))
    }

    /// The device's own description and its bus address. This opens the device, which takes memory on a card.
    pub fn details(&self) -> Details {
        backend::details(self)
    }
}

/// Logs the memory usage of each of these devices, if the backend reports it.
pub fn log_memory(devices: &[ComputeDevice]) {
    for device in devices.iter().filter(|device| !device.is_cpu()) {
        if let Some((reserved, in_use)) = device.reserved_memory() {
            let (reserved, in_use) = (bytes_in_words(reserved), bytes_in_words(in_use));
            info!("{}: {reserved} of memory reserved, {in_use} in use", device.name);
        }
    }
}

/// What a backend reports about a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// The device's own name.
    pub description: Option<String>,
    /// Its address on the bus, such as `0000:07:00.0`.
    pub pci_address: Option<String>,
    /// Why nothing is known about the device.
    pub error: Option<String>,
}

/// Why a backend has no devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The backend is not compiled in.
    #[error("not in this build (cargo feature `{feature}`){}", driver.map(|driver| format!("; this machine has {driver}")).unwrap_or_default())]
    NotBuilt {
        /// The cargo feature to build it with.
        feature: &'static str,
        /// The driver that it would use, if this machine has it.
        driver: Option<&'static str>,
    },
    /// The driver is missing.
    #[error("this machine does not have {driver}")]
    NoDriver {
        /// The driver.
        driver: &'static str,
    },
    /// There is a driver, but it shows no device.
    #[error("this machine has {driver}, but it shows no device")]
    NoDevice {
        /// The driver.
        driver: &'static str,
    },
    /// There is a device, but no toolkit to compile its kernels with.
    #[error("this machine does not have {toolkit}, which kernels are compiled with{}", in_words(.root.as_deref(), .header, .variable))]
    NoToolkit {
        /// The toolkit.
        toolkit: &'static str,
        /// The variable that names the directory of the toolkit.
        variable: &'static str,
        /// A file that the toolkit contains.
        header: &'static str,
        /// Where the toolkit should be, if any place was found.
        root: Option<PathBuf>,
    },
}

fn in_words(root: Option<&Path>, header: &str, variable: &str) -> String {
    match root {
        Some(root) => format!(": there is no {}", root.join(header).display()),
        None => format!("; {variable} can name its directory"),
    }
}

impl Inventory {
    /// Lists the devices of this machine. Opens cards only if two backends may reach the same one.
    pub fn of_this_machine() -> Self {
        let backends: Vec<BackendDevices> = BACKENDS.into_iter().map(backend_devices).collect();
        let cards = backend::distinct(backends.iter().map(|backend| cards_of(&backend.devices)).collect());
        Self { backends, cards }
    }

    /// Returns the CPU only, without asking any driver.
    pub fn of_the_processor() -> Self {
        let backend = BackendDevices { kind: DeviceKind::Cpu, devices: vec![ComputeDevice::cpu()], missing: None };
        Self { backends: vec![backend], cards: Vec::new() }
    }

    /// All devices, by backend.
    pub fn devices(&self) -> impl Iterator<Item = &ComputeDevice> {
        self.backends.iter().flat_map(|backend| &backend.devices)
    }

    /// The number of a device among the graphics cards.
    pub fn card_number(&self, device: &ComputeDevice) -> Option<usize> {
        self.cards.iter().position(|card| card.name == device.name)
    }

    /// The devices that a kind stands for.
    fn of_kind(&self, kind: DeviceKind) -> &[ComputeDevice] {
        if kind == DeviceKind::Gpu {
            return &self.cards;
        }
        let of_kind = self.backends.iter().find(|backend| backend.kind == kind);
        of_kind.map_or(&[], |backend| &backend.devices)
    }
}

fn backend_devices(kind: DeviceKind) -> BackendDevices {
    let (devices, missing) = match backend::enumerate(kind) {
        Some(devices) if !devices.is_empty() => match driver::missing_toolkit(kind) {
            None => (devices, None),
            missing => (Vec::new(), missing),
        },
        found => (Vec::new(), Some(driver::missing(kind, found.is_some()))),
    };
    BackendDevices { kind, devices, missing }
}

fn cards_of(devices: &[ComputeDevice]) -> Vec<ComputeDevice> {
    devices.iter().filter(|device| !device.is_cpu() && !device.is_software).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_its_processor() {
        let inventory = Inventory::of_this_machine();
        assert_eq!(inventory.devices().next().unwrap().name.to_string(), "cpu:0");
        for backend in &inventory.backends {
            assert_eq!(backend.devices.is_empty(), backend.missing.is_some(), "{backend:?}");
        }
    }

    #[test]
    fn what_is_missing_is_told_with_what_it_takes() {
        let none = Missing::NotBuilt { feature: "cuda", driver: None };
        assert_eq!(none.to_string(), "not in this build (cargo feature `cuda`)");
        let driver = "an NVIDIA driver";
        let one = Missing::NotBuilt { feature: "cuda", driver: Some(driver) };
        assert_eq!(one.to_string(), "not in this build (cargo feature `cuda`); this machine has an NVIDIA driver");
        assert_eq!(Missing::NoDriver { driver }.to_string(), "this machine does not have an NVIDIA driver");
        assert_eq!(
            Missing::NoDevice { driver }.to_string(),
            "this machine has an NVIDIA driver, but it shows no device"
        );
    }
}
