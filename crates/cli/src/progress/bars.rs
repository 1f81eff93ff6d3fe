//! Progress bars on a terminal: one for the run, and a line for each worker. They are removed when dropped, so that
//! they never overwrite what is printed afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use windlass_worker::event::{Event, Started, Step};

use super::extent::Extent;
use crate::output::{Trainers, count};

/// The position at which the run's bar is full, whether steps or epochs fill it.
const FULL: u64 = 1_000_000;
/// The time between two redraws without events: the displayed speed of a stalled run falls.
const TICK: Duration = Duration::from_millis(500);
/// The number of lines left for messages above the bars.
const LINES_ABOVE: usize = 6;

/// The bars of a run.
pub(super) struct Bars {
    all: MultiProgress,
    run: Option<ProgressBar>,
    /// Never drawn: measures updates per second, since the run's bar may be filled by epochs instead.
    speed: ProgressBar,
    /// The lines of the workers with the lowest numbers, as many as fit.
    workers: BTreeMap<u32, ProgressBar>,
    /// All workers that have started.
    started: BTreeSet<u32>,
    /// The last line, which counts the workers that do not fit.
    others: Option<ProgressBar>,
    extent: Extent,
    trainers: Trainers,
    stopping: bool,
}

impl Bars {
    pub(super) fn new(all: &MultiProgress) -> Self {
        Self {
            all: all.clone(),
            run: None,
            speed: ProgressBar::hidden(),
            workers: BTreeMap::new(),
            started: BTreeSet::new(),
            others: None,
            extent: Extent::default(),
            trainers: Trainers::Workers,
            stopping: false,
        }
    }

    pub(super) fn with_trainers(mut self, trainers: Trainers) -> Self {
        self.trainers = trainers;
        self
    }

    pub(super) fn show(&mut self, event: &Event) {
        self.extent.see(event);
        match event {
            Event::Started(started) => self.started(started),
            Event::Step(step) | Event::Progress(step) => self.moved(step),
            Event::Finished(finished) => {
                let text = format!("finished: {} steps in {:.1} s", finished.steps_this_run, finished.seconds);
                self.set_line(finished.worker, text);
            }
            Event::Summary(_) => self.clear(),
            Event::AlreadyFinished { .. } => self.clear(),
            Event::Placed(_)
            | Event::Report(_)
            | Event::Warning(_)
            | Event::Epoch(_)
            | Event::Wrote { .. }
            | Event::Stopped(_)
            | Event::Notice { .. } => {}
        }
        self.draw_run();
    }

    pub(super) fn left(&mut self, worker: u32, why: &str) {
        self.extent.left(worker);
        self.set_line(worker, why.to_owned());
        self.draw_run();
    }

    pub(super) fn stopping(&mut self) {
        self.stopping = true;
        // The speed and the remaining time no longer matter.
        if let Some(run) = &self.run {
            run.set_style(style("{msg}"));
        }
        self.draw_run();
    }

    fn started(&mut self, started: &Started) {
        self.speed.set_position(self.extent.global_step());
        self.speed.reset_eta();
        if self.run.is_none() {
            self.run = Some(self.add_run());
        }
        self.started.insert(started.worker);
        let room = usize::from(console::Term::stderr().size().0).saturating_sub(LINES_ABOVE).max(1);
        let shown: BTreeSet<u32> = self.started.iter().copied().take(room).collect();
        // Workers start in any order: a worker that is shown may have to make room for one with a lower number.
        for (_, line) in self.workers.extract_if(.., |worker, _| !shown.contains(worker)) {
            remove(&self.all, &line);
        }
        if shown.contains(&started.worker) {
            let place = 1 + self.workers.range(..started.worker).count();
            self.workers.entry(started.worker).or_insert_with(|| add(&self.all, place, "{wide_msg}"));
        }
        if self.started.len() > shown.len() {
            let last = || add(&self.all, 1 + shown.len(), "{wide_msg}");
            let others = count(self.started.len() - shown.len(), "other");
            self.others.get_or_insert_with(last).set_message(format!("… and {others}"));
        }
        self.set_line(started.worker, format!("{} per step", count(started.batch_size, "sample")));
    }

    fn moved(&mut self, step: &Step) {
        let loss = step.loss.unwrap_or(f32::NAN);
        let text = format!("step {}, loss {loss:.6}, step time {:.2} ms", step.local_step, step.step_ms);
        self.set_line(step.worker, text);
    }

    fn set_line(&self, worker: u32, text: String) {
        if let Some(line) = self.workers.get(&worker) {
            line.set_message(format!("{}  {text}", self.trainers.name(worker)));
        }
    }

    fn add_run(&self) -> ProgressBar {
        let fraction = self.extent.fraction();
        let template = match fraction {
            Some(_) => "{msg} [{wide_bar}] {percent:>3}%{speed}{left}",
            None => "{msg}{speed}, {elapsed} so far",
        };
        let run = add(&self.all, 0, template);
        let speed = self.speed.clone();
        let with_keys =
            run.style().with_key("left", left).with_key("speed", move |_: &ProgressState, text: &mut dyn Write| {
                let _ = match speed.per_sec() {
                    speed if speed >= 10.0 => write!(text, "  {speed:.0} steps/s"),
                    speed if speed > 0.0 => write!(text, "  {speed:.2} steps/s"),
                    _ => Ok(()),
                };
            });
        run.set_length(FULL);
        run.set_style(with_keys.progress_chars("=> "));
        // The run may have started at this position; how long it took to get there is unknown.
        run.set_position(position(fraction));
        run.reset_eta();
        run.enable_steady_tick(TICK);
        run
    }

    fn draw_run(&self) {
        let Some(run) = &self.run else { return };
        self.speed.set_position(self.extent.global_step());
        run.set_position(position(self.extent.fraction()));
        run.set_message(match () {
            () if self.stopping => format!("stopping at {}", self.extent.place()),
            () if self.extent.is_trained() => format!("{}, finishing", self.extent.place()),
            () => self.extent.place(),
        });
    }

    fn clear(&mut self) {
        let lines = std::mem::take(&mut self.workers).into_values().chain(self.others.take()).chain(self.run.take());
        lines.for_each(|line| remove(&self.all, &line));
        let _ = self.all.clear();
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Adds a bar at this position among the others. The bar is added before it gets a position: a bar on its own would be
/// drawn at once, and stay where it was drawn.
fn add(all: &MultiProgress, place: usize, template: &str) -> ProgressBar {
    let bar = all.insert(place, ProgressBar::no_length());
    bar.set_style(style(template));
    bar
}

fn remove(all: &MultiProgress, bar: &ProgressBar) {
    bar.finish_and_clear();
    all.remove(bar);
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn position(fraction: Option<f64>) -> u64 {
    fraction.map_or(0, |fraction| (fraction * FULL as f64) as u64)
}

/// The estimated remaining time, if it can be estimated.
fn left(state: &ProgressState, text: &mut dyn Write) {
    let seconds = state.eta().as_secs();
    let _ = match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => Ok(()),
        (0, 0, seconds) => write!(text, "  {seconds} s left"),
        (0, minutes, seconds) => write!(text, "  {minutes} min {seconds} s left"),
        (hours, minutes, _) => write!(text, "  {hours} h {minutes} min left"),
    };
}
