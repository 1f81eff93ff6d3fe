//! The names of devices, in TensorFlow's notation: `/job:worker/replica:0/task:1/device:GPU:0`, and all its shorter
//! forms. Does not check whether a machine has such a device.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::cluster::TaskId;

/// A kind of device, by backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// The CPU, through Burn's CPU backend.
    Cpu,
    /// A GPU, through whichever backend reaches it.
    Gpu,
    /// An NVIDIA GPU through CUDA.
    Cuda,
    /// An AMD GPU through ROCm.
    Rocm,
    /// A GPU through Vulkan.
    Vulkan,
    /// A GPU through Apple's Metal.
    Metal,
    /// A GPU through the graphics API that wgpu chooses.
    Wgpu,
}

impl DeviceKind {
    /// All kinds of device.
    pub const ALL: [Self; 7] = [Self::Cpu, Self::Gpu, Self::Cuda, Self::Rocm, Self::Vulkan, Self::Metal, Self::Wgpu];

    /// The kind's name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Wgpu => "wgpu",
        }
    }

    fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(text))
    }
}

/// A device of a task: its kind and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalName {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The device's number among those of its kind; `None` if any will do.
    pub index: Option<u32>,
}

impl LocalName {
    /// The device of this kind with this number.
    pub const fn new(kind: DeviceKind, index: u32) -> Self {
        Self { kind, index: Some(index) }
    }
}

impl fmt::Display for LocalName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => formatter.pad(&format!("{}:{index}", self.kind.name())),
            None => formatter.pad(self.kind.name()),
        }
    }
}

/// A device, named in full or in part. Missing parts match anything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct DeviceName {
    /// The job of the task that has the device.
    pub job: Option<String>,
    /// The number of the job's replica. Windlass has only replica 0 of each job.
    pub replica: Option<u32>,
    /// The index of the task.
    pub task: Option<u32>,
    /// The device within the task.
    pub device: Option<LocalName>,
}

impl DeviceName {
    /// Fills in missing parts from a default, as an outer device scope in TensorFlow completes an inner one. The kind
    /// of device and its number are separate parts: `/cpu` completed by `/gpu:1` is `/cpu:1`.
    #[must_use]
    pub fn or(&self, default: &Self) -> Self {
        let device = match (self.device, default.device) {
            (Some(own), Some(default)) => Some(LocalName { kind: own.kind, index: own.index.or(default.index) }),
            (own, default) => own.or(default),
        };
        Self {
            job: self.job.clone().or_else(|| default.job.clone()),
            replica: self.replica.or(default.replica),
            task: self.task.or(default.task),
            device,
        }
    }

    /// Whether the name can refer to a device of this task.
    pub fn may_be_of(&self, task: TaskId) -> bool {
        self.job.as_ref().is_none_or(|job| *job == task.job.to_string())
            && self.replica.is_none_or(|replica| replica == 0)
            && self.task.is_none_or(|index| index == task.index)
    }
}

impl From<LocalName> for DeviceName {
    fn from(device: LocalName) -> Self {
        Self { device: Some(device), ..Self::default() }
    }
}

/// Writes the given parts in TensorFlow's own spelling: `/job:worker/task:1/device:GPU:0`.
impl fmt::Display for DeviceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(formatter, "/job:{job}")?;
        }
        for (part, number) in [("replica", self.replica), ("task", self.task)] {
            if let Some(number) = number {
                write!(formatter, "/{part}:{number}")?;
            }
        }
        if let Some(LocalName { kind, index }) = self.device {
            write!(formatter, "/device:{}", kind.name().to_ascii_uppercase())?;
            match index {
                Some(index) => write!(formatter, ":{index}")?,
                None => formatter.write_str(":*")?,
            }
        }
        Ok(())
    }
}

