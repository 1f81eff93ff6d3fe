//! How runs differ: in their settings and in their results.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::run::Run;
use crate::settings::Setting;

/// The differences between runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The run directories, in the order they were named.
    pub runs: Vec<String>,
    /// Settings that differ between the runs.
    pub settings: Vec<Row>,
    /// The number of settings that are the same in all runs.
    pub same_settings: usize,
    /// Results, whether or not they differ.
    pub results: Vec<Row>,
}

/// A setting or result of all runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The name of the setting or result.
    pub name: String,
    /// One value per run.
    pub values: Vec<Cell>,
}

/// A setting or result of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A number.
    Number(f64),
    /// A part of a whole, from 0 to 1.
    Fraction(f64),
    /// Bytes.
    Bytes(u64),
    /// A count.
    Count(u64),
    /// Anything else.
    Text(String),
    /// The run has no such value.
    None,
}

impl Comparison {
    /// Compares runs.
    pub fn new(runs: &[Run]) -> Self {
        let (settings, same_settings) = settings(runs);
        Self {
            runs: runs.iter().map(|run| run.path.display().to_string()).collect(),
            settings,
            same_settings,
            results: results(runs),
        }
    }
}

impl Row {
    fn of<'a>(name: &str, runs: &'a [Run], cell: impl FnMut(&'a Run) -> Cell) -> Self {
        Self { name: name.to_owned(), values: runs.iter().map(cell).collect() }
    }

    fn differs(&self) -> bool {
        self.values.iter().any(|value| *value != self.values[0])
    }

    fn is_known(&self) -> bool {
        self.values.iter().any(|value| *value != Cell::None)
    }
}

/// The settings that differ, and the number of those that do not. Settings that only determine where a run is kept or
/// how it is shown are ignored.
fn settings(runs: &[Run]) -> (Vec<Row>, usize) {
    let text = |text: &str| if text.is_empty() { Cell::None } else { Cell::Text(text.to_owned()) };
    let layout = |run: &Run| run.layout.map_or(Cell::None, |layout| Cell::Text(layout.to_string()));
    let mut rows = vec![
        Row::of("model", runs, |run| text(&run.model)),
        Row::of("layout", runs, layout),
        Row::of("mode", runs, |run| text(&run.mode)),
        Row::of("optimizer", runs, |run| text(&run.optimizer)),
    ];
    // These settings are covered by the rows above.
    let mut seen: BTreeSet<(&str, &str)> = ["ps", "workers", "colocate"].map(|name| ("launch", name)).into();
    seen.extend(["mode", "staleness", "optimizer", "ps-hosts", "worker-hosts", "colocate"].map(|name| ("train", name)));
    let all = runs.iter().filter_map(|run| run.settings.as_ref()).flat_map(|settings| &settings.settings);
    for setting in all.filter(|setting| setting.is_of_result()) {
        let (table, name) = (setting.table.as_str(), setting.name.as_str());
        if seen.insert((table, name)) && !is_implied(runs, table, name) {
            let value = |run: &Run| run.settings.as_ref().and_then(|all| all.get(table, name)).map_or(Cell::None, text);
            rows.push(Row::of(name, runs, value));
        }
    }
    let all = rows.len();
    rows.retain(Row::differs);
    let same = all - rows.len();
    (rows, same)
}

/// Whether some runs have a setting at its default and the others lack it: `train` has no `--restart`, and an earlier
/// version may lack any flag.
fn is_implied(runs: &[Run], table: &str, name: &str) -> bool {
    let all = || runs.iter().filter_map(|run| run.settings.as_ref());
    let is_it = |setting: &&Setting| setting.table == table && setting.name == name;
    let known: Vec<&Setting> = all().filter_map(|settings| settings.settings.iter().find(is_it)).collect();
    let is_same_default = |setting: &&Setting| setting.is_default() && setting.value == known[0].value;
    known.len() < all().count() && known.iter().all(is_same_default)
}

/// All results for which at least one run has a value.
fn results(runs: &[Run]) -> Vec<Row> {
    let number = |value: Option<f64>| value.map_or(Cell::None, Cell::Number);
    let of_summary = |part: fn(&crate::Summary) -> f64| {
        move |run: &Run| run.summary.as_ref().map_or(Cell::None, |summary| Cell::Number(part(summary)))
    };
    let mut rows = vec![
        Row::of("state", runs, |run| Cell::Text(run.ending.word().to_owned())),
        Row::of("steps", runs, |run| Cell::Count(run.step)),
        Row::of("loss", runs, |run| number(run.loss)),
    ];
    let mut names: Vec<&str> = Vec::new();
    for score in runs.iter().flat_map(|run| &run.scores) {
        if !names.contains(&&*score.name) {
            names.push(&score.name);
        }
    }
    for name in names {
        let cell = |run: &Run| match run.scores.iter().find(|score| score.name == name) {
            Some(score) if score.is_fraction => Cell::Fraction(score.value),
            Some(score) => Cell::Number(score.value),
            None => Cell::None,
        };
        rows.push(Row::of(name, runs, cell));
    }
    rows.extend([
        Row::of("seconds", runs, of_summary(|summary| summary.wall_seconds)),
        Row::of("seconds to first step", runs, of_summary(|summary| summary.first_step_seconds)),
        Row::of("steps/s", runs, of_summary(|summary| summary.steps_per_second)),
        Row::of("samples/s", runs, of_summary(|summary| summary.samples_per_second)),
        Row::of("median step ms", runs, of_summary(|summary| summary.step_ms.p50)),
        Row::of("gradients dropped", runs, of_summary(|summary| summary.dropped_gradients as f64)),
        Row::of("staleness", runs, of_summary(|summary| summary.mean_staleness)),
        Row::of("traffic per step", runs, |run| {
            let traffic = run.summary.as_ref().and_then(crate::Summary::traffic_per_step);
            traffic.map_or(Cell::None, |bytes| Cell::Bytes(bytes.round() as u64))
        }),
        Row::of("size on disk", runs, |run| Cell::Bytes(run.bytes)),
    ]);
    rows.retain(Row::is_known);
    rows
}
