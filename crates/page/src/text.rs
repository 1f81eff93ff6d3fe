//! A status as text for a terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use windlass_core::cluster::TaskId;

use crate::figures::{byte_rate, bytes, count, duration, percent, plain, rate};
use crate::headline::headline;
use crate::status::{Server, Site, Status, Worker};
use crate::view::{ServerRow, View, WorkerRow, updates_lost};

/// The minimum width that the text is laid out for.
const NARROWEST: usize = 40;
/// With more workers or servers than this, those in the same state are summarised, so that all fits on one screen.
const ALL_TASKS: usize = 8;
/// Up to this many tasks in the same state are still listed one by one.
const FEW: usize = 2;
/// The maximum number of checkpoints shown.
const CHECKPOINTS: usize = 3;

/// The state of a run as text for a screen of this many columns, ending with a newline.
pub fn text(status: &Status, width: usize) -> String {
    let width = width.max(NARROWEST);
    let view = View::new(status);
    let mut parts = vec![textwrap::fill(&format!("{} {}", view.badge.symbol, headline(status)), width)];
    parts.push(textwrap::fill(&facts(status), width));
    parts.extend(workers(status, &view.workers, width));
    parts.extend(sites(status, &view.workers, width));
    parts.extend(servers(status, &view.servers, width));
    parts.extend(checkpoints(status, width));
    let findings = view.chains.iter().chain(&view.findings);
    let finding = |symbol: &str, text: &str| {
        let options = textwrap::Options::new(width).subsequent_indent("  ");
        textwrap::fill(&format!("{symbol} {text}"), options)
    };
    parts.push(findings.map(|found| finding(found.badge.symbol, &found.text)).collect::<Vec<_>>().join("\n"));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n") + "\n"
}

/// The facts about a run as a whole, apart from its state.
pub(crate) fn facts(status: &Status) -> String {
    let mut facts: Vec<String> = [&status.model, &status.layout, &status.mode, &status.optimizer]
        .into_iter()
        .filter(|fact| !fact.is_empty())
        .map(|fact| plain(fact))
        .collect();
    facts.push(format!("{} elapsed", duration(status.elapsed_secs)));
    if status.samples_per_second > 0.0 {
        facts.push(format!("{} samples/s", rate(status.samples_per_second)));
    }
    for curve in std::iter::once(&status.loss).chain(&status.scores) {
        facts.extend(curve.last().map(|(_, value)| format!("{} {}", plain(&curve.name), curve.shown(value))));
    }
    facts.extend(status.goodput.map(|share| format!("goodput {}", percent(share))));
    if status.rollbacks > 0 {
        facts.push(format!("lost {}", updates_lost(status)));
    }
    let received: f64 = status.nodes.iter().map(|node| node.received_per_second).sum();
    if received > 0.0 {
        facts.push(format!("network {}", byte_rate(received)));
    }
    facts.join(" · ")
}

fn workers(status: &Status, rows: &[WorkerRow], width: usize) -> Option<String> {
    let mut table = table(width, &["worker", "state", "step", "heard", "samples/s", "compute", "wait", "waiting"]);
    let tasks: Vec<(&Worker, &WorkerRow)> = status.trainers().map(|(_, worker)| worker).zip(rows).collect();
    for group in groups(&tasks, |(_, row)| row.badge.word) {
        let (first, row) = group[0];
        let state = format!("{} {}", row.badge.symbol, row.badge.word);
        if let [(worker, row)] = group.as_slice() {
            let share = |part: usize| format!("{:.0}%", row.split[part]);
            let index = match row.task {
                Some(TaskId::CLIENT) => "client".to_owned(),
                _ => format!("{}{}", worker.index, if row.is_chief { " chief" } else { "" }),
            };
            let (step, age, speed) = (row.step.clone(), row.age.clone(), row.speed.clone());
            table.add_row([index, state, step, age, speed, share(0), share(3), row.wait.clone()]);
            continue;
        }
        let workers = || group.iter().map(|(worker, _)| *worker);
        let (low, high) = workers().fold((first.step, 0), |(low, high), at| (low.min(at.step), high.max(at.step)));
        let silent = workers().filter_map(|worker| worker.silent_secs).reduce(f64::max);
        let longest = workers().max_by(|a, b| waited(a).total_cmp(&waited(b))).filter(|worker| waited(worker) > 0.0);
        let longest = group.iter().find(|(worker, _)| longest == Some(worker)).map(|(_, row)| row.wait.clone());
        table.add_row([
            format!("{} of {}", group.len(), rows.len()),
            state,
            if low == high { count(low) } else { format!("{}–{}", count(low), count(high)) },
            silent.map_or("–".into(), duration),
            rate(workers().map(|worker| worker.samples_per_second).sum()),
            String::new(),
            String::new(),
            longest.unwrap_or("–".into()),
        ]);
    }
    right_align(&mut table, 2..7);
    (!rows.is_empty()).then(|| trimmed(&table))
}

