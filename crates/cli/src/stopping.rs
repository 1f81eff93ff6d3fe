//! The report for the user of a stopped run: how far it got, where its checkpoint is, and how to resume it.

use std::fmt::Write;

use windlass_checkpoint::Manifest;
use windlass_core::lifecycle::exit_code;

use crate::failure::Failure;
use crate::model_flags;
use crate::output::count;
use crate::progress::Extent;

/// A run that was stopped before its end.
pub(crate) struct Stop<'a> {
    pub(crate) exit_code: u8,
    /// The signal, or which task was told to stop.
    pub(crate) why: String,
    /// How far the run got, where that is known.
    pub(crate) extent: Option<&'a Extent>,
    /// The location of its checkpoints, if it has any.
    pub(crate) checkpoints: Option<String>,
    /// Whether the run itself was to resume from an earlier checkpoint.
    pub(crate) resumes: bool,
    /// When the run began, and when it was told to stop if that is known, in seconds since 1970.
    pub(crate) began: u64,
    pub(crate) told: Option<u64>,
    /// Why the last checkpoint could not be written, if known. The text starts with what happened.
    pub(crate) unsaved: Option<String>,
    /// Why the last checkpoint is missing, should it be.
    pub(crate) overdue: Option<String>,
    /// The log that says why a checkpoint could not be written.
    pub(crate) log: Option<String>,
    /// Whether the process did not wait for the last checkpoint.
    pub(crate) at_once: bool,
    /// Whether the run lost a task rather than being told to stop, so that there is no last checkpoint.
    pub(crate) died: bool,
}

/// The newest checkpoint of the run, as far as it is known.
enum Newest {
    /// The run has no location for checkpoints.
    Nowhere,
    None,
    /// Taken at this step, and written after the run was told to stop.
    Last(u64),
    /// Taken at this step, and written before that.
    Earlier(u64),
    /// The checkpoints cannot be read from here.
    Unknown,
}

