//! What is shown of a run while it goes on: bars on a terminal, plain lines elsewhere, JSON on request.

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

/// Between two lines of one worker's steps.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Shows a run's events.
pub(crate) struct Progress {
    terminal: Terminal,
    format: Format,
    bars: Option<Bars>,
    trainers: Trainers,
    /// When a line was last printed of a worker's steps, where not every line is.
    spoken: Option<BTreeMap<u32, Instant>>,
    /// Whether events that are there for programs alone are passed on.
    passes_all: bool,
    extent: SharedExtent,
}

/// How far a run has come, for whoever tells how it ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedExtent(Arc<Mutex<Extent>>);

impl SharedExtent {
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Extent) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Progress {
    /// Of a run of several tasks, whose lines are thinned out.
    pub(crate) fn of_many(terminal: &Terminal, format: Format) -> Self {
        Self { spoken: Some(BTreeMap::new()), ..Self::of_one(terminal, format, false) }
    }

    /// Of one task.
    pub(crate) fn of_one(terminal: &Terminal, format: Format, passes_all: bool) -> Self {
        let bars = terminal.bars().filter(|_| format == Format::Human).map(Bars::new);
        let (trainers, extent) = (Trainers::Workers, SharedExtent::default());
        Self { terminal: terminal.clone(), format, bars, trainers, spoken: None, passes_all, extent }
    }

    /// The same, if its workers are these.
    pub(crate) fn with_trainers(self, trainers: Trainers) -> Self {
        let bars = self.bars.map(|bars| bars.with_trainers(trainers));
        Self { trainers, bars, ..self }
    }

    /// As something that is told of events.
    pub(crate) fn watcher(mut self) -> Watcher {
        Box::new(move |event| self.show(event))
    }

    pub(crate) fn extent(&self) -> SharedExtent {
        self.extent.clone()
    }

    /// Whether it has a use for [`Event::Progress`].
    pub(crate) fn has_bars(&self) -> bool {
        self.bars.is_some()
    }

    /// Says something about the run as a whole, which is neither a warning nor a result.
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
            // Whoever was told to stop says so at its end.
            Event::Stopped(_) => self.format == Format::Json,
            _ if self.format == Format::Json => true,
            // What bars show already; but not where training goes on from.
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
                // Whoever reads the log of a task, and not its events, is to hear of it too.
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

    /// A worker has ended before its time, and the others go on.
    pub(crate) fn left(&mut self, worker: u32, why: &str) {
        if let Some(bars) = &mut self.bars {
            bars.left(worker, why);
        }
    }

    /// The run ends before its time.
    pub(crate) fn stopping(&mut self) {
        if let Some(bars) = &mut self.bars {
            bars.stopping();
        }
    }

    /// Takes the bars away.
    pub(crate) fn finish(&mut self) {
        self.bars = None;
    }

    fn is_all_on_a_terminal(&self) -> bool {
        self.bars.is_some() && terminal::is_read_by_a_person()
    }

    /// Whether it is time for another line of this worker's steps.
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

/// What is shown to whoever wants to see nothing else.
fn is_warning_or_result(event: &Event) -> bool {
    match event {
        Event::Summary(_) | Event::AlreadyFinished { .. } | Event::Warning(_) | Event::Notice { .. } => true,
        Event::Report(report) => report.warning.is_some(),
        _ => false,
    }
}
