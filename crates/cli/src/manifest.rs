//! `windlass manifest KIND -- MODEL FLAGS`: prints a manifest that starts a run on Kubernetes, with Compose or under
//! Slurm.

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use windlass_deploy::{Arguments, Error, Request, render};

use crate::failure::Failure;
use crate::output;
use crate::terminal::Terminal;

/// Print a manifest or script that starts a run on Kubernetes, Compose or Slurm
#[derive(Debug, Parser)]
#[command(after_help = "Pipe the output to `kubectl apply -f -`, `kubectl delete -f -` or `sbatch`.")]
struct ManifestCommand {
    #[command(flatten)]
    arguments: Arguments,
}

pub(crate) fn command() -> Command {
    ManifestCommand::command().name("manifest")
}

/// Prints the manifest of a run. Its model and flags must first pass `check`, both as the user gives them and with the
/// manifest's additions; otherwise nothing is printed. `check` receives the number of workers, and whether the run will
/// have a directory.
pub(crate) fn run(
    matches: &ArgMatches,
    check: impl Fn(&[String], u32, bool) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ManifestCommand { arguments } = ManifestCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    let request = Request::try_from(arguments).map_err(unusable)?;
    let manifest = render(&request).map_err(unusable)?;
    check(&request.command, request.workers, request.has_run_dir())?;
    check(&request.worker_command(), request.workers, request.has_run_dir()).map_err(|failure| Failure {
        message: format!("the workers of this manifest would be refused: {}", failure.message),
        ..failure
    })?;
    for warning in request.warnings(HAS_GPU_BACKEND) {
        Terminal::default().print_error(&format!("warning: {warning}"));
    }
    output::print_line(manifest.trim_end());
    Ok(())
}

/// Whether this build can compute on GPUs.
const HAS_GPU_BACKEND: bool =
    cfg!(any(feature = "cuda", feature = "rocm", feature = "vulkan", feature = "metal", feature = "wgpu"));

fn unusable(error: Error) -> Failure {
    Failure::usage(&error).with_hint(error.hint())
}
