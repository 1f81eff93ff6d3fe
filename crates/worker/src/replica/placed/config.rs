//! How a model is divided among devices, and why it cannot be.

use burn::tensor::Device;

use super::trace::Trace;
use crate::replica::local::ReplicaError;
use crate::stages::StagesError;

/// How a model is divided.
pub struct PlacedConfig {
    /// The client's device and its name: what is not placed elsewhere is computed there, and the whole network is
    /// scored there.
    pub client: (String, Device),
    /// Stages and where they are computed. The places of a stage take its micro-batches in turn.
    pub places: Vec<(String, Vec<Place>)>,
    /// The number of micro-batches that each batch is split into.
    pub micro_batches: usize,
    /// Threads of this process, divided among its lanes on the CPU.
    pub threads: usize,
    /// The run's seed.
    pub seed: u64,
    /// Where the first steps are traced, if tracing is on.
    pub trace: Option<Trace>,
}

impl PlacedConfig {
    /// Checks that every device of a stage has something to do, as far as that can be known without the model.
    pub fn check(places: &[(String, Vec<Place>)], micro_batches: usize) -> Result<(), PlaceError> {
        for (stage, places) in places {
            if let Some(twice) = (1..places.len()).find(|at| places[..*at].iter().any(|it| it.name == places[*at].name))
            {
                let Place { name, at } = &places[twice];
                let is_joined = matches!(at, PlaceAt::Worker(..));
                return Err(PlaceError::Twice { stage: stage.clone(), device: name.clone(), is_joined });
            }
            if places.len() > micro_batches {
                return Err(PlaceError::TooFewParts { stage: stage.clone(), devices: places.len(), micro_batches });
            }
        }
        Ok(())
    }
}

/// Where a stage is computed. Places with the same name share a lane.
#[derive(Debug, Clone)]
pub struct Place {
    /// The name.
    pub name: String,
    /// The device or worker.
    pub at: PlaceAt,
}

/// The device or worker of a place.
#[derive(Debug, Clone)]
pub enum PlaceAt {
    /// A device of this process.
    Here(Device),
    /// A joined worker, by its number, on the named device of its own or its default one.
    Worker(usize, Option<String>),
}

/// Why a model cannot be divided as requested.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The model declares no stages.
    #[error("--place: the model {model} declares no stages, so it cannot be divided")]
    Whole {
        /// The model.
        model: &'static str,
    },
    /// The stages that the model declares are invalid.
    #[error("--place: {0}")]
    Stages(#[from] StagesError),
    /// The user named a stage that the model does not have.
    #[error("--place: {model} has no stage {stage:?}")]
    UnknownStage {
        /// The model.
        model: &'static str,
        /// The stage that was named.
        stage: String,
        /// The stages of the model.
        there_are: Vec<String>,
    },
    /// A stage is put on the same device more than once.
    #[error("--place puts {stage} on {device} twice")]
    Twice {
        /// The stage.
        stage: String,
        /// The device.
        device: String,
        /// Whether the device is a joined worker.
        is_joined: bool,
    },
    /// A stage has more devices than a batch has parts, so some would be idle.
    #[error("--place puts {stage} on {devices} devices, but a batch goes through {}", pieces(*micro_batches))]
    TooFewParts {
        /// The stage.
        stage: String,
        /// The number of its devices.
        devices: usize,
        /// The number of micro-batches of a batch.
        micro_batches: usize,
    },
    /// The model's parameters cannot be trained, wherever they are.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// Threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl PlaceError {
    /// Returns what to do instead.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Whole { .. } => Some("--towers and a cluster divide batches instead of models; see docs/placement.md for how a model declares stages".to_owned()),
            Self::UnknownStage { there_are, .. } => Some(format!("its stages are {}", there_are.join(", "))),
            Self::Twice { is_joined: true, .. } => {
                Some("a joined worker computes a stage on one of its devices".to_owned())
            }
            Self::TooFewParts { devices, .. } => {
                Some(format!("devices of a stage take micro-batches in turn: use --microbatches {devices}"))
            }
            Self::Twice { .. } | Self::Stages(_) | Self::Replica(_) | Self::Threads(_) => None,
        }
    }
}

fn pieces(micro_batches: usize) -> String {
    match micro_batches {
        1 => "in one piece".to_owned(),
        parts => format!("in only {parts} parts"),
    }
}
