//! All settings of a run with their values, and their text form, which `file` reads.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches};
use windlass_core::lifecycle::exit_code;

use super::file::MODEL_NAME;
use super::schema::{Schema, Table, arguments, is_switch, name, switch_value, takes_many, values};
use super::{Origin, Stated, environment};
use crate::failure::Failure;

/// Flags for a single action, which must not be repeated by a run that reads the file.
const ONCE: [&str; 1] = ["take-over"];
/// Flags whose value is a path or one of some fixed words.
const PLACES: [&str; 2] = ["checkpoint-dir", "resume"];
const WORDS_FOR_PLACES: [&str; 2] = ["auto", "never"];
/// The column in which comments start, unless the value is longer.
const COMMENTS_AT: usize = 34;

/// Every setting of a command.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    model: Option<String>,
    rows: Vec<Row>,
    /// What must be repeated on the command line because a file cannot hold it: arguments without a name, values that
    /// are not Unicode, and flags for a single action.
    beyond_files: Vec<OsString>,
    /// The variables that could set something, whether or not they do.
    variables: Vec<String>,
    /// The variables that do set something.
    set_by_variables: Vec<String>,
}

#[derive(Debug, Clone)]
struct Row {
    table: Table,
    name: String,
    /// Empty if the setting is neither set nor has a default.
    values: Vec<OsString>,
    origin: Origin,
    form: Form,
    is_list: bool,
}

/// The form in which a setting's values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A switch, with the value that it has when given.
    Switch(bool),
    Number,
    Text,
    Path,
}

impl Settings {
    pub(super) fn new(schema: &Schema, matches: &ArgMatches, stated: &BTreeMap<String, Stated>) -> Self {
        let variables = environment::variables(schema);
        let set_by_variables = stated.values().filter_map(|stated| match &stated.origin {
            Origin::Variable(variable) => Some(variable.clone()),
            _ => None,
        });
        let set_by_variables = set_by_variables.collect();
        let mut settings = Self { model: schema.model.clone(), variables, set_by_variables, ..Self::default() };
        for arg in schema.command.get_arguments() {
            let (name, values) = (name(arg), values(matches, arg));
            let is_setting = schema.find(&name).is_some_and(|found| found.get_id() == arg.get_id());
            if !is_setting {
                settings.beyond_files.extend(unnamed(arg, &values));
                continue;
            }
            let origin = stated.get(&name).map_or(Origin::Default, |stated| stated.origin.clone());
            let (table, form, is_list) = (schema.table(&name), form(arg), takes_many(arg));
            let row = Row { table, name, values, origin, form, is_list };
            if !row.is_for_files() {
                settings.beyond_files.extend(arguments(arg, &row.values));
            }
            settings.rows.push(row);
        }
        settings
    }

    /// Adds the variable that names the file.
    pub(super) fn with_file_by(self, variable: Option<String>) -> Self {
        let set_by_variables = self.set_by_variables.into_iter().chain(variable).collect();
        Self { set_by_variables, ..self }
    }

    /// Whether the user has made this setting, rather than a checkpoint or a default.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.origin(name).is_some_and(Origin::is_user)
    }

    pub(crate) fn origin(&self, name: &str) -> Option<&Origin> {
        self.rows.iter().find(|row| row.name == name).map(|row| &row.origin)
    }

    /// See the field.
    pub(crate) fn set_by_variables(&self) -> &[String] {
        &self.set_by_variables
    }

    /// See the field.
    pub(crate) fn variables(&self) -> &[String] {
        &self.variables
    }

    /// See the field.
    pub(crate) fn beyond_files(&self) -> &[OsString] {
        &self.beyond_files
    }

    /// Replaces the value of a setting with the final one of the run. Its origin remains.
    pub(crate) fn resolve(&mut self, name: &str, values: impl IntoIterator<Item = String>) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.name == name) {
            row.values = values.into_iter().map(OsString::from).collect();
        }
    }

    /// Adds to a failure where the setting that it mentions was made. Flags are not added, since the user sees them.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        let is_about = |row: &&Row| mentions(&failure.message, &row.name) && row.origin.is_user();
        let is_hidden = |row: &&Row| row.origin != Origin::Flag;
        let places = self.rows.iter().filter(is_about).filter(is_hidden).map(Row::said);
        let places = places.collect::<Vec<_>>().join(", ");
        let is_of_settings = [exit_code::USAGE, exit_code::CHECKPOINT].contains(&failure.exit_code);
        match failure.hint.clone() {
            _ if places.is_empty() || !is_of_settings => failure,
            Some(hint) => failure.with_hint(format!("{hint} ({places})")),
            None => failure.with_hint(places),
        }
    }

    /// All settings as a configuration file.
    pub(crate) fn to_toml(&self) -> String {
        let mut text = String::new();
        if let Some(model) = &self.model {
            text += &format!("{MODEL_NAME} = {}\n", quoted(model));
        }
        for table in Table::ALL {
            let rows = || self.rows.iter().filter(|row| row.table == table && row.is_for_files());
            if rows().next().is_none() {
                continue;
            }
            let blank = if text.is_empty() { "" } else { "\n" };
            text += &format!("{blank}[{}]\n", table.name());
            for row in rows().filter(|row| !row.values.is_empty()) {
                let line = format!("{} = {}", row.name, row.literal());
                text += &format!("{line:<COMMENTS_AT$}  # {}\n", row.origin.to_string().replace(char::is_control, "?"));
            }
            let unset: Vec<&str> = rows().filter(|row| row.values.is_empty()).map(|row| &*row.name).collect();
            if !unset.is_empty() {
                let options = textwrap::Options::new(80).initial_indent("# not set: ").subsequent_indent("#   ");
                text +=
                    &textwrap::fill(&unset.join(", "), options.word_splitter(textwrap::WordSplitter::NoHyphenation));
                text.push('\n');
            }
        }
        text
    }
}

