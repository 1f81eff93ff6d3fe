//! The request for a manifest: one run, wherever it is to be started. Checks conditions that involve several values.

use std::fmt;

use clap::ValueEnum;
use windlass_core::cluster::{Job, TaskId};

use crate::{Error, Name, Namespace, Quantity, Storage, command, limits};

/// The least memory that a task needs.
const LEAST_MEBIBYTES: u64 = 64;
/// With more tasks than this, the host lists would not fit on a command line.
const MOST_TASKS: u32 = 1000;

/// The kind of manifest, which says what starts the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Kubernetes without anything installed: Indexed Jobs and headless Services
    K8s,
    /// A JobSet (jobset.x-k8s.io/v1alpha2)
    #[value(name = "jobset")]
    JobSet,
    /// A TFJob of Kubeflow's training operator (kubeflow.org/v1)
    #[value(name = "tfjob")]
    TfJob,
    /// A TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1), with its runtime
    #[value(name = "trainjob")]
    TrainJob,
    /// Docker Compose, on one machine
    Compose,
    /// A batch script for Slurm
    Slurm,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] = [Kind::K8s, Kind::JobSet, Kind::TfJob, Kind::TrainJob, Kind::Compose, Kind::Slurm];
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::K8s => "k8s",
            Kind::JobSet => "jobset",
            Kind::TfJob => "tfjob",
            Kind::TrainJob => "trainjob",
            Kind::Compose => "compose",
            Kind::Slurm => "slurm",
        })
    }
}

/// Which tasks share a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// Spread each job's tasks over the nodes, for their memory and network bandwidth
    #[default]
    Apart,
    /// Pack all tasks onto as few nodes as possible, to keep the paths between them short
    Together,
}

/// A run to be started elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The kind of manifest.
    pub kind: Kind,
    /// The name of the run, from which all other names are derived.
    pub name: Name,
    /// The namespace in Kubernetes; `None` leaves it to `kubectl`, except that a TrainJob needs one.
    pub namespace: Option<Namespace>,
    /// Parameter servers. With 0 the workers hold the parameters (`--colocate`).
    pub ps: u32,
    /// Workers.
    pub workers: u32,
    /// GPUs for each worker.
    pub gpus: u32,
    /// CPUs for each task.
    pub cpu: Quantity,
    /// Memory for each task.
    pub memory: Quantity,
    /// The container image, whose entry point is `windlass`.
    pub image: String,
    /// Where checkpoints and curves are kept.
    pub storage: Option<Storage>,
    /// The Secret with the credentials of an object store.
    pub storage_secret: String,
    /// How many seconds a task gets to stop; `None` derives it from `--checkpoint-stall-secs`.
    pub grace_seconds: Option<u32>,
    /// Kueue's queue, or Slurm's partition.
    pub queue: Option<String>,
    /// The namespace whose Prometheus may connect to the tasks of a run in Kubernetes; `None` lets no scraper in.
    pub scrape_from: Option<Namespace>,
    /// Which tasks share a machine.
    pub layout: Layout,
    /// The model and its flags, as after `windlass train`.
    pub command: Vec<String>,
}

/// A property of a valid request that its author may not have intended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// GPUs are requested for a program that cannot use them.
    #[error("--gpus {gpus} is given, but this build of windlass has no GPU backend: its workers would refuse to start")]
    GpusWithoutBackend {
        /// GPUs for each worker.
        gpus: u32,
    },
    /// Nothing outlives the tasks: there is no storage.
    #[error("no --storage is given: without checkpoints a run that is interrupted starts from the beginning")]
    NoStorage,
    /// A flag that has no effect on this kind of manifest.
    #[error("{flag} has no effect with {kind}")]
    NoEffect {
        /// The flag.
        flag: &'static str,
        /// The kind of manifest.
        kind: Kind,
    },
    /// The Jobs are admitted to a queue one by one.
    #[error(
        "Kueue admits the Jobs of ps and workers separately: with a full queue, one may run and wait for the other"
    )]
    SeparateAdmission,
}

impl Request {
    /// A request with defaults: one ps, two workers, 2 CPUs and 2 GiB each.
    pub fn new(kind: Kind, name: Name, command: Vec<String>) -> Request {
        let quantity = |text: &str| text.parse().expect("a valid default");
        Request {
            kind,
            name,
            namespace: None,
            ps: 1,
            workers: 2,
            gpus: 0,
            cpu: quantity("2"),
            memory: quantity("2Gi"),
            image: format!("windlass:{}", env!("CARGO_PKG_VERSION")),
            storage: None,
            storage_secret: "windlass-storage".to_owned(),
            grace_seconds: None,
            queue: None,
            scrape_from: None,
            layout: Layout::default(),
            command,
        }
    }

