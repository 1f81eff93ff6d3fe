//! Layouts side by side with their results, and the notes below the table.

use std::path::Path;

use crate::columns::{COLUMNS, Column, Figure, Sample};
use crate::error::RunError;
use crate::file::{Reference, ReferenceSource};
use crate::measured::Measured;
use crate::plan::Plan;

/// The results of a comparison so far.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// A title for the comparison.
    pub title: String,
    /// The name of the score that is shown.
    pub score: Option<String>,
    /// Where reference values come from.
    pub reference: Option<ReferenceSource>,
    /// The layouts.
    pub rows: Vec<Row>,
}

/// A layout, or a run directory.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// The name of the row.
    pub name: String,
    /// The layout of its runs.
    pub layout: String,
    /// Its runs by repetition; `None` where there is no result.
    pub runs: Vec<Option<Measured>>,
    /// The values that its results are compared with.
    pub reference: Reference,
    /// Why some of its runs failed.
    pub failures: Vec<String>,
}

impl Row {
    /// The runs that have finished.
    pub fn finished(&self) -> impl Iterator<Item = &Measured> {
        self.runs.iter().flatten()
    }
}

impl Comparison {
    /// Creates the comparison of a plan, without results yet.
    pub fn new(plan: &Plan) -> Self {
        let row = |entry: &crate::plan::Entry| Row {
            name: entry.name.clone(),
            layout: entry.layout.to_string(),
            runs: vec![None; plan.repeat as usize],
            reference: entry.reference.clone(),
            failures: Vec::new(),
        };
        Self {
            title: plan.title.clone().unwrap_or_else(|| plan.model.clone()),
            score: plan.score.clone(),
            reference: plan.reference.clone(),
            rows: plan.entries.iter().map(row).collect(),
        }
    }

    /// Creates a comparison of existing run directories, one per row.
    ///
    /// # Errors
    /// Fails if a directory holds no finished run or is damaged.
    pub fn of_directories(directories: &[impl AsRef<Path>], score: Option<String>) -> Result<Self, RunError> {
        let read = |directory: &Path| -> Result<Row, RunError> {
            let run = Measured::read(directory)?;
            Ok(Row { layout: run.layout(), runs: vec![Some(run)], ..Row::default() })
        };
        let mut rows = directories.iter().map(|path| read(path.as_ref())).collect::<Result<Vec<_>, _>>()?;
        for (row, name) in rows.iter_mut().zip(names(directories)) {
            row.name = name;
        }
        let mut models: Vec<&str> = rows.iter().flat_map(Row::finished).map(|run| &*run.summary.model).collect();
        models.dedup();
        Ok(Self { title: models.join(", "), score, reference: None, rows })
    }

    /// The name of the score that is shown: the one asked for, or the main score of the first run.
    pub fn score_name(&self) -> Option<&str> {
        let mut finished = self.rows.iter().flat_map(Row::finished);
        self.score.as_deref().or_else(|| finished.next().and_then(Measured::main_score))
    }

