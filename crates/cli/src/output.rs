//! What the user sees of a run: a line for every event, and a table at the end.

use std::io::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use windlass_worker::event::{Event, Placed, PlacedParameter, PlacedStage, Report};
use windlass_worker::replica::LaneReport;
use windlass_worker::summary::{JoinedSummary, Summary, WorkerSummary};

use crate::failure::Failure;

/// Prints to standard output. A closed pipe does not stop the program.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print_line(&serde_json::to_string_pretty(value).map_err(Failure::internal)?);
    Ok(())
}

/// Whom events refer to as workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Trainers {
    #[default]
    Workers,
    /// The client of joined workers, which the servers see as one worker.
    Client,
    /// The client of joined workers, which the servers see as one worker for each of them.
    ClientForEach,
}

impl Trainers {
    /// The client of a run in which servers see this number of workers.
    pub(crate) fn of_client(logical: u32) -> Self {
        if logical == 1 { Self::Client } else { Self::ClientForEach }
    }

    pub(crate) fn name(self, worker: u32) -> String {
        match self {
            Self::Workers => format!("worker {worker}"),
            Self::Client => "client".to_owned(),
            Self::ClientForEach => format!("client for worker {worker}"),
        }
    }
}

/// Formats an event for people.
pub(crate) fn human(event: &Event, trainers: Trainers) -> String {
    let name = |worker| trainers.name(worker);
    match event {
        Event::Started(started) => {
            let until = match (started.steps, started.epochs) {
                (Some(steps), Some(epochs)) => {
                    format!("until global step {steps} or for {}", count(epochs as usize, "epoch"))
                }
                (Some(steps), None) => format!("until global step {steps}"),
                (None, Some(epochs)) => format!("for {}", count(epochs as usize, "epoch")),
                (None, None) => "until stopped".to_owned(),
            };
            let trains = match started.from {
                0 => "trains".to_owned(),
                step => format!("resumes at global step {step} and trains"),
            };
            let (each, parts) = (started.batch_size / started.accumulate.max(1), started.accumulate);
            let epoch = match parts {
                0 | 1 => format!("{} of {each} per epoch", batches(started.batches)),
                parts => format!(
                    "{} per epoch, each {}",
                    count(started.batches, "step"),
                    format_args!("{} of {each}", batches(parts))
                ),
            };
            let left_out = match started.left_out {
                0 => String::new(),
                samples => format!(" ({} left out)", count(samples, "sample")),
            };
            let towers = if started.towers > 1 { format!("{} towers on ", started.towers) } else { String::new() };
            format!(
                "{} {trains} {until}: {epoch}{left_out}, {towers}{}, parameters {}{}",
                name(started.worker),
                count(started.threads, "thread"),
                transports(&started.transports),
                if started.chief { ", chief" } else { "" },
            )
        }
        Event::Placed(placed) => self::placed(placed, &name(placed.worker)),
        Event::Step(step) | Event::Progress(step) => format!(
            "{}  step {:>6}  global {:>6}  epoch {:>3}  batch {:>4} of {}  loss {:<10.6}  avg {:.2} ms",
            name(step.worker),
            step.local_step,
            step.global_step,
            step.epoch,
            step.batch,
            step.batches,
            step.loss.unwrap_or(f32::NAN),
            step.step_ms,
        ),
        Event::Report(report) => self::report(report, &name(report.worker)),
        Event::Warning(warning) => format!("warning: {}\nhint: {}", warning.message, warning.hint),
        Event::Epoch(epoch) => {
            let scores = epoch.metrics.as_ref().map(|metrics| format!("  {metrics}")).unwrap_or_default();
            format!(
                "{}  epoch {} ended: mean loss {:.6}{scores}  in {:.2} s",
                name(epoch.worker),
                epoch.epoch,
                epoch.loss,
                epoch.seconds
            )
        }
        Event::Finished(finished) => {
            let of_them = match finished.steps_this_run {
                steps if steps == finished.steps => String::new(),
                steps => format!(", {steps} of them in this run"),
            };
            format!(
                "{} finished: {} steps of its own{of_them}, global step {}, {:.2} s",
                name(finished.worker),
                finished.steps,
                finished.global_step,
                finished.seconds
            )
        }
        Event::Stopped(stopped) => format!("{} was told to stop by {}", stopped.task, stopped.signal),
        Event::Summary(summary) => table(summary, None),
        Event::AlreadyFinished { reason } => reason.clone(),
        Event::Notice { text } => format!("warning: {text}"),
        Event::Wrote { path } => format!("wrote {}", path.display()),
    }
}

