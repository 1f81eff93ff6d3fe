//! What the machine itself tells of drivers and toolkits, and the variables by which users hide devices from them.

use std::path::{Path, PathBuf};

use windlass_core::device::DeviceKind;

use super::Missing;

/// Where drivers of Vulkan are listed.
const VULKAN_DRIVERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// Names the directory of the CUDA toolkit.
const CUDA_PATH: &str = "CUDA_PATH";
/// Where Burn looks for it otherwise, and a file by which it takes the last for one.
const CUDA_TOOLKITS: [&str; 3] = ["/usr/local/cuda", "/opt/cuda", "/usr"];
const CUDA_COMPILER: &str = "/usr/bin/nvcc";
/// One of the headers that kernels include. Images and packages for running compiled programs do not have it.
const CUDA_HEADER: &str = "include/cuda_fp16.h";

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

/// What a backend lacks to compile its kernels, though it has devices. Burn would panic in the first of them.
pub(super) fn missing_toolkit(kind: DeviceKind) -> Option<Missing> {
    let is_probed = kind == DeviceKind::Cuda && cfg!(target_os = "linux");
    is_probed.then(|| cuda_toolkit(std::env::var(CUDA_PATH).ok(), Path::exists).err()).flatten()
}

/// The directory in which Burn looks for the headers of CUDA, if they are there.
fn cuda_toolkit(given: Option<String>, exists: impl Fn(&Path) -> bool) -> Result<PathBuf, Missing> {
    let is_taken = |root: &&str| exists(Path::new(if *root == "/usr" { CUDA_COMPILER } else { *root }));
    let root = given.or_else(|| CUDA_TOOLKITS.iter().copied().find(is_taken).map(str::to_owned)).map(PathBuf::from);
    match root {
        Some(root) if exists(&root.join(CUDA_HEADER)) => Ok(root),
        root => Err(Missing::NoToolkit { toolkit: "the CUDA toolkit", variable: CUDA_PATH, header: CUDA_HEADER, root }),
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

    fn toolkit(given: Option<&str>, files: &[&str]) -> Result<PathBuf, String> {
        let found = cuda_toolkit(given.map(str::to_owned), |path| files.iter().any(|file| Path::new(file) == path));
        found.map_err(|missing| missing.to_string())
    }

    #[test]
    fn the_toolkit_is_where_burn_looks_for_it() {
        let first = ["/usr/local/cuda", "/usr/local/cuda/include/cuda_fp16.h", "/usr/include/cuda_fp16.h"];
        assert_eq!(toolkit(None, &first), Ok("/usr/local/cuda".into()));
        assert_eq!(toolkit(None, &["/usr/bin/nvcc", "/usr/include/cuda_fp16.h"]), Ok("/usr".into()));
        assert_eq!(toolkit(Some("/cuda"), &["/cuda/include/cuda_fp16.h"]), Ok("/cuda".into()));
    }

    #[test]
    fn a_driver_without_a_toolkit_is_told_of() {
        assert_eq!(
            toolkit(None, &["/usr/include/cuda_fp16.h"]).unwrap_err(),
            "this machine does not have the CUDA toolkit, which kernels are compiled with; CUDA_PATH can name its directory"
        );
        let of_an_image = toolkit(None, &["/usr/local/cuda"]).unwrap_err();
        assert!(
            of_an_image.ends_with("compiled with: there is no /usr/local/cuda/include/cuda_fp16.h"),
            "{of_an_image}"
        );
        // A variable that is wrong is not replaced by a guess, as Burn does not.
        let wrong = toolkit(Some("/nowhere"), &["/usr/local/cuda", "/usr/local/cuda/include/cuda_fp16.h"]).unwrap_err();
        assert!(wrong.contains("/nowhere/include/cuda_fp16.h"), "{wrong}");
    }

    #[test]
    fn masks_are_shown_as_they_are_set() {
        let set = |name: &str| (name == "CUDA_VISIBLE_DEVICES").then(|| "1,0".to_owned());
        assert_eq!(masks(set), [Mask { variable: "CUDA_VISIBLE_DEVICES", value: "1,0".to_owned() }]);
        assert_eq!(masks(|_| None), []);
    }
}
