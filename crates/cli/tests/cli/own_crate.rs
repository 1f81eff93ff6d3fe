//! A model of one's own in a crate of one's own: the example is its `main.rs`, and this library its only dependency.
//!
//! The compiler is called as cargo calls it for such a crate, with the library that these tests were built with. cargo
//! itself would build the whole library again, since to it a path seen from another workspace is another package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::{Invocation, Told};

/// A crate of one file, built.
pub struct OwnCrate {
    program: PathBuf,
    _directory: TempDir,
}

impl OwnCrate {
    /// `source` is a path within this package.
    pub fn build(source: &str, name: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let program = directory.path().join(name);
        let library = Path::new(env!("CARGO_MANIFEST_DIR"));
        let test = std::env::current_exe().unwrap();
        let dependencies = test.parent().unwrap();
        let output = Command::new("rustc")
            .current_dir(library)
            .args(["--edition=2024", "--deny=warnings", "-Copt-level=1"])
            .arg(format!("--crate-name={name}"))
            .arg(library.join(source))
            .arg(format!("--extern=windlass={}", library_in(dependencies).display()))
            .arg(format!("-Ldependency={}", dependencies.display()))
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { program, _directory: directory }
    }

    pub fn path(&self) -> &Path {
        &self.program
    }

    fn run(&self, words: &str) -> Told {
        Invocation::new(&self.program, words).run()
    }
}

/// The library that was built last: that of these tests, or one of the same sources.
fn library_in(directory: &Path) -> PathBuf {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let libraries = files.filter(|file| {
        let name = file.file_name().into_string().unwrap_or_default();
        name.starts_with("libwindlass-") && name.ends_with(".rlib")
    });
    libraries.max_by_key(|file| file.metadata().unwrap().modified().unwrap()).expect("the library is built").path()
}

#[test]
fn the_example_is_a_whole_program_in_a_crate_of_its_own() {
    let program = OwnCrate::build("examples/own_model.rs", "spirals");
    let launched = program.run("launch spirals --workers 2 --steps 600 --turns 0.5 --format json --run-dir run");
    let summary = launched.succeeded().event("summary");
    assert_eq!((&summary["model"], &summary["global_step"]), (&"spirals".into(), &600.into()));
    assert!(summary["metrics"]["training_accuracy"].as_f64() > Some(0.9), "{summary:#}");
    let help = program.run("--help").succeeded().stdout;
    assert!(help.contains("Usage: spirals <COMMAND>"), "{help}");
    let commands = help.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let commands: Vec<&str> = commands.filter(|word| !word.starts_with('-')).collect();
    assert_eq!(commands, ["train", "launch", "eval", "checkpoint", "help"], "{help}");
    assert_eq!(program.run("--version").stdout, "spirals with windlass 0.1.0\n");
}
