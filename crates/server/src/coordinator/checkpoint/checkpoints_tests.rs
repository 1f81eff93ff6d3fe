//! Lookups that fail, and checkpoints that are published late.

use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The checkpoints of a run that continues, or of one that is about to begin.
fn checkpoints(goes_on: bool) -> Checkpoints {
    let config = CheckpointConfig {
        location: "there".to_owned(),
        every: None,
        every_steps: None,
        keep: 1,
        resume: Resume::Auto,
        restarted: goes_on,
        stall: seconds(60),
        take_over: false,
        description: String::new(),
    };
    Checkpoints::new(Claimed { config, location: "there".to_owned(), generation: 1, salt: 0, goes_on })
}

fn passing() -> CheckpointError {
    let (location, object, reason) = ("there".to_owned(), "/".to_owned(), "try later".to_owned());
    CheckpointError::Store { location, action: "list", object, reason }
}

fn publication(last: bool) -> Publication {
    Publication { begun: Duration::ZERO, bytes: 0, held_up: Duration::ZERO, last }
}

#[test]
fn a_store_that_fails_for_a_moment_is_looked_at_again() {
    let mut run = checkpoints(true);
    assert!(run.is_looked_for_again(&passing(), seconds(5), seconds(60)));
    assert_eq!(run.trouble(), Some("ps 0 cannot continue the run yet: cannot list `/` in `there`: try later"));
    assert!(run.look_if_due(seconds(5)).is_none());
    assert!(matches!(run.look_if_due(seconds(6)), Some(Effect::Look(2, None))));
    assert!(run.is_last_look(2));
    assert!(run.look_if_due(seconds(60)).is_none(), "that one is under way");
    assert!(!run.is_looked_for_again(&passing(), seconds(65), seconds(60)), "the others will not wait for ever");
}

#[test]
fn a_run_that_begins_and_a_store_that_will_not_mend_itself_are_told_at_once() {
    assert!(!checkpoints(false).is_looked_for_again(&passing(), seconds(5), seconds(60)));
    let damaged = CheckpointError::NoneWhole { location: "there".to_owned() };
    assert!(!checkpoints(true).is_looked_for_again(&damaged, seconds(5), seconds(60)));
}

#[test]
fn a_checkpoint_that_is_published_late_is_not_taken_for_the_last_that_waits_behind_it() {
    let mut run = checkpoints(true);
    run.publishing.insert(1, publication(false));
    run.publishing.insert(2, publication(true));
    let id = CheckpointId::of_attempt(10, 1, 1, 0);
    run.published(1, &Ok(id), seconds(1));
    assert!(run.is_saved(10, false) && !run.is_saved(10, true));
    run.published(2, &Ok(id), seconds(1));
    assert!(run.is_saved(10, true));
}

#[test]
fn what_is_published_after_the_run_has_gone_back_is_not_saved() {
    let mut run = checkpoints(true);
    run.publishing.insert(1, publication(false));
    run.begin_from(Beginning { location: "there".to_owned(), found: None, first_generation: 1, finished: false });
    let (_, saved) = run.published(1, &Ok(CheckpointId::of_attempt(10, 1, 1, 0)), seconds(1));
    assert!(saved.is_none() && !run.is_saved(10, false));
}
