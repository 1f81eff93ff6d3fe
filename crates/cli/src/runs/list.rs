//! `windlass runs list`: the runs below a directory, a line each.

use std::cmp::Reverse;
use std::path::Path;

use comfy_table::CellAlignment;
use serde_json::Value;
use windlass_page::figures;
use windlass_runs::names::RUNS;
use windlass_runs::{Found, Run, find};

use super::{failure, minute};
use crate::failure::Failure;
use crate::output::{print_json, print_line, table_within};
use crate::terminal::{self, Terminal};

/// What only `show` tells.
const DETAILS: [&str; 4] = ["settings", "summary", "last_status", "checkpoints"];

pub(super) fn run(directory: &Path, json: bool) -> Result<(), Failure> {
    let is_default = directory == Path::new(RUNS) && !directory.exists();
    let found = if is_default { Found::default() } else { find(directory).map_err(failure)? };
    let warn = |text: &dyn std::fmt::Display| Terminal::default().print_error(&format!("warning: {text}"));
    found.unreadable.iter().for_each(|error| warn(error));
    let mut runs = Vec::new();
    for path in &found.runs {
        match Run::read(path) {
            Ok(run) => runs.push(run),
            // It may have been removed meanwhile.
            Err(error) => warn(&error),
        }
    }
    runs.sort_by_key(|run| Reverse(run.began));
    if json {
        return print_json(&runs.iter().map(brief).collect::<Result<Vec<_>, _>>()?);
    }
    if runs.is_empty() {
        print_line(&format!("no runs in {}", directory.display()));
        return Ok(());
    }
    print_line(&table(&runs, terminal::columns()));
    Ok(())
}

/// A run as JSON, without what takes pages.
fn brief(run: &Run) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(run).map_err(Failure::internal)?;
    if let Some(fields) = value.as_object_mut() {
        DETAILS.iter().for_each(|name| drop(fields.remove(*name)));
    }
    Ok(value)
}

fn table(runs: &[Run], columns: Option<u16>) -> String {
    let mut table = table_within(columns);
    table.set_header(["run", "state", "model", "layout", "mode", "step", "result", "loss", "began (UTC)", "size"]);
    for column in [5, 7, 9] {
        table.column_mut(column).into_iter().for_each(|column| {
            column.set_cell_alignment(CellAlignment::Right);
        });
    }
    let or_dash = |text: &str| if text.is_empty() { "–".to_owned() } else { figures::plain(text) };
    for run in runs {
        let damage = if run.problems.is_empty() { "" } else { " (damaged)" };
        table.add_row([
            figures::plain(&run.path.display().to_string()),
            format!("{}{damage}", run.ending.word()),
            or_dash(&run.model),
            run.layout.map_or("–".into(), |layout| layout.to_string()),
            or_dash(&run.mode),
            figures::count(run.step),
            run.scores.first().map_or("–".into(), |score| figures::plain(&score.to_string())),
            run.loss.map_or("–".into(), figures::value),
            run.began.map_or("–".into(), minute),
            figures::bytes(run.bytes),
        ]);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_disk_cannot_move_the_cursor() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("a\u{1b}[2Jb");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("run.toml"), "model-name = \"m\\u001b[2Jn\"\n").unwrap();
        let text = table(&[Run::read(&run).unwrap()], None);
        assert!(!text.contains('\u{1b}') && text.contains("m\u{fffd}[2Jn"), "{text:?}");
    }
}
