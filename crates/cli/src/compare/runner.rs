//! Runs the plan of a comparison, one run after the other. Finished runs are kept, so repeating the command continues
//! an interrupted comparison.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use windlass_compare::{Comparison, Measured, Plan, PlannedRun, RunRecord};
use windlass_core::lifecycle::exit_code;
use windlass_worker::event::Event;

use super::child::{Child, Ended, Message};
use super::{check_score, unusable_run, write_files};
use crate::failure::Failure;
use crate::output::count;
use crate::progress::Extent;
use crate::signals::{self, StopSignal, Turn, Turns};
use crate::terminal::Terminal;

/// The time between two lines about a run, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Runner {
    runs: Vec<PlannedRun>,
    output: PathBuf,
    comparison: Comparison,
    terminal: Terminal,
    messages: mpsc::Receiver<Message>,
    sender: mpsc::Sender<Message>,
    turns: Turns,
    stopped_by: Option<StopSignal>,
    /// The exit code of the first failed run.
    failed: Option<u8>,
}

impl Runner {
    /// Reads existing results before anything is run.
    pub(super) fn new(plan: Plan, output: PathBuf) -> Result<Self, Failure> {
        let runs = plan.runs();
        for run in &runs {
            RunRecord::find(&output.join(&run.directory), &run.arguments).map_err(unusable_run)?;
        }
        let (sender, messages) = mpsc::channel();
        let signals = sender.clone();
        signals::forward(move |signal| signals.send(Message::Signal(signal)).is_ok())?;
        Ok(Self {
            runs,
            output,
            comparison: Comparison::new(&plan),
            terminal: Terminal::with_bars(),
            messages,
            sender,
            turns: Turns::default(),
            stopped_by: None,
            failed: None,
        })
    }

    pub(super) fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    pub(super) fn say_where(&self) {
        self.terminal.print_note(&format!("table, picture and runs are in {}", self.output.display()));
    }

    /// Runs until all runs have ended or the user stops the comparison.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let runs = self.runs.clone();
        for (index, run) in runs.iter().enumerate() {
            let label = format!("[{}/{}] {}", index + 1, runs.len(), run.name);
            self.ensure(run, &label)?;
            if let Some(signal) = self.stopped_by {
                return Err(self.stopped(signal, run));
            }
            // The scores of a model are known only after its first run; from then on every layout has the same.
            check_score(&self.comparison)?;
        }
        match self.failed {
            None => Ok(()),
            Some(exit_code) => {
                let failures: usize = self.comparison.rows.iter().map(|row| row.failures.len()).sum();
                let message = format!("{failures} of {} failed", count(runs.len(), "run"));
                let hint = "the same command tries them again".to_owned();
                Err(Failure { exit_code, message, hint: Some(hint) })
            }
        }
    }

    /// Makes sure that a run has a result, or a reason why it has none.
    fn ensure(&mut self, run: &PlannedRun, label: &str) -> Result<(), Failure> {
        let directory = self.output.join(&run.directory);
        let record = RunRecord::find(&directory, &run.arguments).map_err(unusable_run)?;
        let is_done = record.is_some_and(|record| record.finished);
        let began = Instant::now();
        if !is_done {
            let mut record = RunRecord { arguments: run.arguments.clone(), finished: false, failure: None };
            self.write_record(&record, &directory)?;
            let ended = self.execute(run, &directory, label)?;
            if self.stopped_by.is_some() {
                return Ok(());
            }
            record.failure = ended.failure(&directory);
            record.finished = record.failure.is_none();
            self.write_record(&record, &directory)?;
            if let Some(failure) = record.failure {
                return self.note_failure(run, label, ended, failure);
            }
        }
        let measured = Measured::read(&directory).map_err(unusable_run)?;
        let how = if is_done { "was run before".to_owned() } else { format!("{:.1} s", began.elapsed().as_secs_f64()) };
        self.terminal.print_note(&format!("{label}: {}, {how}", describe(&measured)));
        self.comparison.rows[run.entry].runs[run.repetition as usize - 1] = Some(measured);
        write_files(&self.comparison, &self.output)
    }

    fn note_failure(&mut self, run: &PlannedRun, label: &str, ended: Ended, failure: String) -> Result<(), Failure> {
        // A problem with the data affects every layout. A network that is too large for one layout may fit another.
        let has_finished = self.comparison.rows.iter().any(|row| row.finished().next().is_some());
        if ended.exit_code() == exit_code::USAGE && self.failed.is_none() && !has_finished {
            return Err(Failure::usage(format!("{}: {failure}", run.name)));
        }
        self.terminal.print_error(&format!("{label} failed: {failure}"));
        self.comparison.rows[run.entry].failures.push(failure);
        self.failed.get_or_insert(ended.exit_code());
        Ok(())
    }

    fn write_record(&self, record: &RunRecord, directory: &Path) -> Result<(), Failure> {
        let failed = |error| Failure::usage(format!("cannot write to {}: {error}", directory.display()));
        std::fs::create_dir_all(directory).and_then(|()| record.write(directory)).map_err(failed)
    }

    /// Runs it and shows its progress. If the user asks to stop, the run is told to stop and given time to do so.
    fn execute(&mut self, run: &PlannedRun, directory: &Path, label: &str) -> Result<Ended, Failure> {
        let child = Child::start(&run.arguments, directory, &self.sender)?;
        let mut display = Display::new(&self.terminal, label);
        loop {
            match self.messages.recv() {
                Ok(Message::Event(event)) => display.show(&event),
                Ok(Message::Ended(ended)) => return Ok(ended),
                Ok(Message::Signal(signal)) => match self.turns.next(Instant::now()) {
                    Turn::First => {
                        let text = format!("stopping on {}; a second signal stops at once", signal.name());
                        self.terminal.print_note(&text);
                        self.stopped_by = Some(signal);
                        child.signal(signal);
                    }
                    Turn::Echo => {}
                    Turn::Again => child.signal(signal),
                },
                Err(_) => return Err(Failure::internal("a run cannot be heard any more")),
            }
        }
    }

    fn stopped(&self, signal: StopSignal, run: &PlannedRun) -> Failure {
        let done = self.comparison.rows.iter().flat_map(|row| row.finished()).count();
        let all = count(self.runs.len(), "run");
        let message = format!("by {} in {}; {done} of {all} finished", signal.name(), run.name);
        let hint = "run the same command again to continue".to_owned();
        Failure { exit_code: signal.exit_code(), message, hint: Some(hint) }
    }
}

