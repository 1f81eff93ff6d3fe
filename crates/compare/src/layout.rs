//! Layouts as users write them, such as `single`, `1ps2w-async` or `2w-colocated-sync`, and the command that runs one.

use std::fmt;
use std::str::FromStr;

use crate::error::LayoutError;

/// More tasks than anyone would run on one machine.
const MOST_TASKS: u32 = 64;
/// The staleness bound of `ssp` without a number.
const USUAL_STALENESS: u64 = 3;

/// How a run is distributed over processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Everything in one process.
    Single,
    /// Parameter servers and workers, each in a process of its own.
    Apart {
        /// The number of parameter servers.
        ps: u32,
        /// The number of workers.
        workers: u32,
        /// How pushes become updates.
        mode: Mode,
    },
    /// Workers that each host a shard of the parameters.
    Colocated {
        /// The number of workers.
        workers: u32,
        /// How pushes become updates.
        mode: Mode,
    },
}

/// How pushes become updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Each push is applied as it arrives.
    Async,
    /// One update from the mean of all workers' gradients.
    Sync,
    /// Each push is applied as it arrives, but no worker gets further ahead of the slowest than this many steps.
    Ssp(u64),
}

impl Layout {
    /// The words after the program's name that run a model in this layout, without the model's flags.
    pub fn command(&self, model: &str) -> Vec<String> {
        let mut words = match self {
            Layout::Single => vec!["train".to_owned(), model.to_owned()],
            Layout::Apart { ps, workers, .. } => {
                ["launch", model, "--ps", &ps.to_string(), "--workers", &workers.to_string()].map(str::to_owned).into()
            }
            Layout::Colocated { workers, .. } => {
                ["launch", model, "--workers", &workers.to_string(), "--colocate"].map(str::to_owned).into()
            }
        };
        words.extend(self.mode_flags());
        words
    }

    /// The flags of `train` that select the mode.
    pub fn mode_flags(&self) -> Vec<String> {
        match self.mode() {
            None => Vec::new(),
            Some(Mode::Async) => vec!["--mode".to_owned(), "async".to_owned()],
            Some(Mode::Sync) => vec!["--mode".to_owned(), "sync".to_owned()],
            Some(Mode::Ssp(staleness)) => {
                vec!["--mode".to_owned(), "ssp".to_owned(), "--staleness".to_owned(), staleness.to_string()]
            }
        }
    }

    /// The number of workers.
    pub fn workers(&self) -> u32 {
        match self {
            Layout::Single => 1,
            Layout::Apart { workers, .. } | Layout::Colocated { workers, .. } => *workers,
        }
    }

    fn mode(&self) -> Option<Mode> {
        match self {
            Layout::Single => None,
            Layout::Apart { mode, .. } | Layout::Colocated { mode, .. } => Some(*mode),
        }
    }
}

/// Formats the layout as users write it. A single worker needs no mode.
impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = match self {
            Layout::Single => return formatter.write_str("single"),
            Layout::Apart { ps, workers, .. } => {
                write!(formatter, "{ps}ps{workers}w")?;
                *workers
            }
            Layout::Colocated { workers, .. } => {
                write!(formatter, "{workers}w-colocated")?;
                *workers
            }
        };
        match self.mode() {
            Some(Mode::Async) if workers == 1 => Ok(()),
            Some(mode) => write!(formatter, "-{mode}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Async => formatter.write_str("async"),
            Mode::Sync => formatter.write_str("sync"),
            Mode::Ssp(staleness) => write!(formatter, "ssp{staleness}"),
        }
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let text = text.trim();
        let refuse = |why: String| LayoutError { layout: text.to_owned(), why };
        if text.is_empty() {
            return Err(refuse("it is empty".to_owned()));
        }
        if text == "single" {
            return Ok(Layout::Single);
        }
        let mut parts = text.split('-');
        let (ps, workers) = tasks(parts.next().unwrap_or_default()).map_err(refuse)?;
        let (mut mode, mut colocated) = (None, false);
        for part in parts {
            match part {
                "colocated" if colocated => return Err(refuse("it says colocated twice".to_owned())),
                "colocated" => colocated = true,
                part => match (part.parse::<Mode>().map_err(refuse)?, mode) {
                    (_, Some(_)) => return Err(refuse("it has more than one mode".to_owned())),
                    (given, None) => mode = Some(given),
                },
            }
        }
        let mode = mode.unwrap_or(Mode::Async);
        match ps {
            Some(_) if colocated => Err(refuse(format!(
                "colocated workers hold the parameters themselves; write {}w-colocated-{mode}",
                workers
            ))),
            Some(ps) => Ok(Layout::Apart { ps, workers, mode }),
            None if colocated => Ok(Layout::Colocated { workers, mode }),
            None => Err(refuse(format!(
                "it does not say where the parameters are; write 1ps{workers}w-{mode} or {workers}w-colocated-{mode}"
            ))),
        }
    }
}

