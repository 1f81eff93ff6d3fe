//! Tells the program which commit it is built from: by `WINDLASS_COMMIT` where there is no repository, as in a container,
//! else by asking git.

use std::path::Path;
use std::process::Command;

const VARIABLE: &str = "WINDLASS_COMMIT";

fn main() {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var(VARIABLE).ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(asked_of_git).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env={VARIABLE}={commit}");
}

/// The commit that is checked out. Asked again when that changes.
fn asked_of_git() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=10", "HEAD"])
}
