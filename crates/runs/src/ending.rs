//! How a run ended, judged by the files that it left.

use serde::Serialize;
use windlass_core::lifecycle::exit_code;
use windlass_page::{LastStatus, Phase};

use crate::activity::Activity;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Ending {
    /// It has not ended.
    Running,
    /// It finished.
    Finished,
    /// It was told to stop.
    Stopped {
        /// Who or what stopped it, as far as that is known.
        why: String,
    },
    /// It failed.
    Failed {
        /// The reason.
        why: String,
    },
    /// It ended without a report: it was killed, or its machine went down.
    Died,
    /// It never started to train.
    NotBegun,
    /// The files do not show how it ended.
    Unknown {
        /// Why that is unclear.
        why: String,
    },
}

impl Ending {
    /// The word for tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Running => "active",
            Self::Finished => "finished",
            Self::Stopped { .. } => "stopped",
            Self::Failed { .. } => "failed",
            Self::Died => "died",
            Self::NotBegun => "not begun",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// The reason, where there is one.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Stopped { why } | Self::Failed { why } | Self::Unknown { why } => Some(why),
            Self::Died => Some("it left no last word, as if it had been killed"),
            Self::Running | Self::Finished | Self::NotBegun => None,
        }
    }
}

/// The traces from which the ending of a run is determined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traces<'a> {
    pub activity: &'a Activity,
    pub last_status: Option<&'a LastStatus>,
    /// Whether a summary, or a last checkpoint, shows that the run finished.
    pub has_finished: bool,
    /// Whether the run has a checkpoint.
    pub has_checkpoint: bool,
}

pub(crate) fn ending(traces: Traces<'_>) -> Ending {
    if matches!(traces.activity, Activity::Active { .. }) {
        return Ending::Running;
    }
    let ended = traces.last_status.and_then(|last| Some((last.exit_code?, &last.status.phase)));
    match (ended, traces.last_status, traces.activity) {
        (Some((0, _)), ..) => Ending::Finished,
        (Some((exit_code::TERMINATED, phase)), ..) => Ending::Stopped { why: why(phase) },
        (Some((_, phase)), ..) => Ending::Failed { why: why(phase) },
        (None, _, Activity::Unknown { by }) => Ending::Unknown { why: format!("last run by {by}, seen from here") },
        (None, ..) if traces.has_finished => Ending::Finished,
        (None, Some(last), _) if !traces.has_checkpoint && !has_trained(last) => Ending::NotBegun,
        (None, Some(_), _) => Ending::Died,
        (None, None, _) if traces.has_checkpoint => Ending::Unknown { why: "there is only a checkpoint".to_owned() },
        (None, None, _) => Ending::NotBegun,
    }
}

/// Whether the coordinator has seen the run train. Its step alone does not show that: a restarted coordinator that did
/// not find its predecessor's record counts from zero until the parameters are restored.
fn has_trained(last: &LastStatus) -> bool {
    let status = &last.status;
    status.step > 0 || status.phase == Phase::Training || status.loss.last().is_some()
}

fn why(phase: &Phase) -> String {
    match phase {
        Phase::Stopped { why } | Phase::Failed { why } => why.clone(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use windlass_page::Status;

    use super::*;

    fn last(exit_code: Option<u8>, phase: Phase, step: u64) -> LastStatus {
        LastStatus { exit_code, status: Status { phase, step, ..Status::default() }, ..LastStatus::default() }
    }

    fn of(activity: &Activity, last_status: Option<&LastStatus>) -> Ending {
        ending(Traces { activity, last_status, has_finished: false, has_checkpoint: false })
    }

    #[test]
    fn a_run_that_said_how_it_ended_is_believed() {
        let failed = |code| last(Some(code), Phase::Failed { why: "because".into() }, 3);
        assert_eq!(of(&Activity::Inactive, Some(&last(Some(0), Phase::Over, 3))), Ending::Finished);
        let stopped = last(Some(143), Phase::Stopped { why: "because".into() }, 3);
        assert_eq!(of(&Activity::Inactive, Some(&stopped)), Ending::Stopped { why: "because".into() });
        assert_eq!(of(&Activity::Inactive, Some(&failed(5))), Ending::Failed { why: "because".into() });
    }

    #[test]
    fn a_run_without_a_last_word_died_unless_it_lives() {
        let training = last(None, Phase::Training, 3);
        assert_eq!(of(&Activity::Inactive, Some(&training)), Ending::Died);
        assert_eq!(of(&Activity::Active { by: String::new() }, Some(&training)), Ending::Running);
        let elsewhere = Activity::Unknown { by: "process 3 on b".into() };
        assert!(matches!(of(&elsewhere, Some(&training)), Ending::Unknown { why } if why.contains("process 3 on b")));
        assert_eq!(of(&Activity::Inactive, Some(&last(None, Phase::Gathering, 0))), Ending::NotBegun);
    }

    #[test]
    fn a_run_that_has_left_a_checkpoint_or_losses_has_begun() {
        let gathering = last(None, Phase::Gathering, 0);
        let of = |last_status, has_checkpoint| {
            ending(Traces { activity: &Activity::Inactive, last_status, has_finished: false, has_checkpoint })
        };
        assert_eq!(of(Some(&gathering), false), Ending::NotBegun);
        assert_eq!(of(Some(&gathering), true), Ending::Died);
        let mut with_losses = gathering.clone();
        with_losses.status.loss.push(100, 0.5);
        assert_eq!(of(Some(&with_losses), false), Ending::Died);
    }

    #[test]
    fn a_run_of_an_earlier_version_is_judged_by_its_summary_and_checkpoints() {
        let traces = |has_finished, has_checkpoint| {
            ending(Traces { activity: &Activity::Inactive, last_status: None, has_finished, has_checkpoint })
        };
        assert_eq!(traces(true, true), Ending::Finished);
        assert!(matches!(traces(false, true), Ending::Unknown { .. }));
        assert_eq!(traces(false, false), Ending::NotBegun);
    }
}
