//! A custom model in a separate crate: the example is its `main.rs`, and this library its only dependency.
//!
//! The compiler is called as cargo would call it for such a crate, with the library that these tests were built with.
//! cargo itself would rebuild all crates of this workspace, since it treats a path that is seen from another workspace
//! as a different package, and also those dependencies that have more features here, for the tests: even with the
//! profiles, the lock file and the target directory of this workspace, that is about twenty crates and more than two
//! minutes on one core. By default, cargo therefore only resolves such a crate; the test that builds it is run with
//! `cargo test --test cli own_crate -- --ignored`, as `.ci/run` does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::docs;
use crate::process::{Invocation, Told};

/// A crate with a single file, compiled.
pub struct OwnCrate {
    program: PathBuf,
    _directory: TempDir,
}

impl OwnCrate {
    /// Builds the crate; `source` is a path within this package.
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

/// A copy of the example in a directory outside this workspace, with the `Cargo.toml` from docs/your-own-model.md. (The
/// profiles of the workspace are copied, too, so that dependencies that are already built can be reused.)
fn outside() -> TempDir {
    let (directory, library) = (TempDir::new().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let workspace = library.ancestors().nth(2).unwrap();
    let whole = fs::read_to_string(workspace.join("Cargo.toml")).unwrap();
    let profiles = &whole[whole.find("[profile.dev]").unwrap()..];
    let documented = docs::block("docs/your-own-model.md", "toml");
    let manifest = documented.replace("../windlass/crates/cli", &library.display().to_string());
    assert_ne!(manifest, documented, "it names the path of the library");
    fs::create_dir(directory.path().join("src")).unwrap();
    fs::write(directory.path().join("Cargo.toml"), format!("{manifest}\n{profiles}")).unwrap();
    fs::copy(workspace.join("Cargo.lock"), directory.path().join("Cargo.lock")).unwrap();
    fs::copy(library.join("examples/own_model.rs"), directory.path().join("src/main.rs")).unwrap();
    directory
}

fn cargo(directory: &TempDir, words: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let mut command = Command::new("cargo");
    command.current_dir(directory.path()).env("CARGO_TARGET_DIR", target).args(words.split_whitespace());
    let output = command.arg("--offline").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_crate_outside_the_workspace_needs_no_other_dependency() {
    let tree = cargo(&outside(), "tree --depth 1 --prefix none");
    let packages: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(packages, ["spirals", "windlass"], "{tree}");
}

#[test]
#[ignore = "cargo builds this library again, which takes minutes"]
fn a_crate_outside_the_workspace_is_built_by_cargo_and_runs() {
    let directory = outside();
    cargo(&directory, "build");
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("spirals");
    let trained = Invocation::new(&program, "train spirals --steps 100 --format json").run().succeeded();
    assert_eq!(trained.event("summary")["global_step"], 100);
}

#[test]
fn the_example_is_a_whole_program_in_a_crate_of_its_own() {
    let program = OwnCrate::build("examples/own_model.rs", "spirals");
    let launched = program.run("launch spirals --workers 2 --steps 600 --turns 0.5 --format json --run-dir run");
    let summary = launched.succeeded().event("summary");
    assert_eq!((&summary["model"], &summary["global_step"]), (&"spirals".into(), &600.into()));
    assert!(summary["metrics"]["training_accuracy"].as_f64() > Some(0.9), "{summary:#}");
    let help = program.run("--help").succeeded().stdout;
    assert!(help.contains("Usage: spirals [OPTIONS] <COMMAND>"), "{help}");
    let commands = help.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let commands: Vec<&str> = commands.filter(|word| !word.starts_with('-')).collect();
    let expected = [
        "train",
        "launch",
        "eval",
        "join",
        "checkpoint",
        "compare",
        "runs",
        "status",
        "top",
        "devices",
        "manifest",
        "health",
        "completions",
        "man",
        "help",
    ];
    assert_eq!(commands, expected, "{help}");
    assert_eq!(program.run("-V").stdout, "spirals with windlass 0.1.0\n");
    let completions = program.run("completions bash").succeeded().stdout;
    assert!(completions.contains("_spirals()") && !completions.contains("seq2seq"), "{completions}");
}
