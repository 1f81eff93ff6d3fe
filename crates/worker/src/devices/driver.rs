//! What the machine itself tells of drivers, and the variables by which users hide devices from them.

use std::path::Path;

use windlass_core::device::DeviceKind;

use super::Missing;

/// Where drivers of Vulkan are listed.
const VULKAN_DRIVERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// A variable that hides devices. Drivers obey it by themselves: devices are numbered among those that it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Its name.
    pub variable: &'static str,
    /// What it says.
    pub value: String,
}

/// The variables that hide devices and are set.
pub fn masks(read: impl Fn(&str) -> Option<String>) -> Vec<Mask> {
    let set = VARIABLES.into_iter().filter_map(|variable| Some(Mask { variable, value: read(variable)? }));
    set.collect()
}

const VARIABLES: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "MESA_VK_DEVICE_SELECT",
];

/// Why a backend has no device here.
pub(super) fn missing(kind: DeviceKind, is_built: bool) -> Missing {
    let (driver, is_here) = driver(kind);
    match (is_built, is_here) {
        (false, _) => Missing::NotBuilt { feature: kind.name(), driver: is_here.then_some(driver) },
        (true, false) => Missing::NoDriver { driver },
        (true, true) => Missing::NoDevice { driver },
    }
}

/// What a backend needs, and whether there are traces of it.
fn driver(kind: DeviceKind) -> (&'static str, bool) {
    let is_there = |path: &str| Path::new(path).exists();
    match kind {
        DeviceKind::Cuda => ("an NVIDIA driver", ["/dev/nvidiactl", "/dev/dxg"].into_iter().any(is_there)),
        DeviceKind::Rocm => ("an AMD compute driver", is_there("/dev/kfd")),
        DeviceKind::Metal => ("Metal", cfg!(target_os = "macos")),
        _ => ("a Vulkan driver", has_vulkan()),
    }
}

fn has_vulkan() -> bool {
    let lists = |directory: &&str| {
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        files.map(|file| file.path()).any(|path| path.extension().is_some_and(|end| end == "json"))
    };
    VULKAN_DRIVERS.iter().any(lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_shown_as_they_are_set() {
        let set = |name: &str| (name == "CUDA_VISIBLE_DEVICES").then(|| "1,0".to_owned());
        assert_eq!(masks(set), [Mask { variable: "CUDA_VISIBLE_DEVICES", value: "1,0".to_owned() }]);
        assert_eq!(masks(|_| None), []);
    }
}
