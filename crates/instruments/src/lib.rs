//! How a task is observed from outside: probes for its supervisor, and metrics for Prometheus.
//!
//! Instruments are counted where things happen and read when somebody asks, so that nothing waits for a reader. Names
//! follow Prometheus: the prefix `windlass_`, base units, and labels that do not grow with the length of a run.

mod exposition;
mod gpu;
mod memory;
mod probes;
mod ps;
mod reading;
mod usage;
mod usage_instruments;
mod worker;

pub use exposition::{Build, Instruments};
pub use gpu::{GpuUsage, card_memory};
pub use memory::{AvailableMemory, available_memory, total_memory};
pub use probes::Probes;
pub use prometheus;
pub use ps::{PsInstruments, PushFate};
pub use reading::{Readable, VALID, counter, gauge, seconds};
pub use usage::{NodeUsage, Usage, UsageMeter};
pub use worker::{JoinedSite, Site, Sites, StepMeasurement, WorkerInstruments};