impl Row {
    fn said(&self) -> String {
        format!("--{} is set by {}", self.name, self.origin.place())
    }

    fn is_for_files(&self) -> bool {
        !ONCE.contains(&&*self.name) && self.values.iter().all(|value| value.to_str().is_some())
    }

    fn literal(&self) -> String {
        let literals = self.values.iter().map(|value| self.one(&value.to_string_lossy())).collect::<Vec<_>>();
        if self.is_list { format!("[{}]", literals.join(", ")) } else { literals.concat() }
    }

    fn one(&self, value: &str) -> String {
        match self.form {
            Form::Switch(given) => (value == given.to_string()).to_string(),
            Form::Number if is_number(value) => value.to_owned(),
            // Made absolute, so that the file means the same wherever it is read.
            Form::Path if self.origin.is_user() => quoted(&absolute(value)),
            _ => quoted(value),
        }
    }
}

/// Whether a text mentions a flag, with hyphens or underscores.
fn mentions(text: &str, name: &str) -> bool {
    let (text, flag) = (text.replace('_', "-"), format!("--{name}"));
    let is_part = |rest: &str| rest.starts_with(|next: char| next == '-' || next.is_alphanumeric());
    text.match_indices(&flag).any(|(at, _)| !is_part(&text[at + flag.len()..]))
}

fn form(arg: &Arg) -> Form {
    let is = |of: TypeId| arg.get_value_parser().type_id() == of;
    let numbers = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i8>(),
        TypeId::of::<i16>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<isize>(),
        TypeId::of::<f32>(),
        TypeId::of::<f64>(),
    ];
    if is_switch(arg) {
        Form::Switch(switch_value(arg, true) == *"true")
    } else if matches!(arg.get_action(), ArgAction::Count) || numbers.into_iter().any(is) {
        Form::Number
    } else if is(TypeId::of::<PathBuf>()) || PLACES.contains(&&*name(arg)) {
        Form::Path
    } else {
        Form::Text
    }
}

/// Whether a number has the same form in TOML as on the command line.
fn is_number(value: &str) -> bool {
    let is_float = value.contains(['.', 'e', 'E']);
    let parsed = toml::de::DeValue::parse(value);
    parsed.is_ok_and(|parsed| parsed.get_ref().is_float() && is_float || parsed.get_ref().is_integer())
        && (is_float || value.parse::<i64>().is_ok())
}

/// A TOML string on one line.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|character| match character {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        character if character.is_control() => format!("\\u{:04X}", u32::from(character)),
        character => character.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

fn absolute(place: &str) -> String {
    if place.contains("://") || WORDS_FOR_PLACES.contains(&place) {
        return place.to_owned();
    }
    std::path::absolute(Path::new(place)).unwrap_or_else(|_| place.into()).display().to_string()
}

/// An argument without a long name, as it was given.
fn unnamed(arg: &Arg, values: &[OsString]) -> Vec<OsString> {
    match (arg.get_long(), arg.get_short()) {
        (Some(_), _) => Vec::new(),
        (None, None) => values.to_vec(),
        (None, Some(short)) => {
            let flag = OsString::from(format!("-{short}"));
            let is_switch_on = |value: &OsString| *value == switch_value(arg, true);
            match arg.get_action() {
                ArgAction::SetTrue | ArgAction::SetFalse => {
                    values.iter().filter(|value| is_switch_on(value)).map(|_| flag.clone()).collect()
                }
                ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version => Vec::new(),
                _ => values.iter().flat_map(|value| [flag.clone(), value.clone()]).collect(),
            }
        }
    }
}
