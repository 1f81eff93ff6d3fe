//! The settings of a command: its flags with a long name, and the table of a configuration file to which each belongs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};
use windlass_compare::FlagRules;

use crate::program;

/// Flags that ask for something once, name this file, or are between the launcher and its tasks.
const NOT_SETTINGS: [&str; 8] =
    ["help", "version", "config", "print-config", "print-cluster", "started-at", "progress", "restarted"];

/// Settings that a setting of a higher layer replaces in lower layers, because they only make sense with its old value.
const REPLACES: [(&str, &[&str]); 6] = [
    ("steps", &["epochs"]),
    ("epochs", &["steps"]),
    ("optimizer", &["optimizer-option"]),
    ("mode", &["replicas-to-aggregate", "staleness"]),
    ("towers", &["devices"]),
    ("devices", &["towers"]),
];

/// Settings that this value of a setting replaces in lower layers, because the value excludes them.
const EXCLUDES: [(&str, &str, &str); 4] = [
    ("mode", "sync", "staleness-scaling"),
    ("mode", "async", "deterministic"),
    ("mode", "ssp", "deterministic"),
    ("sharding", "round_robin", "min-shard-bytes"),
];

/// Flags that take a list as one value, with commas.
const COMMA_LISTS: [&str; 4] = ["devices", "place", "ps-hosts", "worker-hosts"];

/// A table of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    /// The flags that only `launch` takes.
    Launch,
    /// The flags that `train` takes, and `launch` too unless it chooses them itself.
    Train,
    /// The model's own flags.
    Model,
    /// What `join` takes.
    Join,
}

impl Table {
    pub(crate) const ALL: [Self; 4] = [Self::Launch, Self::Train, Self::Model, Self::Join];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Train => "train",
            Self::Model => "model",
            Self::Join => "join",
        }
    }
}

/// The settings of one command, with one model if it is about one.
pub(crate) struct Schema {
    /// `train`, `launch`, `eval` or `join`.
    pub(crate) verb: String,
    /// None for `join`, whose clients choose the model.
    pub(crate) model: Option<String>,
    /// The command with all its flags, built.
    pub(crate) command: Command,
    /// The flags that only `launch` takes.
    pub(crate) launch: BTreeSet<String>,
    /// The flags that only `train` takes.
    pub(crate) cluster: BTreeSet<String>,
    /// The settings of `join`.
    pub(crate) join: BTreeSet<String>,
    /// Every model's own flags.
    pub(crate) models: Vec<(&'static str, BTreeSet<String>)>,
}

impl Schema {
    pub(crate) fn settings(&self) -> impl Iterator<Item = &Arg> {
        // `join` has a hidden `--task-index`, which is between the launcher and its tasks.
        let may_be_hidden = self.model.is_some();
        self.command.get_arguments().filter(move |arg| is_setting(arg) && (may_be_hidden || !arg.is_hide_set()))
    }

    /// The words of a command line before its flags: the program, the command and the model.
    pub(crate) fn leading_words(&self) -> usize {
        2 + usize::from(self.model.is_some())
    }

    /// The command as users write it.
    pub(crate) fn written(&self) -> String {
        self.written_with(&self.verb)
    }

    /// Another command with the same model, as users write it.
    pub(crate) fn written_with(&self, verb: &str) -> String {
        let words = [program::name(), verb.to_owned()].into_iter().chain(self.model.clone());
        words.collect::<Vec<_>>().join(" ")
    }

