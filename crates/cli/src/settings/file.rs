//! Settings from a configuration file (TOML), as people write it and as `record` does:
//!
//! ```toml
//! model-name = "mnist"        # optional: refuses the file for any other model
//!
//! [launch]                    # read by `launch` only
//! workers = 4
//!
//! [train]
//! mode = "sync"
//! learning-rate = 0.003
//!
//! [model]                     # the model's own flags
//! hidden = [200, 50]
//!
//! [join]                      # read by `join` only, which reads nothing else
//! threads = 4
//! ```
//!
//! Must not know what a value means: clap reads it like that of a flag.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;

use clap::{Arg, ArgAction};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::schema::{Schema, Table, is_switch, joined_by_commas, name, switch_value, takes_many};
use super::{Origin, Stated, similar, split_values};
use crate::config::read_text;
use crate::failure::Failure;
use crate::program;

/// The key that names the model.
pub(super) const MODEL_NAME: &str = "model-name";

/// Reads the settings of a command from a file.
pub(super) fn read(path: &Path, schema: &Schema) -> Result<Vec<Stated>, Failure> {
    let text = read_text(path, "the configuration file")?;
    Reader { path: path.display().to_string(), text: &text, schema }.read()
}

struct Reader<'a> {
    path: String,
    text: &'a str,
    schema: &'a Schema,
}