/// What workers compute on, if that is more than a device of their own.
fn sites(status: &Status, rows: &[WorkerRow], width: usize) -> Option<String> {
    let is_plain = |worker: &Worker| {
        worker.stages.is_empty() && matches!(&worker.sites[..], [] | [Site { replicas: 1, reachable: true, .. }])
    };
    let told = status.trainers().zip(rows).filter(|((_, worker), _)| !is_plain(worker)).take(ALL_TASKS);
    let line = |((task, _), row): ((TaskId, &Worker), &WorkerRow)| format!("{task} computes {}", row.sites);
    let lines: Vec<String> = told.map(line).map(|line| textwrap::fill(&line, width)).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn waited(worker: &Worker) -> f64 {
    worker.wait.as_ref().map_or(0.0, |wait| wait.secs)
}

fn servers(status: &Status, rows: &[ServerRow], width: usize) -> Option<String> {
    let mut table = table(width, &["ps", "state", "shard", "heard", "applied", "repeated", "dropped"]);
    let tasks: Vec<(&Server, &ServerRow)> = status.servers.iter().zip(rows).collect();
    for group in groups(&tasks, |(_, row)| row.badge.word) {
        let (server, row) = group[0];
        let state = format!("{} {}", row.badge.symbol, row.badge.word);
        let cells = if group.len() == 1 {
            [&row.shard, &row.age, &row.applied, &row.repeated, &row.dropped].map(String::clone)
        } else {
            let sum = |part: fn(&Server) -> u64| group.iter().map(|(server, _)| part(server)).sum::<u64>();
            let silent = group.iter().filter_map(|(server, _)| server.silent_secs).reduce(f64::max);
            let (shards, age) = (bytes(sum(|server| server.shard_bytes)), silent.map_or("–".into(), duration));
            let counts = [sum(|server| server.applied), sum(|server| server.repeated), sum(|server| server.dropped)];
            let [applied, repeated, dropped] = counts.map(count);
            [shards, age, applied, repeated, dropped]
        };
        let alone = group.len() == 1;
        let name = if alone { server.index.to_string() } else { format!("{} of {}", group.len(), rows.len()) };
        table.add_row([name, state].into_iter().chain(cells));
    }
    right_align(&mut table, 2..7);
    (!rows.is_empty()).then(|| trimmed(&table))
}

/// Groups tasks by state. If there are few tasks, or few in a state, each is a group of its own.
fn groups<T: Copy>(tasks: &[T], state: impl Fn(&T) -> &'static str) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for task in tasks {
        let alike = tasks.iter().filter(|other| state(other) == state(task)).count();
        let together = tasks.len() > ALL_TASKS && alike > FEW;
        match groups.iter_mut().find(|group| together && state(&group[0]) == state(task)) {
            Some(group) => group.push(*task),
            None => groups.push(vec![*task]),
        }
    }
    groups
}

fn checkpoints(status: &Status, width: usize) -> Option<String> {
    let latest = status.checkpoints.iter().take(CHECKPOINTS);
    let shown: Vec<String> = latest
        .map(|saved| format!("step {} ({}, {} ago)", count(saved.step), bytes(saved.bytes), duration(saved.age_secs)))
        .collect();
    let more = status.checkpoints.len().saturating_sub(CHECKPOINTS);
    let more = if more > 0 { format!(" and {more} older") } else { String::new() };
    (!shown.is_empty()).then(|| textwrap::fill(&format!("checkpoints: {}{more}", shown.join(", ")), width))
}

fn table(width: usize, heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width as u16).set_header(heads);
    table
}

fn right_align(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in table.column_iter_mut().skip(columns.start).take(columns.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
}

/// The table without trailing spaces.
fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