    /// The part of what clap has read that is about this command.
    pub(crate) fn leaf<'a>(&self, matches: &'a ArgMatches) -> &'a ArgMatches {
        let verb = matches.subcommand_matches(&self.verb);
        let leaf = match &self.model {
            Some(model) => verb.and_then(|matches| matches.subcommand_matches(model)),
            None => verb,
        };
        leaf.unwrap_or(matches)
    }

    /// The setting with this name or alias, written with hyphens or underscores.
    pub(crate) fn find(&self, key: &str) -> Option<&Arg> {
        let key = key.replace('_', "-");
        let is_alias = |arg: &&Arg| arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&&*key));
        self.settings().find(|arg| name(arg) == key).or_else(|| self.settings().find(is_alias))
    }

    pub(crate) fn table(&self, name: &str) -> Table {
        let is_own =
            self.models.iter().any(|(model, flags)| self.model.as_deref() == Some(*model) && flags.contains(name));
        match self.verb.as_str() {
            "join" => Table::Join,
            _ if is_own => Table::Model,
            "launch" if self.launch.contains(name) => Table::Launch,
            _ => Table::Train,
        }
    }

    /// Whether this turns a switch off, which conflicts with nothing.
    pub(crate) fn is_off(&self, name: &str, values: &[OsString]) -> bool {
        self.find(name).filter(|arg| is_switch(arg)).is_some_and(|arg| values == [switch_value(arg, false)])
    }

    /// Whether a setting of a lower layer goes for nothing because of those of higher layers, which turn no switch off.
    pub(crate) fn is_replaced(&self, name: &str, above: &BTreeMap<String, Vec<OsString>>) -> bool {
        let replaced = REPLACES.iter().any(|(by, replaced)| above.contains_key(*by) && replaced.contains(&name));
        let is = |setting: &str, value: &str| above.get(setting).is_some_and(|values| *values == [value]);
        let excluded = EXCLUDES.iter().any(|(by, value, excluded)| *excluded == name && is(by, value));
        replaced || excluded || above.keys().any(|other| self.excludes(name, other) || self.excludes(other, name))
    }

    fn excludes(&self, one: &str, other: &str) -> bool {
        let excluded = self.find(one).map(|arg| self.command.get_arg_conflicts_with(arg)).unwrap_or_default();
        excluded.into_iter().any(|arg| name(arg) == other)
    }
}

/// The file of a comparison and its command line are layers, too.
impl FlagRules for Schema {
    fn name(&self, flag: &str) -> Option<String> {
        self.find(flag).map(name)
    }

    fn is_replaced(&self, flag: &str, above: &BTreeMap<String, Vec<OsString>>) -> bool {
        let in_force = above.iter().filter(|(other, values)| !self.is_off(other, values));
        Self::is_replaced(self, flag, &in_force.map(|(other, values)| (other.clone(), values.clone())).collect())
    }
}

fn is_setting(arg: &Arg) -> bool {
    // Global flags are about the command, not about the run.
    !arg.is_global_set() && arg.get_long().is_some_and(|name| !NOT_SETTINGS.contains(&name))
}

/// The names of a command's settings.
pub(crate) fn setting_names(command: &Command) -> BTreeSet<String> {
    command.get_arguments().filter(|arg| is_setting(arg) && !arg.is_hide_set()).map(name).collect()
}

/// The names of a command's flags.
pub(crate) fn names(command: &Command) -> BTreeSet<String> {
    command.get_arguments().map(name).collect()
}

/// A flag's name, without leading hyphens.
pub(crate) fn name(arg: &Arg) -> String {
    arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned()
}

/// True for a flag that takes no value.
pub(crate) fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
}

/// True for a flag that may have several values.
pub(crate) fn takes_many(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_num_args().is_some_and(|range| range.max_values() > 1)
}

/// Whether a flag takes a list as one value, with commas.
pub(crate) fn joined_by_commas(arg: &Arg) -> bool {
    COMMA_LISTS.contains(&&*name(arg))
}

/// The values of a flag, given or by default, as written on a command line.
pub(crate) fn values(matches: &ArgMatches, arg: &Arg) -> Vec<OsString> {
    let raw = matches.try_get_raw(arg.get_id().as_str()).ok().flatten();
    raw.into_iter().flatten().map(ToOwned::to_owned).collect()
}

/// The value of a switch that is given, or not given. (Some switches stand for false.)
pub(crate) fn switch_value(arg: &Arg, is_given: bool) -> OsString {
    let value = is_given == matches!(arg.get_action(), ArgAction::SetTrue);
    value.to_string().into()
}

/// The arguments that give a flag these values on the command line.
pub(crate) fn arguments(arg: &Arg, values: &[OsString]) -> Vec<OsString> {
    let flag = OsString::from(format!("--{}", name(arg)));
    match arg.get_action() {
        ArgAction::SetTrue | ArgAction::SetFalse => {
            let given = switch_value(arg, true);
            values.iter().filter(|value| **value == given).map(|_| flag.clone()).collect()
        }
        ArgAction::Count => {
            let count = values.first().and_then(|count| count.to_str()?.parse().ok());
            vec![flag; count.unwrap_or(0)]
        }
        ArgAction::Set if takes_many(arg) && !values.is_empty() => {
            std::iter::once(flag).chain(values.iter().cloned()).collect()
        }
        _ => values.iter().map(|value| with_value(&flag, value)).collect(),
    }
}

fn with_value(flag: &OsString, value: &OsString) -> OsString {
    let mut word = flag.clone();
    word.push("=");
    word.push(value);
    word
}
