//! Tests of the status that follows from a sequence of observations.

use windlass_core::admission::ShardStatistics;
use windlass_core::cluster::RunLayout;
use windlass_wire::control::proto::{Heartbeat, Score, Usage, WorkerTotals};

use super::*;
use crate::coordinator::history::SavedCheckpoint;

/// A training run of one ps and two workers, at this time and step.
fn observation(seconds: f64, step: u64) -> Observation {
    let at = Duration::from_secs_f64(seconds);
    let task = |task| TaskObservation {
        task,
        presence: Some(Presence::Present),
        heard: Some(at),
        awaited_since: None,
        heartbeat: Heartbeat::default(),
    };
    Observation {
        at,
        phase: Phase::Training,
        target: Some(1000),
        statistics: ShardStatistics { steps: step, ..ShardStatistics::default() },
        has_shard: true,
        began: 0,
        tasks: vec![task(TaskId::ps(0)), task(TaskId::worker(0)), task(TaskId::worker(1))],
        history: History::default(),
        facts: None,
        layout: RunLayout::Apart,
        chief: TaskId::worker(0),
        addresses: BTreeMap::new(),
        kept_checkpoints: 3,
        is_last: false,
    }
}

/// Sets the totals that a worker reports after this many steps with this sum of losses.
fn totals(run: &mut Observation, worker: usize, steps: u64, loss: f64) {
    let heartbeat = &mut run.tasks[1 + worker].heartbeat;
    (heartbeat.local_step, heartbeat.global_step) = (steps, run.statistics.steps);
    heartbeat.totals = Some(Box::new(WorkerTotals { steps, samples: 10 * steps, loss, ..WorkerTotals::default() }));
}

#[test]
fn steps_that_come_with_a_checkpoint_are_neither_speed_nor_progress() {
    let mut keeper = StatusKeeper::default();
    keeper.status(&observation(1.0, 0));
    let mut restored = observation(2.0, 4000);
    restored.statistics.resumed_at = 4000;
    let status = keeper.status(&restored);
    assert_eq!((status.steps_per_second, status.goodput), (0.0, None));
    let mut trained = observation(3.0, 4010);
    trained.statistics.resumed_at = 4000;
    let status = keeper.status(&trained);
    assert_eq!((status.steps_per_second, status.goodput), (10.0, Some(1.0 / 3.0)));
}

#[test]
fn progress_that_a_rollback_has_undone_does_not_count() {
    let mut keeper = StatusKeeper::default();
    (0..=10)
        .for_each(|second| drop(keeper.status(&observation(f64::from(second), 10 * u64::try_from(second).unwrap()))));
    let mut back = observation(11.0, 50);
    back.statistics.resumed_at = 50;
    back.history.rolled_back(back.at, 100, 50);
    let status = keeper.status(&back);
    assert_eq!(status.goodput, Some(5.0 / 11.0));
    assert_eq!(status.steps_per_second, 0.0);
}

#[test]
fn a_new_ps_0_goes_on_with_the_figures_of_the_one_before() {
    let mut first = StatusKeeper::default();
    let mut before = Status::default();
    for second in 0..=10_u32 {
        let mut run = observation(f64::from(second), u64::from(10 * second));
        totals(&mut run, 0, u64::from(10 * second), f64::from(20 * second));
        run.tasks[1].heartbeat.scores =
            vec![Score { name: "test_accuracy".into(), value: 0.5, global_step: 40, is_fraction: true }];
        run.history.joined(Duration::from_secs(1), TaskId::worker(0), 1, Some(TaskId::worker(0)));
        before = first.status(&run);
    }
    let before = Status { rollbacks: 1, updates_lost: 5, start: 3, ..before };
    let earlier = Earlier { elapsed: Duration::from_secs(20), status: before.clone() };
    let mut keeper = StatusKeeper::after(earlier);
    // The survivors have seen step 100, and the last checkpoint is of step 50.
    let mut run = observation(2.0, 50);
    run.statistics.resumed_at = 50;
    run.history.rolled_back(Duration::from_secs(1), 100, 50);
    let status = keeper.status(&run);
    assert_eq!((status.elapsed_secs, status.start, status.goodput), (22.0, 3, Some(5.0 / 22.0)));
    assert_eq!((status.rollbacks, status.updates_lost, status.kept_updates), (2, 55, 50));
    let events: Vec<(f64, &str)> = status.timeline.events().map(|event| (event.at_secs, event.what.as_str())).collect();
    let expected =
        [(1.0, "worker 0 joined"), (20.0, "ps 0 was restarted"), (21.0, "rolled back from step 100 to step 50")];
    assert_eq!(events, expected);
    // The chief counts from its own start, so only its later reports are points of the curve.
    totals(&mut run, 0, 100, 200.0);
    keeper.status(&run);
    let mut later = observation(3.0, 60);
    later.statistics.resumed_at = 50;
    later.history = run.history.clone();
    totals(&mut later, 0, 110, 210.0);
    later.tasks[1].heartbeat.scores =
        vec![Score { name: "test_accuracy".into(), value: 0.75, global_step: 60, is_fraction: true }];
    let status = keeper.status(&later);
    assert_eq!(status.loss.points().last(), Some(&(60, Some(1.0))));
    assert_eq!(status.scores.len(), 1);
    assert_eq!(status.scores[0].points(), [(40, Some(0.5)), (60, Some(0.75))]);
    assert!(status.scores[0].is_fraction);
}

