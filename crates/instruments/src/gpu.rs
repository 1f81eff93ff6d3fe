//! What the GPUs of a host are used for, where NVIDIA's management library can be loaded.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

/// The usage of a GPU at the last measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// The driver's index of the GPU.
    pub index: u32,
    /// The name of the GPU.
    pub name: String,
    /// The share of the time in which it was busy, where that is known: of one that is divided (MIG) it is not.
    pub utilization: Option<f64>,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Total memory.
    pub memory_bytes: u64,
}

/// Measures GPUs, if there are any.
pub(crate) struct GpuMeter(Option<Nvml>);

impl GpuMeter {
    pub(crate) fn new() -> Self {
        Self(Nvml::init().ok())
    }

    pub(crate) fn measure(&self) -> Vec<GpuUsage> {
        let Some(nvml) = &self.0 else { return Vec::new() };
        let count = nvml.device_count().unwrap_or(0);
        (0..count).filter_map(|index| usage(nvml, index).ok()).collect()
    }
}

/// Returns the memory of the card at this PCI address, such as `0000:07:00.0`, as reported by NVIDIA's library, or by
/// Linux for an AMD card.
pub fn card_memory(pci_address: &str) -> Option<u64> {
    let nvidia = || {
        let nvml = Nvml::init().ok()?;
        let memory = nvml.device_by_pci_bus_id(pci_address).ok()?.memory_info().ok()?;
        Some(memory.total)
    };
    let amd = || {
        let file = format!("/sys/bus/pci/devices/{pci_address}/mem_info_vram_total");
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    nvidia().or_else(amd)
}

fn usage(nvml: &Nvml, index: u32) -> Result<GpuUsage, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let memory = device.memory_info()?;
    Ok(GpuUsage {
        index,
        name: device.name()?,
        utilization: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0),
        memory_used_bytes: memory.used,
        memory_bytes: memory.total,
    })
}
