//! The table as text, Markdown, CSV and JSON.

use serde_json::{Map, Value, json};

use crate::columns::{COLUMNS, Column, Figure};
use crate::comparison::{Comparison, Row};

/// The number of spaces between two columns of text.
const GAP: usize = 2;
/// The placeholder for an unknown value.
const UNKNOWN: &str = "-";

/// A column as displayed.
struct Shown {
    heading: Vec<String>,
    /// The value of each row, and its spread.
    cells: Vec<(String, String)>,
    is_left: bool,
}

impl Shown {
    fn width(&self) -> usize {
        let cells = self.cells.iter().flat_map(|(value, spread)| [value, spread]);
        self.heading.iter().chain(cells).map(|text| text.chars().count()).max().unwrap_or(0)
    }

    fn pad(&self, text: &str) -> String {
        let width = self.width();
        if self.is_left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }
}

/// Renders the table as text that is at most `width` columns wide. A wider table continues below, under the same rows.
pub fn text(comparison: &Comparison, width: usize) -> String {
    let (names, columns) = shown(comparison);
    let mut blocks: Vec<Vec<&Shown>> = Vec::new();
    let mut used = 0;
    for column in &columns {
        let needed = GAP + column.width();
        match blocks.last_mut() {
            Some(block) if used + needed <= width => block.push(column),
            _ => {
                blocks.push(vec![&names, column]);
                used = names.width();
            }
        }
        used += needed;
    }
    let mut text = textwrap::fill(&comparison.title, width) + "\n\n";
    for block in blocks {
        text += &block_text(&block, comparison.rows.len());
        text.push('\n');
    }
    let nodes = nodes(comparison);
    if !nodes.is_empty() {
        text += &block_text(&nodes.iter().collect::<Vec<_>>(), nodes[0].cells.len());
        text.push('\n');
    }
    for note in comparison.notes() {
        text += &textwrap::fill(&note, textwrap::Options::new(width).subsequent_indent("  "));
        text.push('\n');
    }
    text
}

fn block_text(block: &[&Shown], rows: usize) -> String {
    let line = |cell: &dyn Fn(&Shown) -> String| {
        let cells: Vec<String> = block.iter().map(|column| column.pad(&cell(column))).collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_owned() + "\n"
    };
    let height = block.iter().map(|column| column.heading.len()).max().unwrap_or(0);
    let mut text = String::new();
    for index in 0..height {
        // Headings are aligned at the bottom.
        text += &line(&|column| {
            let above = height - column.heading.len();
            index.checked_sub(above).map(|index| column.heading[index].clone()).unwrap_or_default()
        });
    }
    for row in 0..rows {
        text += &line(&|column| column.cells[row].0.clone());
        if block.iter().any(|column| !column.is_left && !column.cells[row].1.is_empty()) {
            text += &line(&|column| column.cells[row].1.clone());
        }
    }
    text
}

/// Renders the table in Markdown.
pub fn markdown(comparison: &Comparison) -> String {
    let (names, columns) = shown(comparison);
    let all: Vec<&Shown> = std::iter::once(&names).chain(&columns).collect();
    let mut text = format!("{}\n\n{}", comparison.title, markdown_table(&all, comparison.rows.len()));
    let nodes = nodes(comparison);
    if !nodes.is_empty() {
        text += &format!("\n{}", markdown_table(&nodes.iter().collect::<Vec<_>>(), nodes[0].cells.len()));
    }
    for note in comparison.notes() {
        text += &format!("\n{note}\n");
    }
    text
}

fn markdown_table(columns: &[&Shown], rows: usize) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let escaped = |text: String| text.replace('|', "\\|");
    let mut text = line(columns.iter().map(|column| escaped(column.heading.join(" "))).collect());
    text += &line(columns.iter().map(|column| if column.is_left { "---" } else { "---:" }.to_owned()).collect());
    for row in 0..rows {
        let cell = |column: &&Shown| match &column.cells[row] {
            (value, spread) if column.is_left || spread.is_empty() => escaped(value.clone()),
            (value, spread) => format!("{value} ± {spread}"),
        };
        text += &line(columns.iter().map(cell).collect());
    }
    text
}

/// The displayed columns: the names of the rows, and every column that has a value in at least one of them.
fn shown(comparison: &Comparison) -> (Shown, Vec<Shown>) {
    let name = |row: &Row| {
        let is_repeated = row.finished().count() > 1;
        (row.name.clone(), if is_repeated { "  ±".to_owned() } else { String::new() })
    };
    let names =
        Shown { heading: vec!["layout".to_owned()], cells: comparison.rows.iter().map(name).collect(), is_left: true };
    let mut columns = Vec::new();
    for (index, column) in COLUMNS.iter().enumerate() {
        let figures: Vec<Option<Figure>> =
            (0..comparison.rows.len()).map(|row| comparison.figure(column, row)).collect();
        let references: Vec<Option<f64>> =
            comparison.rows.iter().map(|row| (column.reference)(&row.reference)).collect();
        let is_known = figures.iter().any(Option::is_some);
        let show = |value: Option<f64>| value.map_or_else(|| UNKNOWN.to_owned(), |value| column.show(value));
        if is_known {
            let heading = match (index, comparison.score_name()) {
                (0, Some(score)) => score.split('_').map(str::to_owned).collect(),
                _ => column.heading.iter().map(|line| (*line).to_owned()).collect(),
            };
            let cell = |figure: &Option<Figure>| {
                let spread = figure.and_then(|figure| figure.spread());
                (show(figure.map(|figure| figure.median)), spread.map(|spread| column.show(spread)).unwrap_or_default())
            };
            columns.push(Shown { heading, cells: figures.iter().map(cell).collect(), is_left: false });
        }
        if is_known && references.iter().any(Option::is_some) {
            let cells = references.iter().map(|value| (reference(*value, column), String::new())).collect();
            columns.push(Shown { heading: vec!["ref.".to_owned()], cells, is_left: false });
        }
    }
    (names, columns)
}