#[test]
fn long_steps_are_progress_and_a_stall_is_not() {
    let mut keeper = StatusKeeper::default();
    let mut share = |look: u32, step: u64| keeper.status(&observation(0.5 * f64::from(look), step)).goodput;
    let steady = (0..=400).map(|look| share(look, u64::from(look / 10))).last().flatten().unwrap();
    assert!(steady > 0.95, "steps of 5 s, looked at every 0.5 s: {steady}");
    let stalled = (401..=1000).map(|look| share(look, 40)).last().flatten().unwrap();
    let after = share(1001, 41).unwrap();
    assert!(after < stalled + 0.05 && after < 0.5, "a stall of 300 s: {stalled}, then {after}");
}

#[test]
fn the_age_of_a_checkpoint_is_known_although_another_coordinator_wrote_it() {
    let mut run = observation(5.0, 40);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let earlier =
        SavedCheckpoint { at: run.at, step: 40, written_before: Some(now - 7000), ..SavedCheckpoint::default() };
    run.history.resumed_from(earlier);
    run.history.saved(SavedCheckpoint { at: Duration::from_secs(3), step: 50, ..SavedCheckpoint::default() });
    let ages: Vec<f64> = checkpoints(&run).iter().map(|saved| saved.age_secs).collect();
    assert_eq!(ages[0], 2.0);
    assert!((6999.0..7100.0).contains(&ages[1]), "{ages:?}");
}

#[test]
fn a_worker_that_scores_the_network_is_not_accused_of_being_slow() {
    let mut keeper = StatusKeeper::default();
    // Both take 10 ms per step. From 10 s to 20 s worker 0 scores, and reports it with its next step.
    for look in 0..80_u32 {
        let seconds = 0.5 * f64::from(look);
        let mut run = observation(seconds, u64::from(100 * look));
        let scored = (seconds - 10.0).clamp(0.0, 10.0);
        for (worker, trained) in [(0, seconds - scored), (1, seconds)] {
            totals(&mut run, worker, (100.0 * trained) as u64, 0.0);
            let totals = run.tasks[1 + worker].heartbeat.totals.as_mut().unwrap();
            totals.compute_seconds = trained;
            totals.scoring_seconds = if worker == 0 && scored == 10.0 { scored } else { 0.0 };
        }
        run.tasks[1].heartbeat.scoring = (10.0..20.0).contains(&seconds);
        let straggler = keeper.status(&run).straggler;
        assert!(!matches!(straggler, Verdict::Stragglers { .. }), "at {seconds} s: {straggler}");
    }
}

#[test]
fn equal_workers_with_long_steps_are_not_told_apart_by_where_windows_end() {
    let mut keeper = StatusKeeper::default();
    for look in 0..200_u32 {
        let seconds = 0.5 * f64::from(look);
        let mut run = observation(seconds, u64::from(look));
        for (worker, behind) in [(0, 0.0), (1, 0.7)] {
            let steps = ((seconds - behind).max(0.0) / 1.3).floor();
            totals(&mut run, worker, steps as u64, 0.0);
            run.tasks[1 + worker].heartbeat.totals.as_mut().unwrap().compute_seconds = 1.3 * steps;
        }
        let straggler = keeper.status(&run).straggler;
        assert!(!matches!(straggler, Verdict::Stragglers { .. }), "at {seconds} s: {straggler}");
    }
}