/// A run's results in brief.
fn describe(measured: &Measured) -> String {
    let score = measured.main_score().and_then(|name| Some((name, measured.score(name)?)));
    let score = score.map(|(name, value)| format!("{} {value:.4}, ", name.replace('_', " "))).unwrap_or_default();
    let (step_ms, samples_per_second) = (measured.summary.step_ms.p50, measured.samples_per_second());
    format!("{score}{step_ms:.2} ms per step, {samples_per_second:.0} samples/s")
}

/// Shows the progress of a run: one changing line on a terminal, or a line now and then elsewhere.
struct Display {
    terminal: Terminal,
    label: String,
    bar: Option<ProgressBar>,
    extent: Extent,
    began: Instant,
    spoke: Instant,
}

impl Display {
    fn new(terminal: &Terminal, label: &str) -> Self {
        let bar = terminal.bars().map(|bars| {
            let style = ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            bars.add(ProgressBar::no_length().with_style(style).with_message(label.to_owned()))
        });
        if bar.is_none() {
            terminal.print_note(label);
        }
        let now = Instant::now();
        let extent = Extent::default();
        Self { terminal: terminal.clone(), label: label.to_owned(), bar, extent, began: now, spoke: now }
    }

    fn show(&mut self, event: &Event) {
        self.extent.see(event);
        let Event::Step(step) = event else { return };
        let part = self.extent.fraction().map(|part| format!("{:.0}%, ", 100.0 * part)).unwrap_or_default();
        let (loss, seconds) = (step.loss.unwrap_or(f32::NAN), self.began.elapsed().as_secs());
        let text = format!("{}: {part}step {}, loss {loss:.4}, {seconds} s", self.label, self.extent.global_step());
        match &self.bar {
            Some(bar) => bar.set_message(text),
            None if self.spoke.elapsed() >= LINE_EVERY => {
                self.spoke = Instant::now();
                self.terminal.print_note(&text);
            }
            None => {}
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let (Some(bar), Some(bars)) = (&self.bar, self.terminal.bars()) {
            bar.finish_and_clear();
            bars.remove(bar);
        }
    }
}
