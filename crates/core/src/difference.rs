//! How two runs that should be the same differ, in words for the user who started them.

/// The first thing in which two runs differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The runs were started with different flags.
    Flag {
        /// The flag of one run, as in `with --steps 500` or `without --steps`.
        here: String,
        /// The flag of the other run.
        there: String,
    },
    /// A file that belongs to the values has different contents.
    File(String),
    /// The runs read different data.
    Data {
        /// The data of one run.
        here: String,
        /// The data of the other run.
        there: String,
    },
    /// The networks have different parameters. The text says which and how.
    Parameters(String),
}

impl Difference {
    pub(crate) fn flag(here: String, there: String) -> Self {
        Self::Flag { here, there }
    }

    /// Formats the difference as a sentence about the runs called `who` and `other`.
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