impl Reader<'_> {
    fn read(&self) -> Result<Vec<Stated>, Failure> {
        let document = DeTable::parse(self.text).map_err(|error| {
            let problem = error.message().trim_end().replace('\n', ", ");
            self.refuse(&error.span().unwrap_or_default(), &format!("this is not TOML: {problem}"))
        })?;
        let mut stated: Vec<Stated> = Vec::new();
        for (key, value) in in_order(document.get_ref()) {
            let table = Table::ALL.into_iter().find(|table| table.name() == key.get_ref());
            match (table, value.get_ref()) {
                (Some(table), DeValue::Table(entries)) => self.table(table, entries, &mut stated)?,
                (None, value) if is_model_name(key.get_ref()) => self.check_model(key, value)?,
                (Some(table), _) => {
                    let problem = format!("{} is a table: write [{0}] and its settings below", table.name());
                    return Err(self.refuse(&key.span(), &problem));
                }
                (None, _) => return Err(self.unknown_at_top(key)),
            }
        }
        Ok(stated)
    }

    fn table(&self, table: Table, entries: &DeTable<'_>, stated: &mut Vec<Stated>) -> Result<(), Failure> {
        // One file serves all commands.
        match (table, self.schema.verb.as_str()) {
            (Table::Launch, verb) if verb != "launch" => return self.check_other(table, &self.schema.launch, entries),
            (Table::Join, verb) if verb != "join" => return self.check_other(table, &self.schema.join, entries),
            // What there may be depends on the model.
            (Table::Train | Table::Model, "join") => return Ok(()),
            _ => {}
        }
        for (key, value) in in_order(entries) {
            let found = self.schema.find(key.get_ref()).filter(|arg| self.schema.table(&name(arg)) == table);
            // A run in one process records that it is not a task with shards, which `launch` can ignore.
            let is_of_tasks =
                self.schema.verb == "launch" && self.schema.cluster.contains(&key.get_ref().replace('_', "-"));
            if found.is_none() && table == Table::Train && is_of_tasks && value.get_ref().as_bool() == Some(false) {
                continue;
            }
            let Some(arg) = found else { return Err(self.unknown(table, key)) };
            if stated.iter().any(|stated| stated.name == name(arg)) {
                return Err(self.refuse(&key.span(), &format!("{} is set twice", name(arg))));
            }
            let values = self.values(arg, value)?;
            let origin = Origin::File { path: self.path.clone(), line: self.line(&key.span()) };
            stated.push(Stated { name: name(arg), values, origin });
        }
        Ok(())
    }

    /// Looks for mistakes in what only another command reads.
    fn check_other(&self, table: Table, known: &BTreeSet<String>, entries: &DeTable<'_>) -> Result<(), Failure> {
        for (key, _) in in_order(entries) {
            let hyphened = key.get_ref().replace('_', "-");
            if !known.contains(&hyphened) {
                let meant = similar(&hyphened, known.iter().map(String::as_str));
                let command = match (table, &self.schema.model) {
                    (Table::Join, _) => format!("{} join", program::name()),
                    (table, Some(_)) => self.schema.written_with(table.name()),
                    (table, None) => format!("{} {} MODEL", program::name(), table.name()),
                };
                let hint = meant.map(|meant| format!("did you mean {meant}?"));
                return Err(self
                    .refuse(&key.span(), &format!("{} has no setting {:?}", table.name(), key.get_ref()))
                    .with_hint(hint.unwrap_or_else(|| format!("`{command} --help` lists them all"))));
            }
        }
        Ok(())
    }

    fn values(&self, arg: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<OsString>, Failure> {
        let (name, span) = (name(arg), value.span());
        let scalar = |value: &Spanned<DeValue<'_>>| {
            scalar(value.get_ref()).map(OsString::from).ok_or_else(|| {
                let problem = format!("{name} cannot be a {}", value.get_ref().type_str());
                self.refuse(&value.span(), &problem)
            })
        };
        match value.get_ref() {
            DeValue::Boolean(is_given) if is_switch(arg) => Ok(vec![switch_value(arg, *is_given)]),
            _ if is_switch(arg) => Err(self.refuse(&span, &format!("{name} is a switch: write true or false"))),
            DeValue::Integer(_) if matches!(arg.get_action(), ArgAction::Count) => Ok(vec![scalar(value)?]),
            DeValue::Array(values) if joined_by_commas(arg) => {
                let values = values.iter().map(scalar).collect::<Result<Vec<_>, _>>()?;
                Ok(vec![values.join(",".as_ref())])
            }
            DeValue::Array(values) if takes_many(arg) => values.iter().map(scalar).collect(),
            DeValue::Array(_) => Err(self.refuse(&span, &format!("{name} takes one value, not a list"))),
            _ => Ok(split_values(arg, vec![scalar(value)?])),
        }
    }

    fn check_model(&self, key: &Spanned<std::borrow::Cow<'_, str>>, value: &DeValue<'_>) -> Result<(), Failure> {
        // A client of any model may come to `join`.
        let Some(model) = &self.schema.model else { return Ok(()) };
        let verb = &self.schema.verb;
        match value.as_str() {
            Some(name) if name == model => Ok(()),
            Some(name) => Err(self
                .refuse(&key.span(), &format!("this file is for {name}, not for {model}"))
                .with_hint(format!("{} {verb} {name} --config {}", program::name(), self.path))),
            None => Err(self.refuse(&key.span(), &format!("{MODEL_NAME} is the name of a model, such as {model:?}"))),
        }
    }

    fn unknown_at_top(&self, key: &Spanned<std::borrow::Cow<'_, str>>) -> Failure {
        let (key, span) = (key.get_ref(), key.span());
        let tables = "[train], [launch], [join] and [model]";
        let refusal = self.refuse(&span, &format!("{key:?} is not one of the tables {tables}"));
        match self.schema.find(key) {
            Some(arg) => refusal.with_hint(format!("put {key} below [{}]", self.schema.table(&name(arg)).name())),
            None => refusal
                .with_hint(similar(key, Table::ALL.map(Table::name)).map(|meant| format!("did you mean [{meant}]?"))),
        }
    }

    fn unknown(&self, table: Table, key: &Spanned<std::borrow::Cow<'_, str>>) -> Failure {
        let (key, span, schema) = (key.get_ref(), key.span(), self.schema);
        let hyphened = key.replace('_', "-");
        let elsewhere = schema.find(key).map(|arg| schema.table(&name(arg)));
        let of_others = || schema.models.iter().filter(|(_, flags)| flags.contains(&hyphened)).map(|(model, _)| *model);
        let owner = match table {
            Table::Model => schema.model.as_deref().unwrap_or_default(),
            table => table.name(),
        };
        if let Some(table) = elsewhere {
            let problem = format!("{owner} has no setting {key:?}");
            return self.refuse(&span, &problem).with_hint(format!("put it below [{}]", table.name()));
        }
        if table == Table::Train && schema.verb == "launch" && schema.cluster.contains(&hyphened) {
            let problem = format!("{key} is for tasks that are started one by one");
            let hint = "`launch` chooses the addresses of its tasks by itself; remove it, or use `train`";
            return self.refuse(&span, &problem).with_hint(hint.to_owned());
        }
        if table == Table::Model && of_others().next().is_some() {
            let others = of_others().collect::<Vec<_>>().join(", ");
            return self.refuse(&span, &format!("{key} is a setting of {others}, not of {owner}"));
        }
        let names: Vec<String> = schema.settings().map(name).collect();
        let here = names.iter().map(String::as_str).filter(|name| schema.table(name) == table);
        let meant = similar(&hyphened, here).map(|meant| format!("did you mean {meant}?"));
        let list = || format!("`{} --help` lists them all", schema.written());
        self.refuse(&span, &format!("{owner} has no setting {key:?}")).with_hint(meant.unwrap_or_else(list))
    }

    fn refuse(&self, span: &Range<usize>, problem: &str) -> Failure {
        Failure::usage(format!("{}: line {}: {problem}", self.path, self.line(span)))
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

fn is_model_name(key: &str) -> bool {
    key.replace('_', "-") == MODEL_NAME
}

type Entry<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// The entries of a table in the order of the file, so that the first mistake is reported first.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// A value as it is written on a command line.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            i128::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
        }
        // Kept as written: a number that is parsed twice may be rounded twice.
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}
