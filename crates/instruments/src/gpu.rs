//! What the GPUs of a host are used for, where NVIDIA's management library can be loaded.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// A GPU, as of the last measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuUsage {
    /// Which one it is, by the driver's count.
    pub index: u32,
    /// What it is called.
    pub name: String,
    /// The share of the time in which it was busy.
    pub utilization: f64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Memory that it has.
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

fn usage(nvml: &Nvml, index: u32) -> Result<GpuUsage, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let memory = device.memory_info()?;
    Ok(GpuUsage {
        index,
        name: device.name()?,
        utilization: f64::from(device.utilization_rates()?.gpu) / 100.0,
        memory_used_bytes: memory.used,
        memory_bytes: memory.total,
    })
}