/// Formats a reference value with as many digits as it was given with.
fn reference(value: Option<f64>, column: &Column) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| (value * column.scale).to_string())
}

/// Columns with every host of every row, if there are runs on several hosts.
fn nodes(comparison: &Comparison) -> Vec<Shown> {
    let of_row = |row: &Row| row.finished().find_map(|run| run.utilization.clone()).map(|used| used.nodes);
    let by_row: Vec<_> = comparison.rows.iter().filter_map(|row| Some((row.name.clone(), of_row(row)?))).collect();
    if by_row.iter().all(|(_, nodes)| nodes.len() < 2) {
        return Vec::new();
    }
    let all: Vec<_> = by_row.iter().flat_map(|(name, nodes)| nodes.iter().map(move |node| (name, node))).collect();
    let column = |heading: &[&str], is_left, cell: &dyn Fn(usize) -> String| Shown {
        heading: heading.iter().map(|line| (*line).to_owned()).collect(),
        cells: (0..all.len()).map(|index| (cell(index), String::new())).collect(),
        is_left,
    };
    let megabytes = |bytes: f64| crate::columns::number(bytes / 1e6, 1);
    let percent = |share: f64| crate::columns::number(100.0 * share, 0);
    let mut columns = vec![
        column(&["layout"], true, &|index| all[index].0.clone()),
        column(&["node"], true, &|index| all[index].1.node.clone()),
        column(&["tasks"], true, &|index| all[index].1.role.name().to_owned()),
        column(&["CPU %"], false, &|index| percent(all[index].1.busy_cpus / f64::from(all[index].1.cores.max(1)))),
        column(&["MB/s", "received"], false, &|index| megabytes(all[index].1.received_bytes_per_second)),
        column(&["MB/s", "sent"], false, &|index| megabytes(all[index].1.sent_bytes_per_second)),
    ];
    if all.iter().any(|(_, node)| node.gpu_utilization.is_some()) {
        let gpu = |index: usize| all[index].1.gpu_utilization.map_or_else(|| UNKNOWN.to_owned(), percent);
        columns.push(column(&["GPU %"], false, &gpu));
    }
    columns
}

/// Renders the table as CSV: the median, smallest and largest value of each column, and the reference where there is
/// one.
pub fn csv(comparison: &Comparison) -> String {
    let mut heading = vec!["name".to_owned(), "layout".to_owned(), "runs".to_owned(), "score_name".to_owned()];
    for column in COLUMNS {
        heading.extend(["", "_min", "_max"].map(|suffix| format!("{}{suffix}", column.key)));
        if has_reference(comparison, column) {
            heading.push(format!("{}_reference", column.key));
        }
    }
    let mut text = csv_line(&heading);
    for (index, row) in comparison.rows.iter().enumerate() {
        let score = comparison.score_name().unwrap_or_default().to_owned();
        let mut cells = vec![row.name.clone(), row.layout.clone(), row.finished().count().to_string(), score];
        for column in COLUMNS {
            let figure = comparison.figure(column, index);
            let cell = |pick: fn(Figure) -> f64| figure.map(|figure| pick(figure).to_string()).unwrap_or_default();
            cells.extend([cell(|figure| figure.median), cell(|figure| figure.min), cell(|figure| figure.max)]);
            if has_reference(comparison, column) {
                let reference = (column.reference)(&row.reference);
                cells.push(reference.map(|value| value.to_string()).unwrap_or_default());
            }
        }
        text += &csv_line(&cells);
    }
    text
}

fn has_reference(comparison: &Comparison, column: &Column) -> bool {
    comparison.rows.iter().any(|row| (column.reference)(&row.reference).is_some())
}

fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

/// Renders everything that the table shows, and all scores, as JSON.
pub fn json(comparison: &Comparison) -> String {
    let rows: Vec<Value> = (0..comparison.rows.len()).map(|row| json_row(comparison, row)).collect();
    let value = json!({
        "title": comparison.title,
        "score": comparison.score_name(),
        "reference": comparison.reference,
        "layouts": rows,
        "notes": comparison.notes(),
    });
    format!("{value:#}\n")
}

fn json_row(comparison: &Comparison, index: usize) -> Value {
    let row = &comparison.rows[index];
    let figure = |figure: Option<Figure>| {
        figure
            .map(|Figure { median, min, max, count }| json!({"median": median, "min": min, "max": max, "runs": count}))
    };
    let mut columns = Map::new();
    for column in COLUMNS {
        let mut value = figure(comparison.figure(column, index)).unwrap_or_else(|| json!({}));
        if let (Some(object), Some(reference)) = (value.as_object_mut(), (column.reference)(&row.reference)) {
            object.insert("reference".to_owned(), json!(reference));
        }
        if value.as_object().is_some_and(|object| !object.is_empty()) {
            columns.insert(column.key.to_owned(), value);
        }
    }
    let mut scores = Map::new();
    for name in comparison.score_names() {
        let over_runs = Figure::of(row.finished().filter_map(|run| run.score(name)));
        scores.extend(figure(over_runs).map(|value| (name.to_owned(), value)));
    }
    let nodes: Vec<Value> =
        row.finished().map(|run| run.utilization.as_ref().map_or(Value::Null, |used| json!(used.nodes))).collect();
    json!({
        "name": row.name,
        "layout": row.layout,
        "runs": row.finished().count(),
        "failures": row.failures,
        "columns": columns,
        "scores": scores,
        "nodes": nodes,
    })
}
