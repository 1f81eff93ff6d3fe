//! The layouts that are compared: each a run of this same program, as a user would start it.

use std::process::Stdio;

use windlass_worker::summary::Summary;

use super::own_program;
use crate::failure::Failure;

/// Samples per step.
pub(super) const BATCH: usize = 100;

/// A way to distribute a run over processes.
pub(super) struct Layout {
    pub(super) name: &'static str,
    pub(super) arguments: &'static [&'static str],
}

/// The measurements of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) step_ms: f64,
    pub(super) samples_per_second: f64,
    pub(super) first_step_seconds: f64,
}

/// The single process comes first: the others are compared with it.
pub(super) const LAYOUTS: &[Layout] = &[
    Layout { name: "single process", arguments: &["train", "mnist"] },
    Layout { name: "1 worker, --colocate", arguments: &["launch", "mnist", "--workers", "1", "--colocate"] },
    Layout { name: "1 ps, 1 worker", arguments: &["launch", "mnist", "--ps", "1", "--workers", "1"] },
    Layout { name: "2 ps, 1 worker", arguments: &["launch", "mnist", "--ps", "2", "--workers", "1"] },
    Layout { name: "1 ps, 2 workers, async", arguments: &["launch", "mnist", "--ps", "1", "--workers", "2"] },
    Layout { name: "2 ps, 2 workers, async", arguments: &["launch", "mnist", "--ps", "2", "--workers", "2"] },
    Layout {
        name: "2 ps, half each, 2 workers, async",
        arguments: &["launch", "mnist", "--ps", "2", "--workers", "2", "--min-shard-bytes", "0"],
    },
    Layout {
        name: "1 ps, 2 workers, sync",
        arguments: &["launch", "mnist", "--ps", "1", "--workers", "2", "--mode", "sync"],
    },
    Layout {
        name: "2 ps, 2 workers, sync",
        arguments: &["launch", "mnist", "--ps", "2", "--workers", "2", "--mode", "sync"],
    },
    Layout {
        name: "2 ps, half each, 2 workers, sync",
        arguments: &["launch", "mnist", "--ps", "2", "--workers", "2", "--mode", "sync", "--min-shard-bytes", "0"],
    },
    Layout { name: "2 workers, --colocate", arguments: &["launch", "mnist", "--workers", "2", "--colocate"] },
];

impl Layout {
    /// Runs the layout once.
    pub(super) fn measure(&self, steps: u64) -> Result<Measured, Failure> {
        self.measure_with(steps, BATCH)
    }

    /// Runs the layout once, with batches of this size.
    pub(super) fn measure_with(&self, steps: u64, batch: usize) -> Result<Measured, Failure> {
        let directory = std::env::temp_dir().join(format!("windlass-bench-{}", std::process::id()));
        let output = own_program()?
            .args(self.arguments)
            .args(["--variant", "sigmoid", "--evaluate", "end", "--steps", &steps.to_string()])
            .args(["--batch-size", &batch.to_string()])
            .arg("--run-dir")
            .arg(&directory)
            .stdin(Stdio::null())
            .output()
            .map_err(Failure::internal)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Failure::internal(format!("{} failed: {said}", self.name)));
        }
        let text = std::fs::read_to_string(directory.join("summary.json")).map_err(Failure::internal)?;
        let summary: Summary = serde_json::from_str(&text).map_err(Failure::internal)?;
        let _ = std::fs::remove_dir_all(&directory);
        Ok(Measured {
            step_ms: summary.step_ms.p50,
            samples_per_second: summary.samples_per_second,
            first_step_seconds: summary.first_step_seconds,
        })
    }
}