    /// All scores that the runs have.
    pub fn score_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.rows.iter().flat_map(Row::finished).flat_map(|run| &run.summary.metrics.0) {
            if !names.contains(&&**name) {
                names.push(name);
            }
        }
        names
    }

    /// The value of a column in a row.
    pub fn figure(&self, column: &Column, row: usize) -> Option<Figure> {
        column.figure(self.samples(row))
    }

    /// A row's runs, each with the single-process run of the same repetition, or else with the first one. If several
    /// rows are single-process, the nearest at or above this row counts: a comparison may have parts.
    fn samples(&self, row: usize) -> impl Iterator<Item = Sample<'_>> {
        let is_single = |row: &&Row| row.finished().any(Measured::is_single);
        let above = self.rows[..=row].iter().rev().find(is_single);
        let singles = above.or_else(|| self.rows.iter().find(is_single)).map(|row| &*row.runs);
        let score = self.score_name();
        self.rows[row].runs.iter().enumerate().filter_map(move |(repetition, run)| {
            let single =
                singles.and_then(|runs| runs.get(repetition)?.as_ref().or_else(|| runs.iter().flatten().next()));
            Some(Sample { run: run.as_ref()?, single, score })
        })
    }

    /// The notes below the table.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let repeated = self.rows.iter().map(|row| row.finished().count()).max().unwrap_or(0);
        if repeated > 1 {
            notes.push(format!("Medians of {repeated} runs; ± is half the range."));
        }
        notes.extend(self.reference.as_ref().and_then(|reference| self.verdict(reference)));
        let lacks_use = |run: &&Measured| run.utilization.is_none();
        if self.rows.iter().flat_map(Row::finished).filter(lacks_use).any(Measured::is_short) {
            notes.push("Runs of less than about 3 s are too short to tell which CPUs they used.".to_owned());
        }
        let has_no_record = |row: &&Row| row.finished().filter(lacks_use).any(|run| !run.is_short());
        let unrecorded: Vec<&str> = self.rows.iter().filter(has_no_record).map(|row| &*row.name).collect();
        if !unrecorded.is_empty() {
            notes.push(format!("CPUs and memory were not recorded (utilization.jsonl): {}.", unrecorded.join(", ")));
        }
        for row in &self.rows {
            let warnings = row.finished().filter_map(|run| run.summary.warning.as_ref());
            notes.extend(warnings.map(|warning| format!("Warning: {}: {}", row.name, warning.message)));
            let resumed = row.finished().filter_map(Measured::resumed_at);
            notes.extend(resumed.map(|step| {
                let step = crate::columns::number(step as f64, 0);
                format!("{} was resumed at step {step}: step times, waits and traffic are those since then.", row.name)
            }));
            notes.extend(row.failures.iter().map(|failure| format!("{} failed: {failure}", row.name)));
            let missing = row.runs.iter().filter(|run| run.is_none()).count().saturating_sub(row.failures.len());
            if missing > 0 {
                notes.push(format!("{}: {missing} of {} runs are missing.", row.name, row.runs.len()));
            }
        }
        notes
    }

    /// Compares the scores with those of the reference, in a sentence.
    fn verdict(&self, reference: &ReferenceSource) -> Option<String> {
        let score = self.score_name()?.replace('_', " ");
        let compared: Vec<(&Row, f64, f64)> = self
            .rows
            .iter()
            .enumerate()
            .filter_map(|(index, row)| Some((row, self.figure(&COLUMNS[0], index)?.median, row.reference.score?)))
            .collect();
        let name = &reference.name;
        let Some(tolerance) = reference.tolerance.filter(|_| !compared.is_empty()) else {
            return Some(format!("ref.: {name}."));
        };
        let is_far = |(_, own, reference): &&(&Row, f64, f64)| (own - reference).abs() > tolerance;
        let far: Vec<String> = compared
            .iter()
            .filter(is_far)
            .map(|(row, own, reference)| format!("{} ({own:.4} and {reference})", row.name))
            .collect();
        let near = compared.len() - far.len();
        let but = if far.is_empty() { String::new() } else { format!("; not of {}", far.join(", ")) };
        let total = compared.len();
        Some(format!("ref.: {name}. The {score} of {near} of {total} layouts is within {tolerance} of it{but}."))
    }
}

/// Names for directories: as many of their last path components as it takes to tell them apart.
fn names(directories: &[impl AsRef<Path>]) -> Vec<String> {
    let parts = |path: &Path| -> Vec<String> {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        whole.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
    };
    let all: Vec<Vec<String>> = directories.iter().map(|path| parts(path.as_ref())).collect();
    let longest = all.iter().map(Vec::len).max().unwrap_or(1);
    let last = |parts: &Vec<String>, count: usize| parts[parts.len().saturating_sub(count)..].join("/");
    let of_length = |count| all.iter().map(|parts| last(parts, count)).collect::<Vec<_>>();
    let is_unique = |names: &Vec<String>| (1..names.len()).all(|index| !names[..index].contains(&names[index]));
    (1..=longest).map(of_length).find(is_unique).unwrap_or_else(|| of_length(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_called_by_what_tells_them_apart() {
        assert_eq!(names(&["runs/a", "/tmp/b/"]), ["a", "b"]);
        assert_eq!(names(&["runs/x/a", "runs/y/a"]), ["x/a", "y/a"]);
        assert_eq!(names(&["/r/a", "/r/a"]), ["//r/a", "//r/a"]);
    }
}
