//! The processor of this machine, as it is shown to users.

/// Its name, cores and widest vector instructions.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let name = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| name(&text));
    let name = name.unwrap_or_else(|| format!("an unnamed {} processor", std::env::consts::ARCH));
    format!("{name}, {cores} {}, {}", if cores == 1 { "core" } else { "cores" }, vectors())
}

/// The name that Linux reports. On Arm there is no name, only the numbers of the manufacturer and the part.
fn name(text: &str) -> Option<String> {
    let field = |wanted: &str| {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == wanted).map(|(_, value)| value)
    };
    let numbered = || Some(format!("Arm implementer {} part {}", field("CPU implementer")?, field("CPU part")?));
    field("model name").map(str::to_owned).or_else(numbered)
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> &'static str {
    if is_x86_feature_detected!("avx512f") {
        "AVX-512"
    } else if is_x86_feature_detected!("avx2") {
        "AVX2"
    } else {
        "SSE2"
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> &'static str {
    if cfg!(target_feature = "neon") { "NEON" } else { "no vectors known of" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_is_named() {
        let text =
            "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\n";
        assert_eq!(name(text).unwrap(), "AMD EPYC 9654");
        let text = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(name(text).unwrap(), "Arm implementer 0x41 part 0xd0c");
        assert_eq!(name("processor\t: 0\n"), None);
    }
}