/// Parses the tasks in `2ps3w`, or in `3w`.
fn tasks(text: &str) -> Result<(Option<u32>, u32), String> {
    let form = || "write single, or ps and workers as in 1ps2w-async".to_owned();
    let (ps, workers) = match text.split_once("ps") {
        Some((ps, workers)) => (Some(number(ps, "ps").ok_or_else(form)??), workers),
        None => (None, text),
    };
    let workers = number(workers.strip_suffix('w').ok_or_else(form)?, "worker").ok_or_else(form)??;
    if ps.unwrap_or(0) + workers > MOST_TASKS {
        return Err(format!("one machine runs at most {MOST_TASKS} tasks here"));
    }
    Ok((ps, workers))
}

/// Parses a number of tasks; `None` if the text is not a number.
fn number(text: &str, what: &str) -> Option<Result<u32, String>> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| match text.parse() {
        Ok(0) => Err(format!("it needs at least one {what}")),
        Ok(number) if number <= MOST_TASKS => Ok(number),
        _ => Err(format!("one machine runs at most {MOST_TASKS} tasks here")),
    })
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "async" => Ok(Mode::Async),
            "sync" => Ok(Mode::Sync),
            "ssp" => Ok(Mode::Ssp(USUAL_STALENESS)),
            text => match text.strip_prefix("ssp").map(str::parse) {
                Some(Ok(staleness)) => Ok(Mode::Ssp(staleness)),
                _ => Err(format!("{text:?} is none of async, sync, ssp, ssp5 and colocated")),
            },
        }
    }
}

/// Parses a list as in `--layouts`, in which each layout may appear once.
///
/// # Errors
/// Fails if an entry is not a layout, or appears twice.
pub fn parse_list(text: &str) -> Result<Vec<Layout>, LayoutError> {
    let mut layouts = Vec::new();
    for word in text.split(',') {
        let layout: Layout = word.parse()?;
        if layouts.contains(&layout) {
            return Err(LayoutError { layout: word.trim().to_owned(), why: "it is there twice".to_owned() });
        }
        layouts.push(layout);
    }
    Ok(layouts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn command(text: &str) -> String {
        text.parse::<Layout>().unwrap().command("mnist").join(" ")
    }

    #[test]
    fn a_layout_is_the_command_that_a_user_would_type() {
        assert_eq!(command("single"), "train mnist");
        assert_eq!(command("1ps1w"), "launch mnist --ps 1 --workers 1 --mode async");
        assert_eq!(command("2ps3w-sync"), "launch mnist --ps 2 --workers 3 --mode sync");
        assert_eq!(command("1ps3w-ssp"), "launch mnist --ps 1 --workers 3 --mode ssp --staleness 3");
        assert_eq!(command("1ps3w-ssp7"), "launch mnist --ps 1 --workers 3 --mode ssp --staleness 7");
        assert_eq!(command("2w-colocated-sync"), "launch mnist --workers 2 --colocate --mode sync");
        assert_eq!(command("2w-sync-colocated"), command("2w-colocated-sync"));
    }

    #[test]
    fn what_is_wrong_with_a_layout_is_said() {
        let refusal = |text: &str| text.parse::<Layout>().unwrap_err().to_string();
        let refusals: Vec<String> = [
            "",
            "double",
            "1ps",
            "2w",
            "0ps2w",
            "1ps0w",
            "1ps2w-fast",
            "1ps2w-sync-async",
            "1ps2w-colocated",
            "2w-colocated-colocated",
            "9999999999ps1w",
            "1ps64w",
            "+1ps2w",
            "1ps2w-ssp-1",
            "1PS2W",
        ]
        .map(refusal)
        .into();
        insta::assert_snapshot!(refusals.join("\n"));
    }

    #[test]
    fn a_list_names_each_layout_once() {
        assert_eq!(parse_list("single, 1ps2w-async").unwrap().len(), 2);
        let error = parse_list("1ps1w,single,1ps1w-async").unwrap_err().to_string();
        assert_eq!(error, "\"1ps1w-async\" is not a layout: it is there twice");
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        let modes = prop_oneof![Just(Mode::Async), Just(Mode::Sync), any::<u64>().prop_map(Mode::Ssp)];
        let tasks = 1..=MOST_TASKS / 2;
        (tasks.clone(), tasks, modes, 0..3).prop_map(|(ps, workers, mode, kind)| match kind {
            0 => Layout::Single,
            1 => Layout::Apart { ps, workers, mode },
            _ => Layout::Colocated { workers, mode },
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_can_be_read(layout in layouts()) {
            prop_assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout);
        }

        #[test]
        fn no_text_is_more_than_refused(text in "[0-9a-z-]{0,12}|[0-9]{1,3}(ps)?[0-9]{0,3}w?(-[a-z0-9]{0,5}){0,2}|.{0,8}") {
            if let Ok(layout) = text.parse::<Layout>() {
                prop_assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout);
            }
        }
    }
}
