//! Burn's devices by backend: the only place that knows which backends are compiled in.

#[cfg(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu"))]
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::DeviceType;
use windlass_core::device::DeviceKind;

use super::{ComputeDevice, Details};

/// Burn's name for a backend, if it is compiled in.
fn device_type(kind: DeviceKind) -> Option<DeviceType> {
    match kind {
        DeviceKind::Cpu => Some(DeviceType::Flex),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => Some(DeviceType::Cuda),
        #[cfg(feature = "rocm")]
        DeviceKind::Rocm => Some(DeviceType::Rocm),
        #[cfg(feature = "vulkan")]
        DeviceKind::Vulkan => Some(DeviceType::Vulkan),
        #[cfg(feature = "metal")]
        DeviceKind::Metal => Some(DeviceType::Metal),
        #[cfg(feature = "wgpu")]
        DeviceKind::Wgpu => Some(DeviceType::Wgpu),
        _ => None,
    }
}

/// The devices of a backend; `None` if it is not compiled in.
pub(super) fn enumerate(kind: DeviceKind) -> Option<Vec<ComputeDevice>> {
    let device_type = device_type(kind)?;
    if kind == DeviceKind::Cpu {
        return Some(vec![ComputeDevice::cpu()]);
    }
    Some(graphics(kind, device_type))
}

#[cfg(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu"))]
fn graphics(kind: DeviceKind, device_type: DeviceType) -> Vec<ComputeDevice> {
    // Drivers are third-party code: one that panics counts as having no devices.
    let found = catch_unwind(|| burn::tensor::Device::enumerate(device_type).into_vec()).unwrap_or_default();
    let named = |(index, device)| ComputeDevice {
        name: windlass_core::device::LocalName::new(kind, index),
        is_software: is_software(kind, &device),
        device,
    };
    (0..).zip(found).map(named).collect()
}

#[cfg(not(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu")))]
fn graphics(_: DeviceKind, _: DeviceType) -> Vec<ComputeDevice> {
    Vec::new()
}

/// Whether a graphics driver computes on the CPU, as Mesa's lavapipe does.
#[cfg(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu"))]
fn is_software(kind: DeviceKind, device: &burn::tensor::Device) -> bool {
    match kind {
        #[cfg(feature = "vulkan")]
        DeviceKind::Vulkan => *device == burn::tensor::Device::vulkan(burn::tensor::DeviceKind::Cpu),
        #[cfg(feature = "metal")]
        DeviceKind::Metal => *device == burn::tensor::Device::metal(burn::tensor::DeviceKind::Cpu),
        #[cfg(feature = "wgpu")]
        DeviceKind::Wgpu => *device == burn::tensor::Device::wgpu(burn::tensor::DeviceKind::Cpu),
        _ => {
            let _ = device;
            false
        }
    }
}

/// What a device reports about itself.
#[cfg(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu"))]
pub(super) fn details(device: &ComputeDevice) -> Details {
    if device.is_cpu() {
        return Details::default();
    }
    match catch_unwind(AssertUnwindSafe(|| device.device.identity())) {
        Ok(Some(identity)) => Details {
            description: Some(identity.name),
            pci_address: identity.physical.and_then(|card| card.pci_address).map(|address| address.to_string()),
            error: None,
        },
        Ok(None) => Details::default(),
        Err(_) => Details { error: Some("it cannot be opened".to_owned()), ..Details::default() },
    }
}

#[cfg(not(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu")))]
pub(super) fn details(_: &ComputeDevice) -> Details {
    Details::default()
}

/// The cards of several backends, without duplicates.
#[cfg(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu"))]
pub(super) fn distinct(backends: Vec<Vec<ComputeDevice>>) -> Vec<ComputeDevice> {
    if backends.iter().filter(|cards| !cards.is_empty()).count() < 2 {
        return backends.into_iter().flatten().collect();
    }
    let mut known: Vec<(ComputeDevice, Option<burn::tensor::PhysicalDevice>)> = Vec::new();
    for card in backends.into_iter().flatten() {
        let physical = catch_unwind(AssertUnwindSafe(|| card.device.identity())).ok().flatten();
        let physical = physical.and_then(|identity| identity.physical);
        let is_same = |other: &Option<burn::tensor::PhysicalDevice>| match (other, &physical) {
            (Some(one), Some(other)) => one.is_same_card(other),
            _ => false,
        };
        if !known.iter().any(|(_, other)| is_same(other)) {
            known.push((card, physical));
        }
    }
    known.into_iter().map(|(card, _)| card).collect()
}

#[cfg(not(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu")))]
pub(super) fn distinct(backends: Vec<Vec<ComputeDevice>>) -> Vec<ComputeDevice> {
    backends.into_iter().flatten().collect()
}
