//! The settings of a run, and where each comes from.
//!
//! Precedence, highest first; nothing else in the program decides it:
//!
//! 1. flags;
//! 2. variables, `WINDLASS_` and the flag's name (`environment`);
//! 3. the file that `--config` names (`file`);
//! 4. for the cluster and this process's place in it: the file that `--cluster` names, then `TF_CONFIG`, then the
//!    variables that Kubernetes and Slurm set (`core/cluster/resolve`, to which the three above are flags);
//! 5. for the model's own flags: the checkpoint that the run resumes from (`model_flags`);
//! 6. defaults: the flags' own, and the model's for training (`Model::defaults`, in `config`).
//!
//! A setting also replaces settings of lower layers that conflict with it ([`Schema::is_replaced`]).
//!
//! A setting is the value of a flag. So the layers below the command line become flags that the user might have written,
//! and clap reads and checks all of them in the same way, including those of models that this crate does not know.

mod environment;
mod file;
mod record;
mod schema;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

pub(crate) use environment::{may_set, switched, variable, without_effect};
pub(crate) use record::Settings;
pub(crate) use schema::{Schema, arguments, name, names, setting_names, values};

use crate::failure::Failure;
use crate::misuse;
use schema::{is_switch, switch_value};

/// Who says what a setting is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Variable(String),
    File { path: String, line: usize },
    Checkpoint(String),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => formatter.write_str("flag"),
            Self::Variable(name) => formatter.write_str(name),
            Self::File { path, .. } => formatter.write_str(path),
            Self::Checkpoint(id) => write!(formatter, "checkpoint {id}"),
            Self::Default => formatter.write_str("default"),
        }
    }
}

impl Origin {
    /// The place where the user should look for a mistake.
    fn place(&self) -> String {
        match self {
            Self::File { path, line } => format!("{path}: line {line}"),
            origin => origin.to_string(),
        }
    }

    /// Whether the user has made this setting, in contrast to a checkpoint or a default.
    pub(crate) fn is_user(&self) -> bool {
        matches!(self, Self::Flag | Self::Variable(_) | Self::File { .. })
    }
}

/// The value that a layer has for a setting.
#[derive(Debug, Clone)]
pub(crate) struct Stated {
    pub(crate) name: String,
    pub(crate) values: Vec<OsString>,
    pub(crate) origin: Origin,
}

/// Combines the layers.
pub(crate) struct Resolver<'a> {
    root: &'a Command,
    schema: &'a Schema,
    /// The command line.
    words: Vec<OsString>,
    stated: BTreeMap<String, Stated>,
    /// The variable that names the configuration file, if no flag does.
    file_variable: Option<String>,
}

impl<'a> Resolver<'a> {
    /// Reads flags, variables and the file. Exits, as clap does, if the command line itself is invalid.
    pub(crate) fn new(root: &'a Command, arguments: &[OsString], schema: &'a Schema) -> Result<Self, Failure> {
        let (words, switched_off) = without_negations(arguments, schema)?;
        let flags = command_line(root, &words, schema);
        let mut resolver = Self { root, schema, words, stated: BTreeMap::new(), file_variable: None };
        let given = schema.settings().filter(|arg| is_on_command_line(&flags, arg)).map(|arg| {
            let values = values(&flags, arg);
            Stated { name: name(arg), values, origin: Origin::Flag }
        });
        resolver.add(switched_off.into_iter().chain(given).collect());
        resolver.add(environment::read(schema, |variable| std::env::var_os(variable))?);
        if let Some((path, variable)) = config_file(&flags) {
            resolver.add(file::read(&path, schema)?);
            resolver.file_variable = variable;
        }
        Ok(resolver)
    }