/// Why a text is not a device name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceNameError {
    /// The text is empty.
    #[error("the name of a device is empty")]
    Empty,
    /// A part is not one that device names have.
    #[error("{part:?} in the device name {name:?} is not a job, replica, task or device")]
    UnknownPart {
        /// The whole text.
        name: String,
        /// The unknown part.
        part: String,
    },
    /// The kind of device does not exist.
    #[error("{kind:?} in the device name {name:?} is not a kind of device")]
    UnknownKind {
        /// The whole text.
        name: String,
        /// The unknown kind.
        kind: String,
    },
    /// A part that needs a number has another value.
    #[error("{value:?} in the device name {name:?} is not a number")]
    NoNumber {
        /// The whole text.
        name: String,
        /// The value given instead.
        value: String,
    },
    /// The job is not a valid job name.
    #[error("{job:?} in the device name {name:?} is not a job name: use letters, digits and underscores")]
    BadJob {
        /// The whole text.
        name: String,
        /// The job given.
        job: String,
    },
    /// A part occurs twice.
    #[error("the device name {name:?} gives the {part} twice")]
    Twice {
        /// The whole text.
        name: String,
        /// The repeated part.
        part: &'static str,
    },
}

impl DeviceNameError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        let kinds: Vec<&str> = DeviceKind::ALL.into_iter().map(DeviceKind::name).collect();
        format!("name one such as gpu:0 or /job:worker/task:1/device:GPU:0; the kinds are {}", kinds.join(", "))
    }
}

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    /// Accepts names in any case, with `*` for parts that match anything. A name without slashes is a device of any
    /// task.
    fn from_str(text: &str) -> Result<Self, DeviceNameError> {
        let mut reader = Reader { text, name: Self::default() };
        match text.strip_prefix('/') {
            None if text.is_empty() => return Err(DeviceNameError::Empty),
            None => reader.device(text)?,
            Some(parts) => parts.split('/').try_for_each(|part| reader.part(part))?,
        }
        Ok(reader.name)
    }
}

struct Reader<'a> {
    text: &'a str,
    name: DeviceName,
}

impl Reader<'_> {
    fn part(&mut self, part: &str) -> Result<(), DeviceNameError> {
        let (key, value) = part.split_once(':').map_or((part, None), |(key, value)| (key, Some(value)));
        match (&*key.to_ascii_lowercase(), value) {
            ("job", Some(value)) => {
                let job = self.job(value)?;
                self.set("job", |name| &mut name.job, job)
            }
            ("replica", Some(value)) => {
                let number = self.number(value)?;
                self.set("replica", |name| &mut name.replica, number)
            }
            ("task", Some(value)) => {
                let number = self.number(value)?;
                self.set("task", |name| &mut name.task, number)
            }
            ("device", Some("*" | "*:*")) => Ok(()),
            ("device", Some(device)) => self.device(device),
            (kind, _) if DeviceKind::named(kind).is_some() => self.device(part),
            _ => Err(DeviceNameError::UnknownPart { name: self.text.to_owned(), part: part.to_owned() }),
        }
    }

    fn device(&mut self, text: &str) -> Result<(), DeviceNameError> {
        let (kind, index) = text.split_once(':').map_or((text, None), |(kind, index)| (kind, Some(index)));
        let unknown = || DeviceNameError::UnknownKind { name: self.text.to_owned(), kind: kind.to_owned() };
        let kind = DeviceKind::named(kind).ok_or_else(unknown)?;
        let index = index.map(|index| self.number(index)).transpose()?.flatten();
        self.set("device", |name| &mut name.device, Some(LocalName { kind, index }))
    }

    fn job(&self, job: &str) -> Result<Option<String>, DeviceNameError> {
        let is_word = job.starts_with(|first: char| first.is_ascii_alphabetic())
            && job.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
        match job {
            "*" => Ok(None),
            _ if is_word => Ok(Some(job.to_owned())),
            _ => Err(DeviceNameError::BadJob { name: self.text.to_owned(), job: job.to_owned() }),
        }
    }

    fn number(&self, value: &str) -> Result<Option<u32>, DeviceNameError> {
        let has_digits_alone = value.chars().all(|character| character.is_ascii_digit());
        match value.parse() {
            _ if value == "*" => Ok(None),
            Ok(number) if has_digits_alone => Ok(Some(number)),
            _ => Err(DeviceNameError::NoNumber { name: self.text.to_owned(), value: value.to_owned() }),
        }
    }

    fn set<T>(
        &mut self,
        part: &'static str,
        field: impl FnOnce(&mut DeviceName) -> &mut Option<T>,
        value: Option<T>,
    ) -> Result<(), DeviceNameError> {
        let field = field(&mut self.name);
        if field.is_some() {
            return Err(DeviceNameError::Twice { name: self.text.to_owned(), part });
        }
        *field = value;
        Ok(())
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
