//! Manifests that start a Windlass run elsewhere: on Kubernetes (plain, JobSet, TFJob, TrainJob), with Docker Compose or
//! under Slurm. One typed [`Request`] in, text out: [`render`].
//!
//! ```
//! use windlass_deploy::{Kind, Request, render};
//!
//! let mut request = Request::new(Kind::K8s, "digits".parse()?, vec!["mnist".to_owned()]);
//! request.workers = 4;
//! let manifest = render(&request)?;
//! assert!(manifest.contains("kind: Job"));
//! # Ok::<(), windlass_deploy::Error>(())
//! ```
//!
//! The crate must not talk to a cluster, nor read files or the environment: `kubectl apply -f -` and `sbatch` do that.

mod arguments;
mod command;
mod compose;
mod crd;
mod error;
mod guards;
mod indexed_job;
mod jobset;
mod limits;
mod metadata;
mod names;
mod placement;
mod plain;
mod pod;
mod quantity;
mod request;
mod slurm;
mod storage;
mod tfjob;
mod trainjob;
mod yaml;

pub use arguments::Arguments;
pub use error::Error;
pub use names::{Name, Namespace};
pub use quantity::Quantity;
pub use request::{Kind, Layout, Request, Warning};
pub use storage::Storage;

/// The port of every task in Kubernetes and Compose.
pub const PORT: u16 = 2222;

/// The manifest of a run, as YAML or as a shell script.
pub fn render(request: &Request) -> Result<String, Error> {
    request.check()?;
    match request.kind {
        Kind::K8s => plain::render(request),
        Kind::JobSet => jobset::render(request),
        Kind::TfJob => tfjob::render(request),
        Kind::TrainJob => trainjob::render(request),
        Kind::Compose => compose::render(request),
        Kind::Slurm => Ok(slurm::render(request)),
    }
}
