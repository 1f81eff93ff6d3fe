//! `windlass runs rm`: removes either all of the named run directories or none.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use windlass_page::figures;
use windlass_runs::{Activity, Removal, activity};

use super::failure;
use crate::failure::Failure;
use crate::output::print_line;
use crate::terminal::Terminal;

pub(super) fn run(runs: &[PathBuf], yes: bool) -> Result<(), Failure> {
    for path in runs {
        if let Activity::Unknown { by } = activity(path) {
            let text = format!("{} was last run by {by}: watching whether it is alive", path.display());
            Terminal::default().print_note(&text);
        }
    }
    let removals = runs.iter().map(|path| Removal::prepare(path)).collect::<Result<Vec<_>, _>>().map_err(failure)?;
    if !yes && !is_confirmed(&removals)? {
        print_line("nothing was removed");
        return Ok(());
    }
    for removal in removals {
        let remaining = removal.remaining.as_deref().map(remaining).unwrap_or_default();
        let removed = removal.carry_out().map_err(failure)?;
        print_line(&format!("removed {} ({}){remaining}", removed.path.display(), figures::bytes(removed.bytes)));
    }
    Ok(())
}

/// Asks the user for confirmation, if there is a terminal.
fn is_confirmed(removals: &[Removal]) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("cannot ask for confirmation: standard input is not a terminal")
            .with_hint("pass --yes to remove it without asking".to_owned()));
    }
    for Removal { run, remaining, .. } in removals {
        let (state, bytes) = (run.ending.word(), figures::bytes(run.bytes));
        let path = figures::plain(&run.path.display().to_string());
        print_line(&format!(
            "{path}: {}, {state}, step {}, {bytes}{}",
            figures::plain(&run.model),
            figures::count(run.step),
            remaining.as_deref().map(self::remaining).unwrap_or_default()
        ));
    }
    let what = if removals.len() == 1 { "it" } else { "them" };
    let is_all = removals.iter().all(|removal| removal.remaining.is_none());
    eprint!("Remove {what}{}? [y/N] ", if is_all { " with all checkpoints" } else { "" });
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(Failure::internal)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// A note at the end of a line about what remains of a run.
fn remaining(checkpoints: &str) -> String {
    format!("; its checkpoints stay in {}", figures::plain(checkpoints))
}
