//! The display of a run in progress: bars on a terminal, plain lines elsewhere, JSON on request.

mod bars;
mod extent;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use windlass_worker::event::{Event, Watcher};

use crate::args::Format;
use crate::output::{self, Trainers};
use crate::terminal::{self, Terminal};
use crate::verbosity;
use bars::Bars;
pub(crate) use extent::Extent;

/// The time between two lines about one worker's steps.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Shows a run's events.
pub(crate) struct Progress {
    terminal: Terminal,
    format: Format,
    bars: Option<Bars>,
    trainers: Trainers,
    /// When a line about a worker's steps was last printed, where lines are thinned out.
    spoken: Option<BTreeMap<u32, Instant>>,
    /// Whether to pass on events that are meant only for programs.
    passes_all: bool,
    extent: SharedExtent,
}

/// How far a run got, shared with the code that reports how it ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedExtent(Arc<Mutex<Extent>>);

impl SharedExtent {
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Extent) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Progress {
    /// For a run of several tasks, whose lines are thinned out.
    pub(crate) fn of_many(terminal: &Terminal, format: Format) -> Self {
        Self { spoken: Some(BTreeMap::new()), ..Self::of_one(terminal, format, false) }
    }

    /// For a single task.
    pub(crate) fn of_one(terminal: &Terminal, format: Format, passes_all: bool) -> Self {
        let bars = terminal.bars().filter(|_| format == Format::Human).map(Bars::new);
        let (trainers, extent) = (Trainers::Workers, SharedExtent::default());
        Self { terminal: terminal.clone(), format, bars, trainers, spoken: None, passes_all, extent }
    }

    /// Sets whom events refer to as workers.
    pub(crate) fn with_trainers(self, trainers: Trainers) -> Self {
        let bars = self.bars.map(|bars| bars.with_trainers(trainers));
        Self { trainers, bars, ..self }
    }

    /// Converts this into a callback for events.
    pub(crate) fn watcher(mut self) -> Watcher {
        Box::new(move |event| self.show(event))
    }

    pub(crate) fn extent(&self) -> SharedExtent {
        self.extent.clone()
    }

    /// Whether [`Event::Progress`] is of use here.
    pub(crate) fn has_bars(&self) -> bool {
        self.bars.is_some()
    }

    /// Prints a line about the run as a whole that is neither a warning nor a result.
    pub(crate) fn say(&self, line: &str) {
        match self.format {
            _ if verbosity::is_quiet() => {}
            Format::Human => self.terminal.print(line),
            Format::Json => self.terminal.print_error(line),
        }
    }

    /// Shows an event.
    pub(crate) fn show(&mut self, event: &Event) {
        self.extent.with(|extent| extent.see(event));
        if let Some(bars) = &mut self.bars {
            bars.show(event);
        }
        let is_wanted = match event {
            event if verbosity::is_quiet() => is_warning_or_result(event),
            Event::Progress(_) => self.passes_all && self.format == Format::Json,
            // A process that was told to stop reports that when it ends.
            Event::Stopped(_) => self.format == Format::Json,
            _ if self.format == Format::Json => true,
            // Bars already show this, except where training resumes from.
            Event::Started(started) if self.is_all_on_a_terminal() => started.chief && started.from > 0,
            Event::Step(_) | Event::Finished(_) if self.is_all_on_a_terminal() => false,
            Event::Epoch(epoch) if self.is_all_on_a_terminal() => epoch.metrics.is_some(),
            Event::Step(step) => self.is_due(step.worker),
            _ => true,
        };
        if !is_wanted {
            return;
        }
        match (self.format, event) {
            (Format::Json, Event::Warning(warning)) => {
                // Readers of a task's log, who do not see its events, should get this warning, too.
                tracing::warn!("{}; {}", warning.message, warning.hint);
                self.terminal.print(&serde_json::to_string(event).unwrap_or_default());
            }
            (Format::Json, event) => self.terminal.print(&serde_json::to_string(event).unwrap_or_default()),
            (Format::Human, Event::Summary(summary)) => {
                self.terminal.print(&output::table(summary, terminal::columns()));
            }
            (Format::Human, event) => self.terminal.print_wrapped(&output::human(event, self.trainers)),
        }
    }

    /// Shows that a worker has ended early while the others continue.
    pub(crate) fn left(&mut self, worker: u32, why: &str) {
        if let Some(bars) = &mut self.bars {
            bars.left(worker, why);
        }
    }

    /// Shows that the run is ending early.
    pub(crate) fn stopping(&mut self) {
        if let Some(bars) = &mut self.bars {
            bars.stopping();
        }
    }

    /// Removes the bars.
    pub(crate) fn finish(&mut self) {
        self.bars = None;
    }

    fn is_all_on_a_terminal(&self) -> bool {
        self.bars.is_some() && terminal::is_read_by_a_person()
    }

    /// Whether the next line about this worker's steps is due.
    fn is_due(&mut self, worker: u32) -> bool {
        let Some(spoken) = &mut self.spoken else { return true };
        let now = Instant::now();
        if spoken.get(&worker).is_some_and(|last| now - *last < LINE_EVERY) {
            return false;
        }
        spoken.insert(worker, now);
        true
    }
}

/// Whether an event is shown in quiet mode.
fn is_warning_or_result(event: &Event) -> bool {
    match event {
        Event::Summary(_) | Event::AlreadyFinished { .. } | Event::Warning(_) | Event::Notice { .. } => true,
        Event::Report(report) => report.warning.is_some(),
        _ => false,
    }
}
