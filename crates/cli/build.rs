//! Tells the program what it is built from: the features, the target, and the commit, which comes from
//! `WINDLASS_COMMIT` where there is no repository, as in a container, and otherwise from git.

use std::path::Path;
use std::process::Command;

const VARIABLE: &str = "WINDLASS_COMMIT";

fn main() {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var(VARIABLE).ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(asked_of_git).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env={VARIABLE}={commit}");
    println!("cargo:rustc-env=WINDLASS_FEATURES={}", features());
    println!("cargo:rustc-env=WINDLASS_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}

/// The commit that is checked out. Cargo reruns this script when the commit changes.
fn asked_of_git() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    // Sources that were unpacked inside another repository do not belong to its commit.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=10", "HEAD"])
}

/// The enabled features, as cargo passes them to build scripts.
fn features() -> String {
    let variables = std::env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_owned()));
    let names = variables.map(|name| name.to_lowercase().replace('_', "-"));
    let mut names: Vec<String> = names.filter(|name| name != "default").collect();
    names.sort();
    names.join(", ")
}
