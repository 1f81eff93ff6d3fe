//! Other systems on the same network, measured in the same rounds by a program of the user's.

use std::path::Path;
use std::process::{Command, Stdio};

use comfy_table::CellAlignment;
use serde::Deserialize;

use super::layouts::{BATCH, LAYOUTS, Measured};
use super::median;
use crate::failure::Failure;
use crate::output::{plain_table, print_line};

/// What one line of the program says.
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

/// Prints each peer's layouts, and how many times its batches every layout of ours does in the same round.
pub(super) fn print(ours: &[Vec<Measured>], peers: &[Vec<Peer>]) {
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
    for (index, first) in peers[0].iter().enumerate() {
        let same = |round: &Vec<Peer>| round.get(index).cloned();
        let of = |value: fn(&Peer) -> f64| median(peers.iter().filter_map(same).map(|peer| value(&peer)).collect());
        let mut row = vec![
            first.peer.clone(),
            first.layout.clone(),
            format!("{:.3}", of(|peer| peer.ms_per_step)),
            format!("{:.0}", of(|peer| peer.batches_per_s)),
        ];
        for layout in 0..LAYOUTS.len() {
            let ratio = ours.iter().zip(peers).filter_map(|(round, peers)| {
                Some(round[layout].samples_per_second / BATCH as f64 / same(peers)?.batches_per_s)
            });
            row.push(format!("{:.2}", median(ratio.collect())));
        }
        table.add_row(row);
    }
    print_line("other systems in the same rounds");
    print_line(&table.to_string());
}
