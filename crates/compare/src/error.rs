//! Why layouts or run directories cannot be compared.

use std::path::PathBuf;

use thiserror::Error;

/// A layout that is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{layout:?} is not a layout: {why}")]
pub struct LayoutError {
    /// As the user wrote it.
    pub layout: String,
    /// What is wrong with it.
    pub why: String,
}

/// A comparison that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The file is not TOML, or says something that a comparison does not know.
    #[error("{why}")]
    File {
        /// What is wrong, and where.
        why: String,
    },
    /// A layout is none.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Nobody says what is to be trained.
    #[error("no model given")]
    NoModel,
    /// Two say what is to be trained.
    #[error("the file compares layouts of {file}, and not of {given}")]
    TwoModels {
        /// The model of the file.
        file: String,
        /// The one on the command line.
        given: String,
    },
    /// A word that is no flag.
    #[error("{word:?} is not a flag of the run")]
    NotAFlag {
        /// The word.
        word: String,
    },
    /// A flag that the layout, or the comparison itself, sets.
    #[error("--{flag} is not a flag to compare with: {why}")]
    Reserved {
        /// The flag.
        flag: String,
        /// Who sets it.
        why: &'static str,
    },
    /// A value that no flag can have.
    #[error("flag {flag} cannot be a {kind}")]
    Value {
        /// The flag.
        flag: String,
        /// What was given for it.
        kind: &'static str,
    },
    /// Two rows of one name.
    #[error("two layouts are called {name}")]
    SameName {
        /// The name.
        name: String,
    },
    /// A name that is not one of a directory.
    #[error("{name:?} is not a name for a layout: use letters, digits, - and _")]
    BadName {
        /// The name.
        name: String,
    },
    /// Nothing to compare.
    #[error("no layouts given")]
    NoLayouts,
    /// No repetitions, or too many.
    #[error("repeat is {repeat}, but must be from 1 to 100")]
    Repeat {
        /// How many.
        repeat: u32,
    },
}

impl PlanError {
    /// What the user may do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            PlanError::NoModel => "add a model and its flags after --, such as -- mnist --steps 2000",
            PlanError::NoLayouts => "such as --layouts single,1ps1w,1ps2w-async,1ps2w-sync",
            PlanError::Layout(_) => {
                "layouts are single, 1ps1w, 1ps2w-async, 2ps2w-sync, 1ps3w-ssp5, 2w-colocated-sync and the like"
            }
            PlanError::SameName { .. } => "give one of them another name = \"…\"",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// A run directory that cannot be compared.
#[derive(Debug, Error)]
pub enum RunError {
    /// It is not there, or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// What it is.
        path: PathBuf,
    },
    /// It holds no result.
    #[error("{} holds no finished run: {}", path.display(), why)]
    Unfinished {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
    },
    /// A file in it is damaged.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It holds another run.
    #[error("{} holds a run with other settings: {found}", path.display())]
    OtherSettings {
        /// The directory.
        path: PathBuf,
        /// What was run there.
        found: String,
    },
    /// It holds something that was not written by a comparison.
    #[error("{} is not empty, and no comparison has written it", path.display())]
    NotOurs {
        /// The directory.
        path: PathBuf,
    },
}

impl RunError {
    /// What the user may do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            RunError::Unfinished { .. } => "`train` and `launch` with --run-dir DIR write summary.json at their end",
            RunError::OtherSettings { .. } | RunError::NotOurs { .. } => {
                "choose another --output, or remove that directory"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
