//! What the launcher shows while tasks run: a bar a worker on a terminal, plain lines elsewhere, JSON on request.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use windlass_core::cluster::TaskId;
use windlass_worker::event::{Event, Started};

use crate::args::Format;
use crate::output::{self, print_line};

/// Between two lines of one worker's steps, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

pub(super) enum Progress {
    Bars { all: MultiProgress, workers: BTreeMap<u32, ProgressBar> },
    Lines { spoken: BTreeMap<u32, Instant> },
    Json,
}

impl Progress {
    pub(super) fn new(format: Format) -> Self {
        if super::is_json(format) {
            Progress::Json
        } else if std::io::stderr().is_terminal() {
            Progress::Bars { all: MultiProgress::new(), workers: BTreeMap::new() }
        } else {
            Progress::Lines { spoken: BTreeMap::new() }
        }
    }

    /// Says something of the launcher's own.
    pub(super) fn say(&self, line: &str) {
        match self {
            Progress::Bars { all, .. } => {
                let _ = all.println(line);
            }
            Progress::Lines { .. } => print_line(line),
            Progress::Json => eprintln!("{line}"),
        }
    }

    /// Shows what a task told.
    pub(super) fn show(&mut self, _task: TaskId, event: &Event) {
        match self {
            Progress::Json => print_line(&serde_json::to_string(event).unwrap_or_default()),
            Progress::Bars { all, workers } => show_bar(all, workers, event),
            Progress::Lines { spoken } => {
                if let Event::Step(step) = event {
                    let now = Instant::now();
                    if spoken.get(&step.worker).is_some_and(|last| now - *last < LINE_EVERY) {
                        return;
                    }
                    spoken.insert(step.worker, now);
                }
                print_line(&output::human(event));
            }
        }
    }

    /// Leaves the terminal as it should be.
    pub(super) fn finish(&mut self) {
        if let Progress::Bars { workers, .. } = self {
            workers.values().for_each(|bar| {
                if !bar.is_finished() {
                    bar.abandon();
                }
            });
        }
    }
}

fn show_bar(all: &MultiProgress, workers: &mut BTreeMap<u32, ProgressBar>, event: &Event) {
    match event {
        Event::Started(started) => {
            workers.entry(started.worker).or_insert_with(|| all.add(bar(started)));
        }
        Event::Step(step) => {
            if let Some(bar) = workers.get(&step.worker) {
                bar.set_position(if is_by_steps(bar) { step.global_step } else { step.local_step });
                let loss = step.loss.unwrap_or(f32::NAN);
                bar.set_message(format!("step {} cost {loss:.4} {:.2} ms", step.local_step, step.step_ms));
            }
        }
        Event::Report(_) => {
            let _ = all.println(output::human(event));
        }
        Event::Epoch(epoch) => {
            if epoch.metrics.is_some() {
                let _ = all.println(output::human(event));
            }
        }
        Event::Finished(finished) => {
            if let Some(bar) = workers.get(&finished.worker) {
                bar.set_position(bar.length().unwrap_or(0));
                bar.finish_with_message(format!("{} steps in {:.1} s", finished.steps, finished.seconds));
            }
        }
        Event::Summary(_) => print_line(&output::human(event)),
        // The launcher's last line says where the summary is.
        Event::Wrote { path } if path.ends_with("summary.json") => {}
        Event::Wrote { .. } => {
            let _ = all.println(output::human(event));
        }
    }
}

/// A run that ends by steps fills every worker's bar by the global step; one by epochs each by its own.
fn bar(started: &Started) -> ProgressBar {
    let own = started.epochs.map_or(0, |epochs| epochs * started.batches as u64);
    let bar = ProgressBar::new(started.steps.unwrap_or(own));
    let style = ProgressStyle::with_template("{prefix} [{wide_bar}] {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_prefix(format!("worker {}{}", started.worker, if started.steps.is_some() { " (global)" } else { "" }));
    bar
}

fn is_by_steps(bar: &ProgressBar) -> bool {
    bar.prefix().ends_with("(global)")
}
