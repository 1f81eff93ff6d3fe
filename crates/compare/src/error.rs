//! Why layouts or run directories cannot be compared.

use std::path::PathBuf;

use thiserror::Error;

/// A text that does not name a layout.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{layout:?} is not a layout: {why}")]
pub struct LayoutError {
    /// The layout as the user wrote it.
    pub layout: String,
    /// What is wrong with it.
    pub why: String,
}

/// A comparison that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The file is not TOML, or has a setting that comparisons do not have.
    #[error("{why}")]
    File {
        /// What is wrong, and where.
        why: String,
    },
    /// A layout is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Neither the file nor the command line names a model.
    #[error("no model given")]
    NoModel,
    /// The file and the command line name different models.
    #[error("the file compares layouts of {file}, and not of {given}")]
    TwoModels {
        /// The model of the file.
        file: String,
        /// The model on the command line.
        given: String,
    },
    /// A word that does not belong to any flag.
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
        /// What sets it instead.
        why: &'static str,
    },
    /// A value of a kind that no flag takes.
    #[error("flag {flag} cannot be a {kind}")]
    Value {
        /// The flag.
        flag: String,
        /// The kind of value that was given.
        kind: &'static str,
    },
    /// Two rows with the same name.
    #[error("two layouts are called {name}")]
    SameName {
        /// The name.
        name: String,
    },
    /// A name that cannot be used for a directory.
    #[error("{name:?} is not a name for a layout: use letters, digits, - and _")]
    BadName {
        /// The name.
        name: String,
    },
    /// There is nothing to compare.
    #[error("no layouts given")]
    NoLayouts,
    /// No repetitions, or too many.
    #[error("repeat is {repeat}, but must be from 1 to 100")]
    Repeat {
        /// The number of repetitions.
        repeat: u32,
    },
}

impl PlanError {
    /// What the user can do about it.
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
    /// The directory or file is missing or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The directory or file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// It is not a directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// The directory holds no result.
    #[error("{} holds no finished run: {}", path.display(), why)]
    Unfinished {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
    },
    /// A file in the directory is damaged.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The directory holds another run.
    #[error("{} holds a run with other settings: {found}", path.display())]
    OtherSettings {
        /// The directory.
        path: PathBuf,
        /// What was run there.
        found: String,
    },
    /// The directory holds something that was not written by a comparison.
    #[error("{} is not empty, and no comparison has written it", path.display())]
    NotOurs {
        /// The directory.
        path: PathBuf,
    },
}

impl RunError {
    /// What the user can do about it.
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
