//! How two runs that should be the same differ, in words for the person who started them.

/// The first thing in which two runs differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// They were started with different flags.
    Flag {
        /// The one run's, as in `with --steps 500` or `without --steps`.
        here: String,
        /// The other's.
        there: String,
    },
    /// A file that goes with the values has other contents.
    File(String),
    /// They read different data.
    Data {
        /// What the one reads.
        here: String,
        /// What the other reads.
        there: String,
    },
    /// Their networks have different parameters: which, and how.
    Parameters(String),
}

impl Difference {
    pub(crate) fn flag(here: String, there: String) -> Self {
        Self::Flag { here, there }
    }

    /// The difference as a sentence, where `who` is the one run and `other` the other.
    pub fn describe(&self, who: &str, other: &str) -> String {
        match self {
            Self::Flag { here, there } => format!("{who} was started {here}, {other} {there}"),
            Self::File(name) => {
                format!("{name} of {who} differs from that of {other}: is the training data the same?")
            }
            Self::Data { here, there } => {
                format!("{who} reads different data from {other} ({here}, not {there}): is --data-dir the same?")
            }
            Self::Parameters(how) => format!("the network of {who} differs from that of {other}: {how}"),
        }
    }
}