    /// Adds a layer below the existing ones.
    fn add(&mut self, layer: Vec<Stated>) {
        let in_force = self.stated.values().filter(|stated| !self.schema.is_off(&stated.name, &stated.values));
        let above: BTreeMap<String, Vec<OsString>> =
            in_force.map(|stated| (stated.name.clone(), stated.values.clone())).collect();
        for stated in layer {
            if !self.schema.is_replaced(&stated.name, &above) {
                self.stated.entry(stated.name.clone()).or_insert(stated);
            }
        }
    }

    /// Adds the model's flags from a checkpoint, by name.
    pub(crate) fn add_checkpoint(&mut self, id: &str, flags: BTreeMap<String, Vec<OsString>>) {
        for (name, values) in flags {
            let origin = Origin::Checkpoint(id.to_owned());
            self.stated.entry(name.clone()).or_insert(Stated { name, values, origin });
        }
    }

    /// The combined settings as parsed by clap.
    pub(crate) fn matches(&self) -> Result<ArgMatches, clap::Error> {
        // A value that equals the default is not passed on: to clap, a flag that is given may exclude or require
        // others.
        let defaults = self.root.clone().ignore_errors(true).try_get_matches_from(&self.words)?;
        let differs = |matches: &ArgMatches, stated: &&Stated| {
            let arg = self.schema.find(&stated.name);
            arg.is_some_and(|arg| values(self.schema.leaf(matches), arg) != stated.values)
        };
        let below = || self.stated.values().filter(|stated| stated.origin != Origin::Flag);
        let first = self.parse(below().filter(|stated| differs(&defaults, stated)))?;
        if !below().any(|stated| differs(&first, &stated)) {
            return Ok(first);
        }
        // A default may depend on another flag.
        self.parse(below().filter(|stated| differs(&defaults, stated) || differs(&first, stated)))
    }

    fn parse<'b>(&self, stated: impl Iterator<Item = &'b Stated>) -> Result<ArgMatches, clap::Error> {
        let (leading, flags) = self.words.split_at(self.schema.leading_words());
        let added = stated.flat_map(|stated| {
            let arg = self.schema.find(&stated.name);
            arg.map(|arg| arguments(arg, &stated.values)).unwrap_or_default()
        });
        let words: Vec<OsString> = leading.iter().cloned().chain(added).chain(flags.iter().cloned()).collect();
        self.root.clone().try_get_matches_from(words)
    }

    /// Names who is to blame that what is stated cannot be. Exits, as clap does, if it is the command line alone.
    pub(crate) fn blame(&self, error: clap::Error) -> Failure {
        if self.stated.values().all(|stated| stated.origin == Origin::Flag) {
            misuse::exit(error, self.schema);
        }
        let of_values = [
            ErrorKind::InvalidUtf8,
            ErrorKind::InvalidValue,
            ErrorKind::ValueValidation,
            ErrorKind::TooFewValues,
            ErrorKind::TooManyValues,
            ErrorKind::WrongNumberOfValues,
        ];
        let words = |stated: &Stated| {
            let arg = self.schema.find(&stated.name);
            let words = arg.map(|arg| arguments(arg, &stated.values)).unwrap_or_default();
            self.words[..self.schema.leading_words()].iter().cloned().chain(words)
        };
        for stated in self.stated.values().filter(|stated| stated.origin != Origin::Flag) {
            if let Err(error) = self.root.clone().try_get_matches_from(words(stated))
                && of_values.contains(&error.kind())
            {
                let (problem, hint) = in_words(&error);
                return Failure::usage(format!("{}: {problem}", stated.origin.place())).with_hint(hint);
            }
        }
        // Each setting is valid by itself, but not together with the others.
        let (problem, _) = in_words(&error);
        let named = |stated: &&Stated| stated.origin != Origin::Flag && problem.contains(&format!("--{}", stated.name));
        let said = self
            .stated
            .values()
            .filter(named)
            .map(|stated| format!("--{} is set by {}", stated.name, stated.origin.place()));
        let said = said.collect::<Vec<_>>().join(", ");
        Failure::usage(problem).with_hint((!said.is_empty()).then_some(said))
    }

    /// Every setting of the command, with its value and origin.
    pub(crate) fn settings(&self, matches: &ArgMatches) -> Settings {
        let settings = Settings::new(self.schema, self.schema.leaf(matches), &self.stated);
        settings.with_file_by(self.file_variable.clone())
    }
}