#[test]
fn the_speeds_of_a_worker_that_has_died_are_still_drawn() {
    let mut keeper = StatusKeeper::default();
    let speeds = (0..40_u32).map(|look| {
        let mut run = observation(0.5 * f64::from(look), u64::from(look));
        totals(&mut run, 1, u64::from(look.min(20)), 0.0);
        run.tasks[2].presence = Some(if look > 20 { Presence::Dead } else { Presence::Present });
        keeper.status(&run).workers[1].recent_samples_per_second.len()
    });
    let speeds: Vec<usize> = speeds.collect();
    assert!(speeds.is_sorted() && speeds[39] >= 15, "{speeds:?}");
}

#[test]
fn a_point_of_the_loss_is_the_mean_of_the_chiefs_steps_and_not_mixed_with_anothers() {
    let mut keeper = StatusKeeper::default();
    for (second, (steps, loss)) in [(10, 20.0), (20, 30.0)].into_iter().enumerate() {
        let mut run = observation(second as f64, 20 * (1 + second as u64));
        totals(&mut run, 0, steps, loss);
        keeper.status(&run);
    }
    let mut run = observation(3.0, 60);
    totals(&mut run, 1, 1010, 700.0);
    run.chief = TaskId::worker(1);
    let status = keeper.status(&run);
    assert_eq!(status.loss.points(), [(20, Some(2.0)), (40, Some(1.0))]);
    let mut run = observation(4.0, 80);
    totals(&mut run, 1, 1020, 705.0);
    run.chief = TaskId::worker(1);
    assert_eq!(keeper.status(&run).loss.last(), Some((80, 0.5)));
}

#[test]
fn long_steps_are_no_hang_but_a_long_silence_is() {
    let hangs = |status: &Status| status.stalled_secs >= status.hang_after_secs;
    let mut keeper = StatusKeeper::default();
    for second in 0..90 {
        assert!(
            !hangs(&keeper.status(&observation(f64::from(second), u64::try_from(second / 15).unwrap()))),
            "{second}"
        );
    }
    assert!(hangs(&keeper.status(&observation(200.0, 5))));
}

#[test]
fn a_run_whose_chief_scores_the_network_does_not_hang() {
    let mut keeper = StatusKeeper::default();
    keeper.status(&observation(0.0, 5));
    let scoring = |second: u32| {
        let mut run = observation(f64::from(second), 6);
        run.tasks[1].heartbeat.scoring = true;
        run
    };
    (1..60).for_each(|second| drop(keeper.status(&scoring(second))));
    assert_eq!(keeper.status(&scoring(60)).stalled_secs, 0.0);
    // A chief that is no longer heard from may itself be what hangs.
    let mut silent = scoring(80);
    silent.tasks[1].heard = Some(Duration::from_secs(60));
    assert_eq!(keeper.status(&silent).stalled_secs, 20.0);
}

#[test]
fn a_score_is_drawn_once_and_their_number_is_bounded() {
    let mut keeper = StatusKeeper::default();
    for second in 1..10 {
        let mut run = observation(f64::from(second), 50);
        totals(&mut run, 0, 5, 1.0);
        let score =
            |number| Score { name: format!("score_{second}_{number}"), value: 0.5, global_step: 40, is_fraction: true };
        run.tasks[1].heartbeat.scores = (0..20).map(score).collect();
        keeper.status(&run);
        keeper.status(&run);
    }
    assert_eq!(keeper.scores.len(), SCORES);
    assert!(keeper.scores.values().all(|(_, curve)| curve.points() == [(40, Some(0.5))]));
}

#[test]
fn tasks_on_one_host_are_one_node() {
    let mut run = observation(1.0, 5);
    for task in &mut run.tasks {
        let of_task = Usage { cpus: 0.5, memory_bytes: 100, ..Usage::default() };
        let usage = Usage { node: "a".to_owned(), node_cores: 4, node_cpus: 1.0, ..of_task };
        task.heartbeat.usage = Some(Box::new(usage));
    }
    run.tasks[2].presence = Some(Presence::Dead);
    let status = StatusKeeper::default().status(&run);
    assert_eq!(status.nodes.len(), 1);
    assert_eq!((status.nodes[0].cpu, &*status.nodes[0].tasks), (0.25, &[TaskId::ps(0), TaskId::worker(0)][..]));
    assert_eq!(status.workers[1].state, page::State::Dead);
    let (worker, server) = (&status.workers[0], &status.servers[0]);
    assert_eq!((worker.cpus, server.memory_bytes), (Some(0.5), Some(100)), "and what each uses is known");
}