/// Describes where a worker computes; the chief also gets a line for each parameter.
fn placed(placed: &Placed, name: &str) -> String {
    let devices = placed.devices.join(", ");
    let mut text = format!("{name} computes on {devices}");
    if !placed.stages.is_empty() {
        let mut table = plain_table();
        table.set_header(["stage", "computed on"]);
        for PlacedStage { name, device, .. } in &placed.stages {
            table.add_row([name, device]);
        }
        text += &format!("\n{}", table.trim_fmt());
    }
    if placed.parameters.is_empty() {
        return text;
    }
    let on = |name: &str| {
        let stage = placed.stages.iter().find(|stage| stage.parameters.iter().any(|parameter| parameter == name));
        stage.map_or_else(|| devices.clone(), |stage| stage.device.clone())
    };
    let mut table = plain_table();
    table.set_header(["parameter", "shape", "held by", "computed on"]);
    for PlacedParameter { name, shape, servers } in &placed.parameters {
        let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let servers: Vec<String> = servers.iter().map(|server| format!("ps {server}")).collect();
        table.add_row([name.clone(), shape.join(" x "), servers.join(", "), on(name)]);
    }
    text.push('\n');
    text.push_str(&table.trim_fmt());
    text
}

fn batches(number: usize) -> String {
    format!("{number} batch{}", if number == 1 { "" } else { "es" })
}

/// Describes how a worker reaches the parameters.
fn transports(transports: &[String]) -> String {
    match transports {
        [own] if own == "in-process" => "in this process".to_owned(),
        transports => format!("via {}", transports.join(" + ").replace("in-process", "this process")),
    }
}

/// Formats a report, in the words of TensorFlow's translation tutorial.
fn report(report: &Report, name: &str) -> String {
    let speed = report.step_ms.zip(report.samples_per_second).map_or_else(String::new, |(step_ms, samples)| {
        format!("  step-time {:.3} s  {samples:.0} samples/s", step_ms / 1e3)
    });
    let mut text = format!(
        "{name}  current step {} (global {})  learning rate {:.4}{speed}  {} {:.2}",
        report.local_step,
        report.global_step,
        report.learning_rate,
        report.score,
        report.kind.of_loss(report.loss),
    );
    for part in &report.held_out {
        text += &match part.loss {
            Some(loss) => format!("\n  eval: {} {} {:.2}", part.name, report.score, report.kind.of_loss(loss)),
            None => format!("\n  eval: {} is empty", part.name),
        };
    }
    if let Some(warning) = &report.warning {
        text += &format!("\nwarning: {warning}");
    }
    text
}

