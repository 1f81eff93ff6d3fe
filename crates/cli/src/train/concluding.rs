//! What a process reports at its end: the summary or, for a stopped run, how far it got and how to resume it.

use std::path::{Path, PathBuf};

use tracing::warn;
use windlass_core::cluster::{Job, TaskId};
use windlass_core::lifecycle::exit_code;
use windlass_runs::names::SUMMARY_FILE;
use windlass_worker::event::{Event, Stopped};
use windlass_worker::summary::Summary;
use windlass_worker::task::Ended;

use super::Process;
use crate::args::TrainArgs;
use crate::failure::{Failure, RESUME, RESUME_TASK};
use crate::in_graph::CLIENT;
use crate::stopping::Stop;
use crate::{config, resume};

impl Process {
    /// Reports the results of the run, and decides how the process ends.
    pub(super) fn conclude(&mut self, ended: Ended, args: &TrainArgs) -> Result<(), Failure> {
        let mut unwritten = None;
        if let Some(summary) = ended.summary {
            let written = args.output.run_dir.as_deref().map(|directory| write_summary(directory, &summary));
            // Even if the file cannot be written, the summary must be shown.
            self.watch.tell(&Event::Summary(Box::new(summary)));
            match written {
                Some(Ok(path)) => self.watch.tell(&Event::Wrote { path }),
                Some(Err(failure)) => unwritten = Some(failure),
                None => {}
            }
        } else if ended.outcome.exit_code == 0 && !ended.outcome.reason.is_empty() {
            self.watch.tell(&Event::AlreadyFinished { reason: ended.outcome.reason.clone() });
        }
        if ended.outcome.exit_code == 0 {
            return unwritten.map_or(Ok(()), Err);
        }
        if let Some(Failure { message, .. }) = unwritten {
            warn!("{message}");
        }
        Err(self.explained(ended.outcome.into(), args))
    }

    /// Adds how far the run got and how to resume it, if the run was told to stop or could not be saved.
    pub(super) fn explained(&mut self, failure: Failure, args: &TrainArgs) -> Failure {
        let signal = self.config.stopped_by.get().copied();
        let unsaved = failure.why_not_saved().map(str::to_owned);
        // For a launched run, the launcher reports this.
        let is_launched = args.output.started_at.is_some();
        if failure.exit_code != exit_code::TERMINATED && (unsaved.is_none() || signal.is_none() && is_launched) {
            return failure;
        }
        if let Some((signal, time)) = signal {
            let task = match self.task.unwrap_or(TaskId::CHIEF) {
                task if task.job == Job::Worker && self.config.in_graph => CLIENT.to_owned(),
                task => task.to_string(),
            };
            self.watch.tell(&Event::Stopped(Stopped { time, task, signal: signal.name().to_owned() }));
        }
        let harm = failure.clone();
        let (exit_code, why) = match signal {
            Some((signal, _)) if unsaved.is_some() => (failure.exit_code, signal.name().to_owned()),
            Some((signal, _)) => (signal.exit_code(), signal.name().to_owned()),
            None => (failure.exit_code, failure.message),
        };
        if is_launched {
            return Failure { exit_code, message: unsaved.unwrap_or(why), hint: None };
        }
        let is_server = self.task.is_some_and(|task| task.job == Job::Ps);
        // The other tasks have the checkpoints, and may continue.
        let is_one_of_many = self.task.is_some_and(|task| task != TaskId::ps(0)) && !args.cluster.colocate;
        let own_command = resume::command(&args.settings, None);
        self.extent.with(|extent| {
            let stop = Stop {
                exit_code,
                why,
                extent: (!is_server).then_some(extent),
                checkpoints: config::checkpoint_location(&args.checkpoint, args.output.run_dir.as_deref()),
                resumes: args.checkpoint.resume != "never",
                began: self.config.began,
                told: signal.map(|(_, time)| time),
                overdue: None,
                unsaved,
                log: None,
                at_once: false,
                died: false,
            };
            let what = if self.task.is_some() { RESUME_TASK } else { RESUME };
            match (signal, &stop.unsaved) {
                (None, Some(_)) => stop.report_remains(harm, what, &own_command),
                _ if is_one_of_many => stop.report_alone(what, &own_command),
                _ => stop.report(what, &own_command),
            }
        })
    }
}

fn write_summary(directory: &Path, summary: &Summary) -> Result<PathBuf, Failure> {
    let path = directory.join(SUMMARY_FILE);
    let text = windlass_files::require_file(&path).and_then(|()| std::fs::read(&path)).ok();
    let earlier = text.and_then(|text| serde_json::from_slice(&text).ok());
    let summary = match earlier {
        Some(earlier) => summary.clone().keeping_measurements(earlier),
        None => summary.clone(),
    };
    let text = serde_json::to_string_pretty(&summary).map_err(Failure::internal)?;
    windlass_files::write(&path, &[text.as_bytes(), b"\n"]).map_err(|error| {
        Failure::internal(format!(
            "training has ended, but its summary cannot be written to {}: {error}",
            path.display()
        ))
    })?;
    Ok(path)
}