impl Stop<'_> {
    /// The report in words. It includes the newest checkpoint, which is looked up where possible, and the command that
    /// resumes from it.
    pub(crate) fn report(&self, what: &str, command: &str) -> Failure {
        let newest = self.look_up();
        let lacks_its_last = self.lacks_its_last(&newest);
        let mut text = self.reached(&newest);
        if let Some(unsaved) = self.unsaved.as_ref().or(self.overdue.as_ref().filter(|_| lacks_its_last)) {
            let _ = write!(text, ", and {unsaved}");
        }
        let exit_code = if lacks_its_last { exit_code::CHECKPOINT } else { self.exit_code };
        Failure { exit_code, ..self.failure(text + &self.remains(&newest, what, command)) }
    }

    /// Whether the last checkpoint is missing although the process waited for it, whatever happened to the tasks that
    /// write it.
    fn lacks_its_last(&self, newest: &Newest) -> bool {
        let is_missing = matches!(newest, Newest::None | Newest::Earlier(_));
        is_missing && !self.at_once && !self.died && self.extent.is_some_and(Extent::has_begun)
    }

    /// Adds to the failure of a run that lost a task what remains of the run: its newest checkpoint, and the command
    /// that resumes from it.
    pub(crate) fn report_remains(&self, harm: Failure, what: &str, command: &str) -> Failure {
        let remains = self.remains(&self.look_up(), what, command);
        Failure { message: harm.message + &remains, ..harm }
    }

    fn look_up(&self) -> Newest {
        match &self.checkpoints {
            None => Newest::Nowhere,
            // An object store may be slow.
            Some(location) if self.at_once && location.contains("://") => Newest::Unknown,
            Some(location) => match model_flags::newest_in(location) {
                Some(found) => {
                    let found = found.filter(|manifest| self.is_of_run(manifest));
                    found.map_or(Newest::None, |manifest| self.newest(manifest.id.step, manifest.created))
                }
                None => Newest::Unknown,
            },
        }
    }

    fn remains(&self, newest: &Newest, what: &str, command: &str) -> String {
        let mut text = format!("\ncheckpoint: {}", self.checkpoint(newest));
        if !matches!(newest, Newest::Nowhere | Newest::None) {
            let _ = write!(text, "\n{what}: {command}");
        }
        text
    }

    /// The report of a task whose checkpoints are managed by other tasks.
    pub(crate) fn report_alone(&self, what: &str, command: &str) -> Failure {
        self.failure(format!("{}\n{what}: {command}", self.reached(&Newest::Unknown)))
    }

    fn failure(&self, message: String) -> Failure {
        Failure { exit_code: self.exit_code, message, hint: None }
    }

    /// Whether a checkpoint belongs to this run, rather than to an earlier one in the same place.
    fn is_of_run(&self, manifest: &Manifest) -> bool {
        self.resumes || manifest.created >= self.began
    }

    /// Whether a checkpoint was written when the run was told to stop, or already covers every known step.
    fn newest(&self, step: u64, created: u64) -> Newest {
        let seen = self.extent.map_or(0, Extent::global_step);
        // Both times are whole seconds, so a checkpoint from just before may seem to be from just after. If the coordinator
        // was killed, that would hide a loss.
        let since = |told: u64| if self.overdue.is_some() { created > told } else { created >= told };
        let may_be_last = !self.died && self.unsaved.is_none() && self.told.is_none_or(since);
        let is_last = may_be_last || step >= seen;
        if is_last { Newest::Last(step) } else { Newest::Earlier(step) }
    }

    fn reached(&self, newest: &Newest) -> String {
        let why = &self.why;
        match (self.extent, newest) {
            (Some(extent), _) if !extent.has_begun() => format!("{why} before training began"),
            // Not every step is reported, and some may have been made while the checkpoint was written.
            (Some(extent), Newest::Last(step)) => format!("{why} at {}", extent.place_at(*step)),
            (Some(extent), _) => format!("{why} at {}", extent.place_at(extent.global_step())),
            (None, Newest::Last(step)) => format!("{why} at step {step}"),
            (None, _) => why.clone(),
        }
    }

    fn checkpoint(&self, newest: &Newest) -> String {
        let place = self.checkpoints.as_deref().unwrap_or_default();
        let missing = || match &self.log {
            _ if self.died => "none had been written yet".to_owned(),
            _ if self.unsaved.is_some() => "the last one could not be written".to_owned(),
            _ if self.at_once => "the run did not wait for the last one".to_owned(),
            _ if self.overdue.is_some() => "the last one could not be written".to_owned(),
            Some(log) => format!("the last one could not be written, see {log}"),
            None => "the last one could not be written".to_owned(),
        };
        let seen = self.extent.map_or(0, Extent::global_step);
        match newest {
            Newest::Nowhere => "none: pass --run-dir DIR or --checkpoint-dir WHERE to keep checkpoints".to_owned(),
            Newest::None if self.extent.is_some_and(Extent::has_begun) => format!("none ({})", missing()),
            Newest::None if self.extent.is_some() => "none (nothing was trained)".to_owned(),
            Newest::None => "none was written".to_owned(),
            Newest::Unknown if self.at_once => format!("unknown: {place} was not checked"),
            Newest::Unknown => format!("unknown: {place} does not answer"),
            Newest::Last(step) => format!("step {step}, in {place}"),
            Newest::Earlier(step) => {
                let lost = count(usize::try_from(seen.saturating_sub(*step)).unwrap_or(usize::MAX), "step");
                let why = if self.died { String::new() } else { missing() + "; " };
                format!("step {step}, in {place} ({why}{lost} lost)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_worker::event::{Event, Started};

    use super::*;

    fn extent(at: u64) -> Extent {
        let mut extent = Extent::default();
        extent.see(&Event::Started(Started {
            worker: 0,
            chief: true,
            batches: 10,
            batch_size: 1,
            accumulate: 1,
            towers: 1,
            left_out: 0,
            from: at,
            steps: Some(500),
            epochs: None,
            threads: 1,
            transports: Vec::new(),
        }));
        extent
    }

    fn stop(extent: Option<&Extent>, at_once: bool) -> Stop<'_> {
        Stop {
            exit_code: 130,
            why: "SIGINT".to_owned(),
            extent,
            checkpoints: Some("run/checkpoints".to_owned()),
            resumes: true,
            began: 1000,
            told: Some(2000),
            unsaved: None,
            overdue: None,
            log: Some("run/ps-0.log".to_owned()),
            at_once,
            died: false,
        }
    }

    fn told(stop: &Stop<'_>, newest: &Newest) -> (String, String) {
        (stop.reached(newest), stop.checkpoint(newest))
    }

    fn texts(reached: &str, checkpoint: &str) -> (String, String) {
        (reached.to_owned(), checkpoint.to_owned())
    }

    #[test]
    fn the_last_checkpoint_is_where_the_run_goes_on() {
        let extent = extent(470);
        let stop = stop(Some(&extent), false);
        let expected = texts("SIGINT at step 465 of 500", "step 465, in run/checkpoints");
        // The checkpoint does not cover the steps that were made while it was written.
        assert_eq!(told(&stop, &stop.newest(465, 2001)), expected);
        let expected = texts("SIGINT at step 470 of 500", "step 470, in run/checkpoints");
        assert_eq!(told(&stop, &stop.newest(470, 1990)), expected, "there was nothing new to save");
    }

    #[test]
    fn an_earlier_checkpoint_is_not_taken_for_the_last() {
        let extent = extent(470);
        for (at_once, why) in [
            (false, "the last one could not be written, see run/ps-0.log"),
            (true, "the run did not wait for the last one"),
        ] {
            let stop = stop(Some(&extent), at_once);
            let checkpoint = format!("step 400, in run/checkpoints ({why}; 70 steps lost)");
            assert_eq!(told(&stop, &stop.newest(400, 1990)), texts("SIGINT at step 470 of 500", &checkpoint));
            assert_eq!(stop.checkpoint(&Newest::None), format!("none ({why})"));
        }
    }

    #[test]
    fn a_run_whose_last_checkpoint_was_waited_for_in_vain_ends_with_the_code_for_that() {
        let (extent, directory) = (extent(470), tempfile::tempdir().unwrap());
        for (at_once, exit_code) in [(false, 4), (true, 130)] {
            let checkpoints = Some(directory.path().display().to_string());
            let stop = Stop { checkpoints, ..stop(Some(&extent), at_once) };
            assert_eq!(stop.report("resume", "again").exit_code, exit_code, "at once: {at_once}");
        }
        let stop = Stop { checkpoints: None, ..stop(Some(&extent), false) };
        assert_eq!(stop.report("resume", "again").exit_code, 130, "there was none to write");
    }

    #[test]
    fn why_the_last_checkpoint_could_not_be_written_is_told_with_what_remains() {
        let extent = extent(470);
        let directory = tempfile::tempdir().unwrap();
        let stop = Stop {
            exit_code: 4,
            unsaved: Some("the last checkpoint could not be written: the disk is full".to_owned()),
            checkpoints: Some(directory.path().display().to_string()),
            ..stop(Some(&extent), false)
        };
        let Failure { exit_code, message, .. } = stop.report("resume", "again");
        assert_eq!(exit_code, 4);
        let told = "SIGINT at step 470 of 500, and the last checkpoint could not be written: the disk is full\n\
                    checkpoint: none (the last one could not be written)";
        assert_eq!(message, told);
        let kept =
            format!("step 400, in {} (the last one could not be written; 70 steps lost)", directory.path().display());
        assert_eq!(stop.checkpoint(&stop.newest(400, 1990)), kept);
        assert_eq!(stop.checkpoint(&stop.newest(400, 2000)), kept, "written within the same second");
    }

    #[test]
    fn a_coordinator_that_did_not_end_is_blamed_only_if_the_last_checkpoint_is_missing() {
        let (extent, directory) = (extent(470), tempfile::tempdir().unwrap());
        let overdue = "the last checkpoint could not be written: ps 0 did not end in time".to_owned();
        let stop = Stop {
            overdue: Some(overdue.clone()),
            checkpoints: Some(directory.path().display().to_string()),
            ..stop(Some(&extent), false)
        };
        let Failure { exit_code, message, .. } = stop.report("resume", "again");
        assert_eq!(exit_code, 4);
        assert!(message.starts_with(&format!("SIGINT at step 470 of 500, and {overdue}\n")), "{message}");
        assert!(!stop.lacks_its_last(&stop.newest(465, 2001)));
        assert!(!stop.lacks_its_last(&stop.newest(470, 2000)), "nothing is missing");
        assert!(stop.lacks_its_last(&stop.newest(465, 2000)), "it may be from just before");
    }

    #[test]
    fn a_run_that_came_to_harm_tells_how_many_steps_its_checkpoint_is_behind() {
        let extent = extent(470);
        let died = Stop { died: true, told: None, ..stop(Some(&extent), false) };
        assert_eq!(died.checkpoint(&died.newest(400, 1990)), "step 400, in run/checkpoints (70 steps lost)");
        assert_eq!(died.checkpoint(&died.newest(470, 1990)), "step 470, in run/checkpoints");
        let unsaved = Stop { unsaved: Some("the disk is full".to_owned()), ..died };
        assert_eq!(unsaved.checkpoint(&unsaved.newest(469, 1990)), "step 469, in run/checkpoints (1 step lost)");
        assert_eq!(unsaved.checkpoint(&Newest::None), "none (none had been written yet)");
    }

    #[test]
    fn a_server_does_not_know_how_far_training_was() {
        let stop = stop(None, false);
        assert_eq!(told(&stop, &stop.newest(400, 2001)), texts("SIGINT at step 400", "step 400, in run/checkpoints"));
        assert_eq!(told(&stop, &Newest::None), texts("SIGINT", "none was written"));
    }
}
