//! The table of tasks, one per line.

use ratatui::layout::Constraint;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

use crate::view::{Badge, ServerRow, View, WorkerRow};

/// The columns and their widths. The last takes the remaining space: 18 of 80 columns.
const COLUMNS: [(&str, u16); 10] = [
    ("task", 11),
    ("step", 9),
    ("heard", 6),
    ("comp", 4),
    ("net", 4),
    ("data", 4),
    ("wait", 4),
    ("CPU", 5),
    ("memory", 6),
    ("state", 0),
];
/// The left-aligned columns, which hold text; the others hold numbers and are right-aligned.
const LEFT: [&str; 2] = ["task", "state"];

pub(super) struct TaskTable {
    rows: Vec<(Style, [String; COLUMNS.len()])>,
}

impl TaskTable {
    pub(super) fn new(view: &View, tone: impl Fn(Badge) -> Style) -> Self {
        let servers = view.servers.iter().map(|row| (tone(row.badge), server(row)));
        let workers = view.workers.iter().map(|row| (tone(row.badge), worker(row)));
        Self { rows: servers.chain(workers).collect() }
    }

    /// How many tasks there are.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The height in lines, including the header.
    pub(super) fn len(&self) -> usize {
        1 + self.rows.len().max(1)
    }

    /// A table of `many` tasks, starting with task `first`.
    pub(super) fn widget(&self, first: usize, many: usize) -> Table<'static> {
        let shown = self.rows.iter().skip(first).take(many);
        let mut rows: Vec<Row<'static>> =
            shown.map(|(style, cells)| Row::new(aligned(cells.clone())).style(*style)).collect();
        if self.rows.is_empty() {
            rows.push(Row::new([Cell::from("no tasks")]));
        }
        let widths = COLUMNS.map(|(_, width)| if width > 0 { Constraint::Length(width) } else { Constraint::Fill(1) });
        let heads = COLUMNS.map(|(name, _)| name.to_owned());
        Table::new(rows, widths).header(Row::new(aligned(heads)).style(Modifier::BOLD)).column_spacing(1)
    }
}

fn aligned(cells: [String; COLUMNS.len()]) -> impl Iterator<Item = Cell<'static>> {
    COLUMNS.iter().zip(cells).map(|((name, _), text)| {
        let line = Line::raw(text);
        Cell::from(if LEFT.contains(name) { line } else { line.right_aligned() })
    })
}

fn worker(row: &WorkerRow) -> [String; COLUMNS.len()] {
    let [compute, network, data, wait] = row.split.map(|part| format!("{part:.0}%"));
    let name = row.task.map_or_else(String::new, |task| format!("{} {task}", row.badge.symbol));
    let (step, age) = (row.step.clone(), row.age.clone());
    let state = state(row.badge, &row.wait, row.is_chief);
    [name, step, age, compute, network, data, wait, row.cpu.clone(), row.memory.clone(), state]
}

fn server(row: &ServerRow) -> [String; COLUMNS.len()] {
    let none = || String::new();
    let name = format!("{} {}", row.badge.symbol, row.name);
    let state = state(row.badge, &row.wait, false);
    [name, none(), row.age.clone(), none(), none(), none(), none(), row.cpu.clone(), row.memory.clone(), state]
}

/// The tasks that it waits for, or else its state.
fn state(badge: Badge, wait: &str, is_chief: bool) -> String {
    match wait {
        "–" if is_chief => format!("{}, chief", badge.word),
        "–" => badge.word.to_owned(),
        wait => wait.to_owned(),
    }
}
