//! `windlass runs list`: the runs below a directory, one per line.

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

/// Fields that only `show` prints.
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
            // The run may have been removed meanwhile.
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

/// A run as JSON, without the longest fields.
fn brief(run: &Run) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(run).map_err(Failure::internal)?;
    if let Some(fields) = value.as_object_mut() {
        DETAILS.iter().for_each(|name| drop(fields.remove(*name)));
    }
    Ok(value)
}

/// A column: its heading, its value for a run, whether that is a number, and its priority for omission when the table
/// is too wide: the column with the highest number is dropped first, and 0 never.
struct Column {
    heading: &'static str,
    cell: fn(&Run) -> String,
    is_number: bool,
    goes: u8,
}

const COLUMNS: [Column; 10] = [
    column("run", 0, |run| figures::plain(&run.path.display().to_string())),
    column("state", 0, |run| {
        format!("{}{}", run.ending.word(), if run.problems.is_empty() { "" } else { " (damaged)" })
    }),
    column("model", 0, |run| or_dash(&run.model)),
    column("layout", 1, |run| run.layout.map_or("–".into(), |layout| layout.to_string())),
    column("mode", 2, |run| or_dash(&run.mode)),
    number("step", 0, |run| figures::count(run.step)),
    column("result", 0, |run| run.scores.first().map_or("–".into(), |score| figures::plain(&score.to_string()))),
    number("loss", 4, |run| run.loss.map_or("–".into(), figures::value)),
    column("began (UTC)", 3, |run| run.began.map_or("–".into(), minute)),
    number("size", 5, |run| figures::bytes(run.bytes)),
];

const fn column(heading: &'static str, goes: u8, cell: fn(&Run) -> String) -> Column {
    Column { heading, cell, is_number: false, goes }
}

const fn number(heading: &'static str, goes: u8, cell: fn(&Run) -> String) -> Column {
    Column { is_number: true, ..column(heading, goes, cell) }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "–".to_owned() } else { figures::plain(text) }
}

/// The runs in as many columns as fit, followed by a note on the omitted ones.
fn table(runs: &[Run], width: Option<u16>) -> String {
    let mut shown: Vec<&Column> = COLUMNS.iter().collect();
    let mut text = lines(runs, &shown, None);
    let is_too_wide =
        |text: &str| width.is_some_and(|width| text.lines().any(|line| line.chars().count() > width.into()));
    while is_too_wide(&text) {
        let Some(last) = shown.iter().map(|column| column.goes).max().filter(|goes| *goes > 0) else {
            text = lines(runs, &shown, width);
            break;
        };
        shown.retain(|column| column.goes != last);
        text = lines(runs, &shown, None);
    }
    let left_out: Vec<&str> = COLUMNS
        .iter()
        .map(|column| column.heading)
        .filter(|name| shown.iter().all(|column| column.heading != *name))
        .collect();
    if !left_out.is_empty() {
        text += &format!("\n\nnot shown for lack of room: {} (--json has all)", left_out.join(", "));
    }
    text
}

fn lines(runs: &[Run], columns: &[&Column], width: Option<u16>) -> String {
    let mut table = table_within(width);
    table.set_header(columns.iter().map(|column| column.heading));
    for (index, _) in columns.iter().enumerate().filter(|(_, column)| column.is_number) {
        table.column_mut(index).into_iter().for_each(|column| {
            column.set_cell_alignment(CellAlignment::Right);
        });
    }
    for run in runs {
        table.add_row(columns.iter().map(|column| (column.cell)(run)));
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

    #[test]
    fn a_table_that_is_too_wide_leaves_out_columns_and_says_which() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("a");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("run.toml"), "model-name = \"mnist\"\n").unwrap();
        let mut run = Run::read(&run).unwrap();
        run.path = "runs/mnist-1794985859".into();
        let wide = table(std::slice::from_ref(&run), Some(200));
        assert!(wide.contains("began (UTC)") && !wide.contains("not shown"), "{wide}");
        let narrow = table(&[run], Some(60));
        assert!(narrow.lines().take(2).all(|line| line.chars().count() <= 60), "{narrow}");
        assert!(
            narrow.contains("runs/mnist-1794985859") && narrow.contains("not shown for lack of room: "),
            "{narrow}"
        );
    }

    #[test]
    fn a_table_that_has_to_be_folded_as_well_says_what_it_leaves_out() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("run.toml"), "model-name = \"mnist\"\n").unwrap();
        let mut run = Run::read(directory.path()).unwrap();
        run.path = "runs/mnist-with-a-name-that-is-rather-long".into();
        let text = table(&[run], Some(45));
        let left_out = "not shown for lack of room: layout, mode, loss, began (UTC), size (--json has all)";
        assert!(text.ends_with(left_out), "{text}");
    }
}
