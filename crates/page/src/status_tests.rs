use super::*;

#[test]
fn a_status_of_another_version_is_read_with_defaults_for_what_it_lacks() {
    let status: Status = serde_json::from_str(r#"{"model": "mnist", "workers": [{"index": 1}], "new": 1}"#).unwrap();
    assert_eq!((status.model.as_str(), status.workers[0].index), ("mnist", 1));
    assert_eq!(status.phase, Phase::Gathering);
}

#[test]
fn an_answer_that_lacks_what_every_status_has_is_none() {
    for other in ["{}", "[]", "null", r#"{"status": "ok"}"#, r#"{"phase": {"name": "training"}, "step": 4}"#] {
        assert!(Status::from_json(other).is_err(), "{other}");
    }
    let older = r#"{"phase": {"name": "training"}, "step": 4, "workers": []}"#;
    assert_eq!(Status::from_json(older).unwrap().step, 4);
    let text = serde_json::to_string(&Status::default()).unwrap();
    assert_eq!(Status::from_json(&text).unwrap(), Status::default());
}

#[test]
fn a_number_that_is_not_finite_does_not_make_the_status_unreadable() {
    let status = Status { steps_per_second: f64::INFINITY, ..Status::default() };
    let read: Status = serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
    assert!(read.steps_per_second.is_nan());
}

#[test]
fn recent_speeds_are_bounded() {
    let mut worker = Worker::default();
    (0..1000).for_each(|speed| worker.record_speed(f64::from(speed)));
    assert_eq!(worker.recent_samples_per_second.len(), MOST_SPEEDS);
    assert_eq!(worker.recent_samples_per_second.last(), Some(&999.0));
}

#[test]
fn after_the_end_no_task_is_alive_and_nothing_is_left() {
    let worker = |state| Worker { state, ..Worker::default() };
    let workers = [State::Alive, State::Waiting, State::Dead, State::Done, State::Missing].map(worker).into();
    let run = Status { phase: Phase::Training, left_secs: Some(3.0), workers, ..Status::default() };
    let states = |phase| {
        let ended = run.clone().ended(phase);
        assert_eq!(ended.left_secs, None);
        ended.workers.iter().map(|worker| worker.state).collect::<Vec<_>>()
    };
    assert_eq!(states(Phase::Over), [State::Done, State::Done, State::Dead, State::Done, State::Missing]);
    assert_eq!(states(Phase::Died), [State::Ended, State::Ended, State::Dead, State::Ended, State::Missing]);
}

#[test]
fn only_a_run_that_should_train_hangs() {
    let worker = Worker { wait: Some(Wait { on: vec![TaskId::ps(0)], secs: 12.0 }), ..Worker::default() };
    let status = Status { stalled_secs: 12.0, workers: vec![worker], ..Status::default() };
    assert_eq!(status.hang(), None);
    assert!(Status { phase: Phase::Training, ..status }.hang().is_some());
}

#[test]
fn a_silent_task_that_others_wait_for_holds_them_up_before_the_run_hangs() {
    let waiting = Worker {
        wait: Some(Wait { on: vec![TaskId::worker(1)], secs: 4.0 }),
        silent_secs: Some(0.2),
        ..Worker::default()
    };
    let awaited = |silent| Worker { index: 1, silent_secs: Some(silent), ..Worker::default() };
    let run = |stalled_secs, silent| Status {
        phase: Phase::Training,
        stalled_secs,
        workers: vec![waiting.clone(), awaited(silent)],
        ..Status::default()
    };
    let root = run(4.0, 4.5).holds_up().unwrap();
    assert_eq!((root.tasks, root.dependents), (vec![TaskId::worker(1)], 1));
    assert_eq!(run(4.0, 4.5).hang(), None);
    assert_eq!(run(1.0, 4.5).holds_up(), None, "steps are still made");
    assert_eq!(run(4.0, 0.5).holds_up(), None, "it speaks, and so it may only be slow");
}