/// Parses the command line, which may be incomplete: other layers may supply what is missing.
fn command_line(root: &Command, words: &[OsString], schema: &Schema) -> ArgMatches {
    let matches = match root.clone().try_get_matches_from(words) {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            root.clone().ignore_errors(true).try_get_matches_from(words).unwrap_or_else(|error| error.exit())
        }
        matches => matches.unwrap_or_else(|error| misuse::exit(error, schema)),
    };
    schema.leaf(&matches).clone()
}

fn is_on_command_line(matches: &ArgMatches, arg: &Arg) -> bool {
    matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// The configuration file, and the variable that names it if no flag does. `eval` has none.
fn config_file(flags: &ArgMatches) -> Option<(PathBuf, Option<String>)> {
    if let Some(path) = flags.try_get_one::<PathBuf>("config").ok()? {
        return Some((path.clone(), None));
    }
    let variable = variable("config")?;
    let path = std::env::var_os(&variable).filter(|value| !value.is_empty())?;
    Some((path.into(), Some(variable)))
}

/// Extracts `--switch=false` and `--switch=true` from a command line: clap's switches take no value, but a user must be
/// able to turn off a switch that a file turns on.
fn without_negations(arguments: &[OsString], schema: &Schema) -> Result<(Vec<OsString>, Vec<Stated>), Failure> {
    let mut words = Vec::new();
    let mut off: Vec<Stated> = Vec::new();
    let mut flags_ended = false;
    for word in arguments {
        flags_ended |= word == "--";
        let flag = word.to_str().and_then(|text| text.strip_prefix("--")).filter(|_| !flags_ended);
        let switch = flag.and_then(|flag| flag.split_once('=')).and_then(|(flag, value)| {
            let arg = schema.find(flag).filter(|arg| is_switch(arg))?;
            Some((arg, value.parse::<bool>().ok()?))
        });
        match switch {
            None => words.push(word.clone()),
            Some((arg, true)) => words.push(format!("--{}", name(arg)).into()),
            Some((arg, false)) => {
                let values = vec![switch_value(arg, false)];
                off.push(Stated { name: name(arg), values, origin: Origin::Flag });
            }
        }
    }
    let is_both = |stated: &&Stated| words.iter().any(|word| *word == *format!("--{}", stated.name));
    match off.iter().find(is_both) {
        Some(Stated { name, .. }) => Err(Failure::usage(format!("--{name} is both given and turned off"))),
        None => Ok((words, off)),
    }
}

/// A clap error in one line, and its tip.
fn in_words(error: &clap::Error) -> (String, Option<String>) {
    let text = error.to_string();
    let mut paragraphs = text.split("\n\n");
    let problem = paragraphs.next().unwrap_or_default().trim_start_matches("error: ");
    let problem = problem.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let tip = paragraphs.find_map(|paragraph| paragraph.trim().strip_prefix("tip: ").map(str::to_owned));
    (problem, tip)
}

/// Splits the values of a flag as clap does.
fn split_values(arg: &Arg, values: Vec<OsString>) -> Vec<OsString> {
    let Some(delimiter) = arg.get_value_delimiter() else { return values };
    let split = |value: OsString| match value.to_str() {
        Some(text) => text.split(delimiter).map(OsString::from).collect(),
        None => vec![value],
    };
    values.into_iter().flat_map(split).collect()
}

/// The name that was probably meant.
fn similar<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let alike = names.into_iter().map(|other| (strsim::jaro(name, other), other));
    alike.filter(|(likeness, _)| *likeness > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, other)| other)
}

#[cfg(test)]
mod tests;
