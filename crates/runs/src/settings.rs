//! `run.toml`: all settings of a run, and the origin of each.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::{Spanned, Value};

use crate::files;
use crate::names::RUN_FILE;

/// The origin of a setting that was left at its default.
const DEFAULT: &str = "default";
/// A line that every such file has, however damaged the rest may be.
const HEADER: &str = "# All settings of this run, ";
/// Settings that matter even at their defaults.
const ESSENTIAL: [&str; 9] =
    ["ps", "workers", "mode", "optimizer", "learning-rate", "batch-size", "steps", "epochs", "seed"];
/// Settings that only determine where a run is kept or how it is shown.
const BESIDE: [&str; 7] = ["run-dir", "config", "format", "log-every", "threads", "cluster", "bind"];

/// A setting of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// `launch`, `train` or `model`.
    pub table: String,
    /// The flag's name.
    pub name: String,
    /// Its value, as written after the flag.
    pub value: String,
    /// `flag`, `default`, a variable, a file or a checkpoint.
    pub origin: String,
}

/// All settings of a run, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// The model.
    pub model: String,
    /// Every setting that has a value.
    pub settings: Vec<Setting>,
}

/// The tables are named one by one because serde loses the text positions of values that it has to buffer.
#[derive(Deserialize)]
struct File {
    #[serde(rename = "model-name")]
    name: String,
    #[serde(default)]
    launch: Table,
    #[serde(default)]
    train: Table,
    #[serde(default)]
    model: Table,
}

type Table = BTreeMap<String, Spanned<Value>>;

impl Settings {
    /// Reads the settings of a run directory; `None` if it has none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, String> {
        let Some(text) = files::read_if_there(&directory.join(RUN_FILE))? else { return Ok(None) };
        let text = String::from_utf8(text).map_err(|error| error.to_string())?;
        Self::parse(&text).map(Some)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let mut settings: Vec<(usize, Setting)> = Vec::new();
        for (table, rows) in [("launch", file.launch), ("train", file.train), ("model", file.model)] {
            for (name, value) in rows {
                let (span, value) = (value.span(), written(value.into_inner()));
                let origin = comment(&text[span.end..]).unwrap_or(DEFAULT).to_owned();
                settings.push((span.start, Setting { table: table.to_owned(), name, value, origin }));
            }
        }
        settings.sort_by_key(|(at, _)| *at);
        Ok(Self { model: file.name, settings: settings.into_iter().map(|(_, setting)| setting).collect() })
    }

    /// The value of a setting.
    pub fn get(&self, table: &str, name: &str) -> Option<&str> {
        let found = self.settings.iter().find(|setting| setting.table == table && setting.name == name);
        found.map(|setting| setting.value.as_str())
    }

    /// Whether the run was launched, rather than being a single process.
    pub fn is_launched(&self) -> bool {
        self.settings.iter().any(|setting| setting.table == "launch")
    }
}

impl Setting {
    /// Whether the setting distinguishes this run from others: it was set explicitly, or is always of interest.
    pub fn matters(&self) -> bool {
        let is_set = !self.is_default() && self.is_of_result();
        is_set || self.table == "model" || ESSENTIAL.contains(&&*self.name)
    }

    /// Whether the setting was left at its default.
    pub(crate) fn is_default(&self) -> bool {
        self.origin == DEFAULT
    }

    /// Whether the setting may affect what a run learns, or how fast.
    pub(crate) fn is_of_result(&self) -> bool {
        !BESIDE.contains(&&*self.name)
    }
}

/// Whether a text is a settings file, even a damaged one.
pub(crate) fn is_of_a_run(text: &str) -> bool {
    text.contains(HEADER) || Settings::parse(text).is_ok()
}

/// The text of a comment at the end of the line.
fn comment(rest: &str) -> Option<&str> {
    let line = rest.lines().next()?;
    line.split_once('#').map(|(_, comment)| comment.trim())
}

/// Formats a value as it is written after a flag.
fn written(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Array(values) => values.into_iter().map(written).collect::<Vec<_>>().join(","),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# windlass launch mnist --hidden 20,10
# All settings of this run, and where each comes from.
model-name = \"mnist\"

[launch]
workers = 2                         # default

[train]
steps = 400                         # WINDLASS_STEPS
data-dir = \"a # b\"                  # flag
log-every = 5                       # flag
# not set: epochs

[model]
hidden = [20, 10]                   # checkpoint 12-g1-a
variant = \"relu\"                    # default
";

    #[test]
    fn settings_come_with_their_origin_in_the_order_of_the_file() {
        let read = Settings::parse(TEXT).unwrap();
        assert_eq!((read.model.as_str(), read.is_launched()), ("mnist", true));
        let rows: Vec<_> =
            read.settings.iter().map(|row| format!("{} {} {}", row.name, row.value, row.origin)).collect();
        assert_eq!(
            rows,
            [
                "workers 2 default",
                "steps 400 WINDLASS_STEPS",
                "data-dir a # b flag",
                "log-every 5 flag",
                "hidden 20,10 checkpoint 12-g1-a",
                "variant relu default"
            ]
        );
        assert_eq!((read.get("train", "steps"), read.get("train", "epochs")), (Some("400"), None));
    }

    #[test]
    fn what_only_shows_a_run_does_not_matter() {
        let read = Settings::parse(TEXT).unwrap();
        let matter: Vec<&str> = read.settings.iter().filter(|row| row.matters()).map(|row| &*row.name).collect();
        assert_eq!(matter, ["workers", "steps", "data-dir", "hidden", "variant"]);
    }

    #[test]
    fn a_torn_file_is_known_by_its_first_lines_and_another_by_none() {
        assert!(is_of_a_run(&TEXT[..100]) && Settings::parse(&TEXT[..100]).is_err());
        assert!(!is_of_a_run("[package]\nname = \"run\"\n"));
    }
}
