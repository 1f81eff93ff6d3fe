//! Which build of Windlass this is.

use std::sync::OnceLock;

use windlass_instruments::Build;

/// The version of the crate.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that it was built from; `unknown` outside of a repository.
pub(crate) const COMMIT: &str = env!("WINDLASS_COMMIT");
/// The cargo features that it was built with.
const FEATURES: &str = env!("WINDLASS_FEATURES");
/// The target that it was built for.
const TARGET: &str = env!("WINDLASS_TARGET");

pub(crate) fn build() -> Build {
    Build { version: VERSION.to_owned(), commit: COMMIT.to_owned() }
}

/// All details worth including in a bug report, preceded by `version`, which must be the same throughout a process.
pub(crate) fn long(version: &str) -> &'static str {
    static LONG: OnceLock<String> = OnceLock::new();
    LONG.get_or_init(|| describe(version))
}

fn describe(version: &str) -> String {
    let features = if FEATURES.is_empty() { "none" } else { FEATURES };
    format!(
        "{version}\ncommit     {COMMIT}\nfeatures   {features}\ntarget     {TARGET}\nCPU level  this build needs {}, \
         this machine has {}",
        level(compiled_level()),
        level(machine_level()),
    )
}

/// The microarchitecture level of x86-64; other processors have none, so their architecture is shown instead.
fn level(level: Option<u8>) -> String {
    level.map_or_else(|| std::env::consts::ARCH.to_owned(), |level| format!("x86-64-v{level}"))
}

/// The highest level whose features `$has` all reports, among those that Rust can detect.
#[cfg(target_arch = "x86_64")]
macro_rules! highest_level {
    ($has:ident) => {{
        let second = $has!("cmpxchg16b") && $has!("popcnt") && $has!("sse4.2") && $has!("ssse3");
        let third = $has!("avx2") && $has!("bmi1") && $has!("bmi2") && $has!("f16c") && $has!("fma");
        let third = third && $has!("lzcnt") && $has!("movbe");
        let fourth = $has!("avx512f") && $has!("avx512bw") && $has!("avx512cd");
        let fourth = fourth && $has!("avx512dq") && $has!("avx512vl");
        match (second, third, fourth) {
            (true, true, true) => 4,
            (true, true, false) => 3,
            (true, false, _) => 2,
            (false, ..) => 1,
        }
    }};
}

#[cfg(target_arch = "x86_64")]
fn compiled_level() -> Option<u8> {
    macro_rules! has {
        ($feature:tt) => {
            cfg!(target_feature = $feature)
        };
    }
    Some(highest_level!(has))
}

#[cfg(target_arch = "x86_64")]
fn machine_level() -> Option<u8> {
    macro_rules! has {
        ($feature:tt) => {
            std::arch::is_x86_feature_detected!($feature)
        };
    }
    Some(highest_level!(has))
}

#[cfg(not(target_arch = "x86_64"))]
fn compiled_level() -> Option<u8> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn machine_level() -> Option<u8> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_at_least_the_level_that_the_build_needs() {
        assert!(machine_level() >= compiled_level());
        assert_eq!(level(Some(3)), "x86-64-v3");
        assert_eq!(level(None), std::env::consts::ARCH);
    }
}