/// Formats the summary of a run, in at most `columns` columns.
pub(crate) fn table(summary: &Summary, columns: Option<u16>) -> String {
    let how = if summary.devices.is_empty() { "in-graph" } else { "in stages" };
    let layout = match (summary.ps, summary.colocated) {
        (0, _) if !summary.joined.is_empty() => {
            format!("on {}, {how}", count(summary.joined.len(), "joined worker"))
        }
        (ps, _) if !summary.joined.is_empty() => {
            format!("on {ps} ps, {}, {how}", count(summary.joined.len(), "joined worker"))
        }
        (0, _) => "in one process".to_owned(),
        (_, true) => format!("on {} with a ps shard in each", count(summary.workers as usize, "worker")),
        (ps, false) => format!("on {ps} ps, {}", count(summary.workers as usize, "worker")),
    };
    let mut run = table_within(columns);
    let mut row = |name: &str, value: String| {
        run.add_row([name.to_owned(), value]);
    };
    row("run", format!("{} {layout}, {}, {}", summary.model, summary.mode, summary.optimizer));
    let (steps, seconds) = (summary.global_step, summary.wall_seconds);
    row(
        "steps",
        match summary.steps_this_run {
            0 => format!("{steps}, none of them in this run"),
            of_them if of_them == steps => format!("{steps} in {seconds:.2} s"),
            of_them => format!("{steps}, {of_them} of them in {seconds:.2} s"),
        },
    );
    if summary.steps_this_run > 0 {
        let speed = format!("{:.0} steps/s, {:.0} samples/s", summary.steps_per_second, summary.samples_per_second);
        if summary.is_rolled_back() {
            row(
                "rollback",
                format!("to step {}, training again after {:.2} s", summary.resumed_at, summary.first_step_seconds),
            );
            row("speed", format!("{speed} since the rollback"));
        } else {
            row("first step", format!("after {:.2} s", summary.first_step_seconds));
            row("speed", speed);
        }
        let (p50, p95) = (summary.step_ms.p50, summary.step_ms.p95);
        row("step time", format!("median {p50:.2} ms, 95th percentile {p95:.2} ms"));
        let bytes = &summary.bytes_per_step;
        // What moves within a process is not traffic.
        if bytes.sent + bytes.received > bytes.in_process {
            row("traffic per step", format!("{} sent, {} received", size(bytes.sent), size(bytes.received)));
        }
        if !summary.joined.is_empty() {
            let per_step = |bytes: fn(&JoinedSummary) -> u64| {
                size(summary.joined.iter().map(bytes).sum::<u64>() as f64 / summary.steps_this_run as f64)
            };
            let (sent, received) = (per_step(|joined| joined.sent_bytes), per_step(|joined| joined.received_bytes));
            row("to joined workers", format!("{sent} sent, {received} received per step"));
        }
    }
    if !summary.devices.is_empty() {
        let busy =
            |lane: &LaneReport| format!("{} {:.0}% ({})", lane.device, 100.0 * lane.busy, lane.stages.join(", "));
        row("busy", summary.devices.iter().map(busy).collect::<Vec<_>>().join(", "));
    }
    if let Some(loss) = summary.loss {
        row("loss", format!("{loss:.6} per sample, in the last batches"));
    }
    row("scores", summary.metrics.to_string());
    if summary.workers > 1 {
        let dropped = format!("{} dropped as stale", summary.dropped_gradients);
        row("gradients", format!("{dropped}, {:.2} updates old on average", summary.mean_staleness));
    }
    for joined in &summary.joined {
        let again = if joined.joined > 1 { format!(", joined {} times", joined.joined) } else { String::new() };
        let what = if summary.devices.is_empty() { "share" } else { "step" };
        row("joined", format!("{}: {}{again}", joined.worker, count(joined.steps as usize, what)));
    }
    if let Some(warning) = &summary.warning {
        row("warning", warning.message.clone());
        row("hint", warning.hint.clone());
    }
    let trainers = match summary.joined.is_empty() {
        true => Trainers::Workers,
        false => Trainers::of_client(summary.workers),
    };
    format!("\n{run}\n\n{}\n", workers(&summary.per_worker, trainers, columns))
}

/// Each worker's share of a run. There is a column for waiting for batches only if it took a tenth of some worker's
/// steps.
fn workers(summaries: &[WorkerSummary], trainers: Trainers, columns: Option<u16>) -> Table {
    let shows_data = summaries.iter().any(|worker| worker.data_ms > 0.1 * worker.step_ms && worker.data_ms >= 0.1);
    let mut table = table_within(columns);
    let names = ["worker", "steps", "share", "mean step ms", "compute ms", "wait ms", "data ms", ""];
    let is_shown = |name: &&str| shows_data || *name != "data ms";
    table.set_header(names.iter().filter(|name| is_shown(name)));
    for column in 0..6 + usize::from(shows_data) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let total: u64 = summaries.iter().map(|worker| worker.steps_this_run).sum();
    for worker in summaries {
        // A worker that has left has not reported its step times.
        let time = |ms: f64| if worker.left.is_some() && ms == 0.0 { String::new() } else { format!("{ms:.2}") };
        let cells = [
            match trainers {
                Trainers::Client => trainers.name(worker.worker),
                _ => worker.worker.to_string(),
            },
            worker.steps_this_run.to_string(),
            format!("{:.0}%", 100.0 * worker.steps_this_run as f64 / total.max(1) as f64),
            time(worker.step_ms),
            time(worker.compute_ms),
            time(worker.wait_ms),
            time(worker.data_ms),
            worker.left.as_ref().map(|why| format!("left: {why}")).unwrap_or_default(),
        ];
        table.add_row(names.iter().zip(cells).filter(|(name, _)| is_shown(name)).map(|(_, cell)| cell));
    }
    table
}

pub(crate) fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// A table whose longest cells are broken into lines if it would not fit otherwise.
pub(crate) fn table_within(columns: Option<u16>) -> Table {
    let mut table = plain_table();
    if let Some(columns) = columns {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    table
}

/// Formats bytes in a readable unit.
fn size(bytes: f64) -> String {
    match bytes {
        0.0..1e3 => format!("{bytes:.0} B"),
        1e3..1e6 => format!("{:.1} kB", bytes / 1e3),
        _ => format!("{:.1} MB", bytes / 1e6),
    }
}

pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
