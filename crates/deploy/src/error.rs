//! Everything that can be wrong with a request, and what to do about it. Only texts and hints are here: each check is
//! next to the value it checks.

use crate::Kind;

/// A request that cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A name that is not a DNS label of RFC 1035.
    #[error("name {name:?}: {problem}")]
    Name {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A namespace that is not a DNS label of RFC 1123.
    #[error("namespace {namespace:?}: {problem}")]
    Namespace {
        /// The namespace as given.
        namespace: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The name of another object that is not a DNS subdomain.
    #[error("{what} {name:?}: {problem}")]
    Object {
        /// The kind of object or field that it names.
        what: &'static str,
        /// The name as given.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A name that is valid by itself, but too long with what controllers append to it.
    #[error(
        "name {name:?} has {length} characters, expected at most {longest} for {kind}: {what} would be {derived:?}"
    )]
    NameTooLong {
        /// The name as given.
        name: String,
        /// Its length.
        length: usize,
        /// The longest that fits.
        longest: usize,
        /// The kind of manifest.
        kind: Kind,
        /// The kind of object that has the derived name.
        what: &'static str,
        /// The name that does not fit.
        derived: String,
    },
    /// A text that is not an amount of a resource.
    #[error("quantity {text:?}: {problem}")]
    Quantity {
        /// The text as given.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A text that does not name a place to keep runs.
    #[error("storage {text:?}: {problem}")]
    Storage {
        /// The text as given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A kind of storage that this kind of manifest does not support.
    #[error("storage {storage:?} cannot be used with {kind}")]
    StorageFor {
        /// The storage as given.
        storage: String,
        /// The kind of manifest.
        kind: Kind,
    },
    /// A run without workers.
    #[error("--workers is 0, expected at least 1")]
    NoWorkers,
    /// More tasks than the host lists can hold.
    #[error("{tasks} tasks, expected at most {most}")]
    TooManyTasks {
        /// The requested number of tasks.
        tasks: u64,
        /// The highest number of tasks.
        most: u32,
    },
    /// A cluster-wide resource whose name would not contain a namespace.
    #[error("no --namespace is given, and trainjob needs it: the name of its ClusterTrainingRuntime contains it")]
    NoNamespace,
    /// No model to train.
    #[error("no model is given after --")]
    NoModel,
    /// A flag of the run that the manifest sets itself, or that its restarts rule out.
    #[error("{flag} is given after --, but the manifest {}", reserved_because(.flag))]
    ReservedFlag {
        /// The flag as given.
        flag: String,
    },
    /// A number of replicas of the network that differs from the number of GPUs, which a manifest cannot arrange by
    /// itself.
    #[error("--towers is {towers}, but --gpus gives each worker {gpus}")]
    Towers {
        /// Replicas in each worker.
        towers: u32,
        /// GPUs for each worker.
        gpus: u32,
    },
    /// An invalid value of a flag that determines how long a task gets to stop.
    #[error("{flag} is {value:?}, expected a number of seconds above zero and up to {most}")]
    Seconds {
        /// The flag.
        flag: &'static str,
        /// Its value as given.
        value: String,
        /// The highest value.
        most: u32,
    },
    /// A text that cannot be part of a script or a manifest.
    #[error("{what} contains a control character: {text:?}")]
    ControlCharacter {
        /// What the text is.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// An invalid image.
    #[error("image {image:?}: {problem}")]
    Image {
        /// The image as given.
        image: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The document could not be serialized. This does not depend on the request.
    #[error("cannot write the manifest: {0}")]
    Yaml(String),
}

const RESUMES: &str = "leave --resume out: a run resumes from its own checkpoints, if it has any; to start from scratch, choose another --name";

fn reserved_because(flag: &str) -> &'static str {
    match flag {
        "--resume" | "--take-over" | "--restarted" => "would give it to every task that is replaced",
        "--bind" | "--cluster" => "decides where tasks listen and find each other",
        _ => "sets it",
    }
}

impl Error {
    /// The next step, where there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::Name { .. } => "use lower-case letters, digits and hyphens, beginning with a letter, as in digits-1",
            Error::Namespace { .. } => "use lower-case letters, digits and hyphens, as in team-a",
            Error::Object { .. } => "use lower-case letters, digits, hyphens and dots, as in shared-runs",
            Error::NameTooLong { longest, .. } => {
                return Some(format!("choose a --name of at most {longest} characters"));
            }
            Error::Quantity { .. } => "use a number with a suffix of Kubernetes, as in 500m, 2, 1.5, 512Mi or 4Gi",
            Error::Storage { .. } => {
                "use pvc:NAME, nfs:SERVER:/PATH, file:/PATH, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
            }
            Error::StorageFor { kind: Kind::Slurm, .. } => {
                "nodes of a Slurm cluster share a file system: use file:/PATH, or s3://, gs:// or az://"
            }
            Error::StorageFor { .. } => "use pvc:NAME, nfs:SERVER:/PATH, or s3://, gs:// or az://",
            Error::NoWorkers => "give --workers 1 or more",
            Error::TooManyTasks { .. } => "ask for fewer ps and workers, with more CPUs each",
            Error::NoNamespace => "give the namespace that the run belongs to, as in --namespace team-a",
            Error::NoModel => "name the model and its flags, as in -- mnist --steps 1000",
            Error::ReservedFlag { flag } => {
                return Some(match flag.as_str() {
                    "--run-dir" | "--checkpoint-dir" => format!("leave {flag} out, and say where with --storage"),
                    "--resume" => RESUMES.to_owned(),
                    "--colocate" => "leave --colocate out, and use --ps 0".to_owned(),
                    _ => format!("leave {flag} out"),
                });
            }
            Error::Towers { .. } => {
                "omit --towers for a replica of the network on each GPU, or name what to compute on with --devices"
            }
            Error::Seconds { .. } => "such as 30",
            Error::ControlCharacter { .. } => "remove it",
            Error::Image { .. } => "such as registry.example.org/windlass:1.0",
            Error::Yaml(_) => return None,
        };
        Some(hint.to_owned())
    }
}
