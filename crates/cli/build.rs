//! Tells the program what it is built from: the commit, by `WINDLASS_COMMIT` where there is no repository, as in a
//! container, else by asking git; the features; and the target.

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

/// The commit that is checked out. Asked again when that changes.
fn asked_of_git() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    // Sources that were unpacked inside another repository are not of its commit.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=10", "HEAD"])
}

/// The features that are on, as cargo tells build scripts.
fn features() -> String {
    let variables = std::env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_owned()));
    let names = variables.map(|name| name.to_lowercase().replace('_', "-"));
    let mut names: Vec<String> = names.filter(|name| name != "default").collect();
    names.sort();
    names.join(", ")
}
