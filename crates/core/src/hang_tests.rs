//! Chains, circles, and waits that lead nowhere.

use proptest::prelude::*;

use super::*;

fn working(task: TaskId, silent_secs: f64) -> TaskState {
    TaskState { task, step: None, silent_secs, dead: false, wait: None }
}

fn waiting(task: TaskId, secs: f64, on: &[TaskId]) -> TaskState {
    let wait = Some(Wait { on: on.to_vec(), secs });
    TaskState { task, step: Some(40), silent_secs: 0.2, dead: false, wait }
}

fn found(tasks: &[TaskState]) -> HangReport {
    report(tasks, 14.0).expect("somebody waits")
}

#[test]
fn a_chain_ends_at_the_task_that_is_silent() {
    let report = found(&[working(TaskId::ps(1), 14.0), waiting(TaskId::worker(3), 12.0, &[TaskId::ps(1)])]);
    let chain = "worker 3 has waited 12 s for ps 1 at step 40; ps 1 has been silent for 14 s";
    assert_eq!(report.chains, [chain]);
    let expected =
        format!("no progress for 14 s\nlook at: ps 1 has been silent for 14 s (1 task waits for it)\n- {chain}\n");
    assert_eq!(report.to_string(), expected);
}

#[test]
fn a_silent_client_is_to_blame_and_not_the_workers_that_it_tells_of() {
    let report =
        found(&[working(TaskId::CLIENT, 13.0), working(TaskId::worker(0), 0.4), working(TaskId::worker(1), 9.0)]);
    let findings: Vec<&str> = report.roots.iter().map(|root| &*root.finding).collect();
    assert_eq!(findings, ["the client has been silent for 13 s"]);
}

#[test]
fn waits_through_others_lead_to_the_same_root() {
    let (ps, slow) = (TaskId::ps(0), TaskId::worker(2));
    let report = found(&[
        waiting(ps, 9.0, &[slow]),
        waiting(TaskId::worker(0), 8.0, &[ps]),
        waiting(TaskId::worker(1), 8.0, &[ps]),
        working(slow, 9.5),
    ]);
    assert_eq!(report.roots.len(), 1);
    assert_eq!((report.roots[0].tasks.as_slice(), report.roots[0].dependents), ([slow].as_slice(), 3));
    let chain = "worker 0 has waited 8.0 s for ps 0 at step 40; ps 0 has waited 9.0 s for worker 2 at step 40; \
                 worker 2 has been silent for 9.5 s";
    assert_eq!(report.chains[1], chain);
}

#[test]
fn tasks_that_wait_for_each_other_are_one_root() {
    let (one, other) = (TaskId::worker(0), TaskId::worker(1));
    let report =
        found(&[waiting(one, 5.0, &[other]), waiting(other, 6.0, &[one]), waiting(TaskId::worker(2), 4.0, &[one])]);
    assert_eq!(report.roots.len(), 1);
    assert_eq!(report.roots[0].finding, "worker 0 and worker 1 wait for each other");
    assert_eq!(report.roots[0].dependents, 1);
    assert!(report.chains[0].ends_with("closing the cycle at worker 0"), "{}", report.chains[0]);
}

#[test]
fn a_task_that_waits_for_itself_is_said_to() {
    let task = TaskId::ps(0);
    assert_eq!(found(&[waiting(task, 3.0, &[task])]).roots[0].finding, "ps 0 waits for itself");
}

#[test]
fn a_dead_task_explains_a_wait_and_its_own_wait_does_not_count() {
    let dead = TaskState { dead: true, ..waiting(TaskId::ps(1), 60.0, &[TaskId::ps(0)]) };
    let report =
        found(&[dead, waiting(TaskId::worker(0), 4.0, &[TaskId::ps(0), TaskId::ps(1)]), working(TaskId::ps(0), 0.1)]);
    let chain = "worker 0 has waited 4.0 s for ps 0 and ps 1 at step 40; ps 1 was declared dead";
    assert_eq!(report.chains, [chain]);
}

#[test]
fn steps_have_their_thousands_apart() {
    let state = TaskState { step: Some(1_234_005), ..waiting(TaskId::worker(0), 4.0, &[TaskId::ps(7)]) };
    let chain = &found(&[state]).chains[0];
    assert!(chain.starts_with("worker 0 has waited 4.0 s for ps 7 at step 1,234,005; "), "{chain}");
}

#[test]
fn a_task_that_never_joined_is_said_to_be_unknown() {
    let report = found(&[waiting(TaskId::worker(0), 4.0, &[TaskId::ps(7)])]);
    assert_eq!(report.roots[0].finding, "ps 7 is unknown: it has never joined");
}

#[test]
fn workers_that_make_no_step_are_reported_although_nobody_waits() {
    let report =
        found(&[working(TaskId::ps(0), 0.2), working(TaskId::worker(0), 0.3), working(TaskId::worker(1), 9.0)]);
    let expected = "no progress for 14 s\nlook at: worker 1 has been silent for 9.0 s\n\
                    look at: worker 0 is alive and has finished no step for 14 s\n";
    assert_eq!(report.to_string(), expected);
    let many: Vec<TaskState> = (0..32).map(|index| working(TaskId::worker(index), 0.1)).collect();
    let finding = "worker 0, worker 1, worker 2 and 29 others are alive and have finished no step for 14 s";
    assert_eq!(found(&many).roots[0].finding, finding);
}

#[test]
fn there_is_no_report_without_workers_or_waits() {
    assert_eq!(report(&[working(TaskId::ps(0), 30.0)], 30.0), None);
    assert_eq!(report(&[], 30.0), None);
}

proptest! {
    #[test]
    fn any_waits_have_a_root_and_one_finite_chain_each(
        waits in proptest::collection::vec(proptest::collection::vec(0u32..9, 0..4), 1..9),
    ) {
        let state = |(index, on): (usize, &Vec<u32>)| {
            waiting(TaskId::worker(index as u32), 1.0, &on.iter().copied().map(TaskId::worker).collect::<Vec<_>>())
        };
        let states: Vec<TaskState> = waits.iter().enumerate().map(state).collect();
        let waiting = waits.iter().filter(|on| !on.is_empty()).count();
        match report(&states, 1.0) {
            None => prop_assert_eq!(waiting, 0),
            Some(report) => {
                prop_assert_eq!(report.chains.len(), waiting);
                prop_assert!(!report.roots.is_empty());
            }
        }
    }
}
