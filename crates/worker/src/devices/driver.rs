//! What the machine itself shows of drivers and toolkits, and the variables by which users hide devices.

use std::path::{Path, PathBuf};

use windlass_core::device::DeviceKind;

use super::Missing;

/// The directories where Vulkan drivers are listed.
const VULKAN_DRIVERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// The variable that names the directory of the CUDA toolkit.
const CUDA_PATH: &str = "CUDA_PATH";
/// The directories where Burn looks for the toolkit otherwise. The last one counts only if the compiler exists.
const CUDA_TOOLKITS: [&str; 3] = ["/usr/local/cuda", "/opt/cuda", "/usr"];
const CUDA_COMPILER: &str = "/usr/bin/nvcc";
/// One of the headers that kernels include. Runtime-only images and packages do not have it.
const CUDA_HEADER: &str = "include/cuda_fp16.h";

/// A variable that hides devices. Drivers apply it themselves: only the visible devices are numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// The name of the variable.
    pub variable: &'static str,
    /// The value of the variable.
    pub value: String,
}

/// Returns the variables that hide devices and are set.
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

/// Returns why a backend has no device on this machine.
pub(super) fn missing(kind: DeviceKind, is_built: bool) -> Missing {
    let (driver, is_here) = driver(kind);
    match (is_built, is_here) {
        (false, _) => Missing::NotBuilt { feature: kind.name(), driver: is_here.then_some(driver) },
        (true, false) => Missing::NoDriver { driver },
        (true, true) => Missing::NoDevice { driver },
    }
}

/// The driver that a backend needs, and whether there are signs of it.
fn driver(kind: DeviceKind) -> (&'static str, bool) {
    let is_there = |path: &str| Path::new(path).exists();
    match kind {
        DeviceKind::Cuda => ("an NVIDIA driver", ["/dev/nvidiactl", "/dev/dxg"].into_iter().any(is_there)),
        DeviceKind::Rocm => ("an AMD compute driver", is_there("/dev/kfd")),
        DeviceKind::Metal => ("Metal", cfg!(target_os = "macos")),
        _ => ("a Vulkan driver", has_vulkan()),
    }
}

/// The toolkit that a backend needs to compile its kernels but lacks, although it has devices. Burn would panic in the
/// first kernel.
pub(super) fn missing_toolkit(kind: DeviceKind) -> Option<Missing> {
    let is_probed = kind == DeviceKind::Cuda && cfg!(target_os = "linux");
    is_probed.then(|| cuda_toolkit(std::env::var(CUDA_PATH).ok(), Path::exists).err()).flatten()
}

/// Returns the directory in which Burn looks for the CUDA headers, if they are there.
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
        // Like Burn, this does not replace a wrong variable with a guess.
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