    /// The properties that the author may not have intended; `gpu_backend` says whether this build can use GPUs.
    pub fn warnings(&self, gpu_backend: bool) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if self.gpus > 0 && !gpu_backend {
            warnings.push(Warning::GpusWithoutBackend { gpus: self.gpus });
        }
        if !self.has_run_dir() {
            warnings.push(Warning::NoStorage);
        }
        if self.queue.is_some() && self.kind == Kind::K8s && self.ps > 0 {
            warnings.push(Warning::SeparateAdmission);
        }
        let without_effect = self.without_effect().into_iter();
        warnings.extend(without_effect.map(|flag| Warning::NoEffect { flag, kind: self.kind }));
        warnings
    }

    /// The flags that are given, but have no effect on this kind of manifest.
    fn without_effect(&self) -> Vec<&'static str> {
        let defaults = Request::new(self.kind, self.name.clone(), Vec::new());
        let (of_compose, of_slurm) = (self.kind == Kind::Compose, self.kind == Kind::Slurm);
        let flags = [
            ("--namespace", (of_compose || of_slurm) && self.namespace.is_some()),
            ("--scrape-from", (of_compose || of_slurm) && self.scrape_from.is_some()),
            ("--queue", of_compose && self.queue.is_some()),
            ("--layout", of_compose && self.layout != defaults.layout),
            ("--image", of_slurm && self.image != defaults.image),
            ("--storage-secret", of_slurm && self.storage_secret != defaults.storage_secret),
        ];
        flags.into_iter().filter(|(_, is_idle)| *is_idle).map(|(flag, _)| flag).collect()
    }

    /// Whether the run has a directory for checkpoints and curves. Compose always has a volume for it.
    pub fn has_run_dir(&self) -> bool {
        self.storage.is_some() || self.kind == Kind::Compose
    }

    /// The model and all flags of a worker, except those that describe the cluster.
    pub fn worker_command(&self) -> Vec<String> {
        command::arguments(self, Job::Worker, &command::Naming::Variables).into_iter().skip(1).collect()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.workers == 0 {
            return Err(Error::NoWorkers);
        }
        let tasks = u64::from(self.ps) + u64::from(self.workers);
        if tasks > u64::from(MOST_TASKS) {
            return Err(Error::TooManyTasks { tasks, most: MOST_TASKS });
        }
        if self.kind == Kind::TrainJob && self.namespace.is_none() {
            return Err(Error::NoNamespace);
        }
        let in_image = |character: char| character.is_ascii_alphanumeric() || "._-/:@".contains(character);
        if self.image.is_empty() || !self.image.chars().all(in_image) {
            let problem = "empty, or with characters that no image has";
            return Err(Error::Image { image: self.image.clone(), problem });
        }
        if self.memory.mebibytes() < LEAST_MEBIBYTES {
            let problem = "less memory than a task needs to start; Mi and Gi are units";
            return Err(Error::Quantity { text: self.memory.to_string(), problem });
        }
        crate::names::check_object("Secret", &self.storage_secret)?;
        if let Some(queue) = &self.queue {
            self.check_queue(queue)?;
        }
        self.check_storage()?;
        command::check(self)?;
        limits::check(self)
    }

    fn check_queue(&self, queue: &str) -> Result<(), Error> {
        match self.kind {
            // Partition names follow rules of their own: letters, digits, underscores and the like.
            Kind::Slurm
                if !queue.is_empty() && queue.chars().all(|c| c.is_ascii_alphanumeric() || "_-.,".contains(c)) =>
            {
                Ok(())
            }
            // Kueue stores the queue name as the value of a label.
            _ => crate::names::check_label_value("queue", queue),
        }
    }

    fn check_storage(&self) -> Result<(), Error> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let fits = match self.kind {
            // Compose writes a volume as `SOURCE:TARGET:MODE`.
            Kind::Compose if matches!(storage, Storage::Directory(path) if path.contains(':')) => false,
            Kind::Slurm => matches!(storage, Storage::Directory(_) | Storage::Objects(_)),
            Kind::Compose => true,
            _ => !matches!(storage, Storage::Directory(_)),
        };
        match fits {
            true => Ok(()),
            false => Err(Error::StorageFor { storage: storage.to_string(), kind: self.kind }),
        }
    }

    /// The jobs that have tasks, ps first.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = (Job, u32)> {
        [(Job::Ps, self.ps), (Job::Worker, self.workers)].into_iter().filter(|(_, count)| *count > 0)
    }

    /// All tasks, ps first.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.jobs().flat_map(|(job, count)| (0..count).map(move |index| TaskId { job, index }))
    }

    /// The job whose tasks hold the parameters, and the number of its tasks.
    pub(crate) fn servers(&self) -> (Job, u32) {
        if self.ps == 0 { (Job::Worker, self.workers) } else { (Job::Ps, self.ps) }
    }
}
