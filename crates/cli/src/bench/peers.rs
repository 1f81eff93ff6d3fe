//! Other systems on the same network, measured in the same rounds by a program that the user supplies.

use std::path::Path;
use std::process::{Command, Stdio};

use comfy_table::CellAlignment;
use serde::{Deserialize, Serialize};

use super::layouts::{BATCH, LAYOUTS, Layout, Measured};
use super::median;
use crate::failure::Failure;
use crate::output::{plain_table, print_line};

/// The contents of one line of the program's output.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Peer {
    peer: String,
    layout: String,
    ms_per_step: f64,
    batches_per_s: f64,
}

/// Runs the program once.
pub(super) fn measure(program: &Path) -> Result<Vec<Peer>, Failure> {
    let output = Command::new(program)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Failure::usage(format!("cannot run {}: {error}", program.display())))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let read = |line: &str| {
        serde_json::from_str(line).map_err(|error| Failure::usage(format!("{}: {line:?}: {error}", program.display())))
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(read).collect()
}

/// The measurements of one layout of a peer, as medians over the rounds.
#[derive(Debug, Serialize)]
pub(super) struct PeerResult {
    peer: String,
    layout: String,
    step_ms: f64,
    batches_per_second: f64,
    /// For each of our layouts, the ratio of its throughput to the peer's in the same round.
    ours: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct Ratio {
    layout: &'static str,
    times: f64,
}

/// Compares every layout of the peers with ours.
pub(super) fn compare(ours: &[Vec<Measured>], peers: &[Vec<Peer>]) -> Vec<PeerResult> {
    let result = |(index, first): (usize, &Peer)| {
        let same = |round: &Vec<Peer>| round.get(index).cloned();
        let of = |value: fn(&Peer) -> f64| median(peers.iter().filter_map(same).map(|peer| value(&peer)).collect());
        let times = |layout: usize| {
            let ratios = ours.iter().zip(peers).filter_map(|(round, peers)| {
                Some(round[layout].samples_per_second / BATCH as f64 / same(peers)?.batches_per_s)
            });
            median(ratios.collect())
        };
        let ratio = |(index, layout): (usize, &Layout)| Ratio { layout: layout.name, times: times(index) };
        PeerResult {
            peer: first.peer.clone(),
            layout: first.layout.clone(),
            step_ms: of(|peer| peer.ms_per_step),
            batches_per_second: of(|peer| peer.batches_per_s),
            ours: LAYOUTS.iter().enumerate().map(ratio).collect(),
        }
    };
    peers.first().into_iter().flatten().enumerate().map(result).collect()
}

pub(super) fn print(results: &[PeerResult]) {
    let mut table = plain_table();
    let mut header = vec!["peer".to_owned(), "layout".to_owned(), "step ms".to_owned(), "batches/s".to_owned()];
    header.extend(LAYOUTS.iter().map(|layout| format!("{} is ×", layout.name)));
    let columns = header.len();
    table.set_header(header);
    for column in 2..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for result in results {
        let measured = [format!("{:.3}", result.step_ms), format!("{:.0}", result.batches_per_second)];
        let ratios = result.ours.iter().map(|ratio| format!("{:.2}", ratio.times));
        table.add_row([result.peer.clone(), result.layout.clone()].into_iter().chain(measured).chain(ratios));
    }
    print_line("other systems in the same rounds");
    print_line(&table.to_string());
}
