//! How a model is to be divided, and why it cannot be.

use burn::tensor::Device;

use super::trace::Trace;
use crate::replica::local::ReplicaError;
use crate::stages::StagesError;

/// How a model is divided.
pub struct PlacedConfig {
    /// The client's device and its name: what is not placed elsewhere is computed there, and the whole network is scored
    /// there.
    pub client: (String, Device),
    /// Stages and where they are computed. Several places take the micro-batches of their stage in turn.
    pub places: Vec<(String, Vec<Place>)>,
    /// In how many parts each batch goes through the stages.
    pub micro_batches: usize,
    /// Threads of this process, shared out among its lanes on the CPU.
    pub threads: usize,
    /// The run's seed.
    pub seed: u64,
    /// Where the first steps are traced, if they are.
    pub trace: Option<Trace>,
}

impl PlacedConfig {
    /// Whether every device of a stage has something to do, as far as that is known without the model.
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

/// Where stages are computed. Places of the same name are the same lane.
#[derive(Debug, Clone)]
pub struct Place {
    /// What it is called.
    pub name: String,
    /// What computes there.
    pub at: PlaceAt,
}

/// What computes at a place.
#[derive(Debug, Clone)]
pub enum PlaceAt {
    /// A device of this process.
    Here(Device),
    /// A joined worker, by its number, on a device of its own.
    Worker(usize, Option<String>),
}

/// Why a model cannot be divided so.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The model does not say how.
    #[error("--place: the model {model} declares no stages, so it cannot be divided")]
    Whole {
        /// Which one.
        model: &'static str,
    },
    /// What the model says is not right.
    #[error("--place: {0}")]
    Stages(#[from] StagesError),
    /// The user names a stage that it does not have.
    #[error("--place: {model} has no stage {stage:?}")]
    UnknownStage {
        /// The model.
        model: &'static str,
        /// What was named.
        stage: String,
        /// What there is.
        there_are: Vec<String>,
    },
    /// A stage is put on the same device more than once.
    #[error("--place puts {stage} on {device} twice")]
    Twice {
        /// The stage.
        stage: String,
        /// The device.
        device: String,
        /// Whether that is a joined worker.
        is_joined: bool,
    },
    /// A stage has devices that no part of a batch would reach.
    #[error("--place puts {stage} on {devices} devices, but a batch goes through {}", pieces(*micro_batches))]
    TooFewParts {
        /// The stage.
        stage: String,
        /// How many it has.
        devices: usize,
        /// In how many parts a batch goes through.
        micro_batches: usize,
    },
    /// Its parameters cannot be trained, wherever they are.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// Threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl PlaceError {
    /// What to do instead.
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