#[test]
fn after_the_end_no_task_is_alive() {
    let over = |exit_code| {
        let outcome = Outcome { exit_code, reason: "ps 0 was told to stop".to_owned() };
        StatusKeeper::default().status(&Observation { phase: Phase::Over(outcome), ..observation(1.0, 5) })
    };
    let (done, stopped) = (over(0), over(exit_code::TERMINATED));
    assert_eq!((done.workers[0].state, done.servers[0].state), (page::State::Done, page::State::Done));
    assert_eq!((stopped.workers[0].state, stopped.left_secs), (page::State::Ended, None));
    assert_eq!(stopped.phase, page::Phase::Stopped { why: "ps 0 was told to stop".to_owned() });
}

#[test]
fn a_run_that_failed_says_why() {
    let outcome = Outcome { exit_code: 5, reason: "gave up".to_owned() };
    let run = Observation { phase: Phase::Over(outcome), ..observation(1.0, 5) };
    let status = StatusKeeper::default().status(&run);
    assert_eq!(status.phase, page::Phase::Failed { why: "gave up".to_owned() });
}

/// A client with two joined workers, the second of which has this presence.
fn with_client(seconds: f64, step: u64, second: Option<Presence>) -> Observation {
    let mut run = observation(seconds, step);
    run.layout = RunLayout::Client { holds_parameters: true };
    run.tasks.insert(1, TaskObservation { task: TaskId::CLIENT, ..run.tasks[1].clone() });
    run.tasks[3].presence = second;
    run.chief = TaskId::CLIENT;
    run
}

#[test]
fn joined_workers_that_come_and_go_are_in_the_timeline() {
    let mut keeper = StatusKeeper::default();
    let here = [None, Some(Presence::Present), Some(Presence::Dead), Some(Presence::Present)];
    let statuses = here.iter().zip(1..).map(|(second, step)| keeper.status(&with_client(step as f64, step, *second)));
    let status = statuses.last().unwrap();
    let events: Vec<(f64, &str)> = status.timeline.events().map(|event| (event.at_secs, &*event.what)).collect();
    let expected =
        [(1.0, "worker 0 joined"), (2.0, "worker 1 joined"), (3.0, "lost worker 1"), (4.0, "worker 1 joined again")];
    assert_eq!(events, expected);
    assert_eq!((status.layout.as_str(), status.workers.len()), ("a client, 2 joined workers", 2));
    assert!(status.client.is_some());
}

#[test]
fn a_joined_worker_that_is_first_seen_when_it_has_finished_is_in_the_timeline() {
    let mut keeper = StatusKeeper::default();
    keeper.status(&with_client(1.0, 1, None));
    let status = keeper.status(&with_client(2.0, 2, Some(Presence::Finished)));
    assert_eq!(status.timeline.events().last().unwrap().what, "worker 1 joined");
}

#[test]
fn joined_workers_of_which_nobody_tells_any_more_are_forgotten() {
    let mut keeper = StatusKeeper::default();
    let statuses = (1..=20_u32).map(|second| {
        let mut run = with_client(f64::from(second), u64::from(second), Some(Presence::Present));
        // The second is another one each time, until the first such comes back.
        run.tasks[3].task.index = if second < 20 { second } else { 1 };
        keeper.status(&run)
    });
    let last = statuses.last().unwrap();
    let joined = last.timeline.events().filter(|event| event.what == "worker 1 joined");
    assert_eq!((joined.count(), last.workers[1].recent_samples_per_second.len()), (2, 1));
}

#[test]
fn what_only_an_earlier_ps_0_knew_is_lost_with_it() {
    let earlier = |step| Earlier {
        elapsed: Duration::from_secs(10),
        status: Status { step, kept_updates: step, kept_secs: 8.0, ..Status::default() },
    };
    let mut keeper = StatusKeeper::after(earlier(400));
    let mut restarted = observation(1.0, 100);
    restarted.statistics.resumed_at = 100;
    let status = keeper.status(&restarted);
    assert_eq!((status.rollbacks, status.updates_lost, status.kept_updates), (1, 300, 100));
    assert_eq!(status.timeline.events().last().unwrap().what, "rolled back to step 100: 300 updates are lost");
    // If other tasks have outlived ps 0, the new one knows.
    let mut told = observation(1.0, 100);
    told.statistics.resumed_at = 100;
    told.history.rolled_back(told.at, 450, 100);
    let status = StatusKeeper::after(earlier(400)).status(&told);
    assert_eq!((status.rollbacks, status.updates_lost), (1, 350));
}

#[test]
fn the_counts_of_a_damaged_record_overflow_nothing() {
    let mut timeline = page::Timeline::after(u64::MAX);
    (0..200).for_each(|second| {
        let (kind, what) = (page::EventKind::Saved, String::new());
        timeline.push(page::Event { at_secs: f64::from(second), kind, what });
    });
    let status =
        Status { kept_updates: u64::MAX, rollbacks: u64::MAX, updates_lost: u64::MAX, timeline, ..Status::default() };
    let mut keeper = StatusKeeper::after(Earlier { elapsed: Duration::from_secs(10), status });
    keeper.status(&observation(1.0, 50));
    let mut run = observation(2.0, 60);
    run.history.rolled_back(run.at, u64::MAX, 60);
    run.history.rolled_back(run.at, u64::MAX, 60);
    run.history.forgotten = 7;
    let status = keeper.status(&run);
    assert_eq!((status.rollbacks, status.updates_lost, status.timeline.forgotten()), (u64::MAX, u64::MAX, u64::MAX));
}

#[test]
fn until_a_new_ps_0_has_its_parameters_the_step_is_that_of_the_one_before() {
    let status = Status { step: 400, ..Status::default() };
    let mut keeper = StatusKeeper::after(Earlier { elapsed: Duration::from_secs(10), status });
    let without = |seconds, step| Observation { has_shard: false, ..observation(seconds, step) };
    let gathering = Observation { phase: Phase::Gathering, ..without(1.0, 0) };
    assert_eq!(keeper.status(&gathering).step, 400);
    let mut restored = observation(2.0, 100);
    restored.statistics.resumed_at = 100;
    assert_eq!(keeper.status(&restored).step, 100);
    assert_eq!(keeper.status(&without(3.0, 100)).step, 100, "it has lost them again, and knows better");
}

#[test]
fn what_a_client_did_under_an_earlier_ps_0_is_neither_loss_nor_speed() {
    let earlier = Earlier { elapsed: Duration::from_secs(10), status: Status::default() };
    let mut keeper = StatusKeeper::after(earlier);
    // The client is two workers to servers, the second heard from 2 s later. Each makes 10 steps per second (loss 1).
    let statuses = (1..=8_u32).map(|second| {
        let mut run = observation(f64::from(second), u64::from(20 * second));
        run.layout = RunLayout::Client { holds_parameters: false };
        let steps = u64::from(10_000 + 10 * second);
        totals(&mut run, 0, steps, f64::from(50_000 + 10 * second));
        if second > 2 {
            totals(&mut run, 1, steps, f64::from(50_000 + 10 * second));
        }
        keeper.status(&run.with_client(&[]))
    });
    let statuses: Vec<Status> = statuses.collect();
    let losses: Vec<f64> = statuses.last().unwrap().loss.points().iter().filter_map(|(_, loss)| *loss).collect();
    assert_eq!(losses, [1.0; 5]);
    let fastest = statuses.iter().map(|status| status.samples_per_second).fold(0.0, f64::max);
    assert_eq!(fastest, 200.0);
}

#[test]
fn what_a_worker_did_under_an_earlier_ps_0_is_no_speed() {
    let mut keeper = StatusKeeper::default();
    keeper.status(&observation(1.0, 50));
    let speed = (2..=4).map(|second| {
        let mut run = observation(f64::from(second), 50 + 10 * u64::try_from(second).unwrap());
        totals(&mut run, 0, 10_000 + 10 * u64::try_from(second).unwrap(), 0.0);
        keeper.status(&run).workers[0].samples_per_second
    });
    assert_eq!(speed.last(), Some(100.0));
}
