//! The state of a run in one sentence.

use windlass_core::cluster::TaskId;
use windlass_core::hang::Wait;

use crate::figures::{about, count, duration, plain, rate};
use crate::status::{Phase, State, Status};

/// A worker's wait of this length is mentioned even though others make progress.
const LONG_WAIT_SECS: f64 = 10.0;
/// If there are more tasks than this, only the first few are named.
const NAMED: usize = 4;

/// The state of a run in one sentence without a full stop:
/// `Training: step 5,210 of 10,000, 2,050 steps/s, done in about 2 s`.
pub fn headline(status: &Status) -> String {
    let step = count(status.step);
    let awaited = |what: &str| match &status.awaited {
        Some(Wait { on, secs }) if !on.is_empty() => format!(": waiting for {}{what}, {}", tasks(on), duration(*secs)),
        _ => String::new(),
    };
    match &status.phase {
        Phase::Gathering => format!("Gathering{}", or(awaited(""), ": waiting for the first tasks")),
        Phase::Preparing => format!("Preparing{}", or(awaited(""), ": the servers set up their parameters")),
        Phase::Initialising => {
            format!("Initialising{}", or(awaited(" to send the first values"), ": the chief sends the first values"))
        }
        Phase::Training => training(status),
        Phase::Finishing => format!("Finishing at step {step}{}", awaited(" to score the network")),
        Phase::Saving => format!("Saving the last checkpoint, of step {step}"),
        Phase::Over => {
            let steps = status.step.saturating_sub(status.start);
            format!("Over: step {step} reached, {} steps in {}", count(steps), duration(status.elapsed_secs))
        }
        Phase::Stopped { why } => format!("Stopped at step {}: {}", step_of(status), plain(why)),
        Phase::Failed { why } => format!("Failed at step {step}: {}", plain(why)),
        Phase::Died if status.step == 0 => "Died before the first step".to_owned(),
        Phase::Died => format!("Died at step {}", step_of(status)),
        Phase::Unknown => format!("Last seen at step {}", step_of(status)),
    }
}

/// `5,210 of 10,000`.
fn step_of(status: &Status) -> String {
    match status.target {
        Some(target) => format!("{} of {}", count(status.step), count(target)),
        None => count(status.step),
    }
}

fn training(status: &Status) -> String {
    let longest = longest_wait(status);
    if let Some(hang) = status.hang() {
        let step = count(status.step);
        return match (longest, hang.roots.first()) {
            (Some(wait), Some(root)) => format!("Stuck at step {step}: {wait}; {}", root.finding),
            (None, Some(root)) => format!("Stuck at step {step}: {}", root.finding),
            _ => format!("Stuck at step {step} for {}", duration(status.stalled_secs)),
        };
    }
    let mut text = format!("Training: step {}", step_of(status));
    if status.stalls() {
        text += &format!(", no step for {}", duration(status.stalled_secs));
    } else {
        if status.steps_per_second > 0.0 {
            text += &format!(", {} steps/s", rate(status.steps_per_second));
        }
        if let Some(left) = status.left_secs.filter(|left| left.is_finite()) {
            text += &format!(", done in about {}", about(left));
        }
    }
    let dead = status.trainers().filter(|(_, worker)| worker.state == State::Dead);
    let dead: Vec<TaskId> = dead.map(|(task, _)| task).collect();
    if !dead.is_empty() {
        text += &format!("; {} {} dead", tasks(&dead), if dead.len() == 1 { "is" } else { "are" });
    }
    if let Some(wait) = longest {
        text += &format!("; {wait}");
    }
    text
}

/// The longest wait of a worker, if it is worth mentioning: `worker 3 has waited 12 s for ps 1`.
fn longest_wait(status: &Status) -> Option<String> {
    let waits = status.trainers().filter_map(|(task, worker)| Some((task, worker.wait.as_ref()?)));
    let (task, wait) = waits.max_by(|a, b| a.1.secs.total_cmp(&b.1.secs))?;
    let long = (wait.secs >= LONG_WAIT_SECS || status.stalls()) && !wait.on.is_empty();
    long.then(|| format!("{task} has waited {} for {}", duration(wait.secs), tasks(&wait.on)))
}

fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() { otherwise.into() } else { text }
}

/// The names of tasks, abbreviated if there are many: `ps 1, worker 0 and 30 others`.
pub(crate) fn tasks(tasks: &[TaskId]) -> String {
    let (named, others) = tasks.split_at(if tasks.len() > NAMED { NAMED - 1 } else { tasks.len() });
    let mut names: Vec<String> = named.iter().map(TaskId::to_string).collect();
    if !others.is_empty() {
        names.push(format!("{} others", others.len()));
    }
    match names.as_slice() {
        [] => "nobody".into(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Worker;

    fn training() -> Status {
        Status {
            phase: Phase::Training,
            step: 5210,
            target: Some(10_000),
            steps_per_second: 2050.4,
            left_secs: Some(2.3),
            ..Status::default()
        }
    }

    fn awaiting(phase: Phase, on: Vec<TaskId>) -> String {
        headline(&Status { phase, awaited: Some(Wait { on, secs: 12.0 }), step: 400, ..Status::default() })
    }

    fn waiting_for_ps_1() -> Worker {
        let wait = Some(Wait { on: vec![TaskId::ps(1)], secs: 12.0 });
        Worker { index: 3, state: State::Waiting, silent_secs: Some(0.5), wait, ..Worker::default() }
    }

    #[test]
    fn a_run_that_trains_says_how_far_it_is_and_how_long_it_takes() {
        assert_eq!(headline(&training()), "Training: step 5,210 of 10,000, 2,050 steps/s, done in about 2 s");
        let endless = Status { target: None, left_secs: None, ..training() };
        assert_eq!(headline(&endless), "Training: step 5,210, 2,050 steps/s");
    }

    #[test]
    fn a_dead_worker_is_named() {
        let worker = Worker { index: 3, state: State::Dead, ..Worker::default() };
        let status = Status { workers: vec![worker], ..training() };
        assert!(headline(&status).ends_with("done in about 2 s; worker 3 is dead"), "{}", headline(&status));
    }

    #[test]
    fn a_long_wait_is_named_although_others_get_on() {
        let status = Status { workers: vec![waiting_for_ps_1()], ..training() };
        assert!(headline(&status).ends_with("; worker 3 has waited 12 s for ps 1"), "{}", headline(&status));
    }

    #[test]
    fn a_run_that_makes_no_step_is_not_called_fast() {
        let mut worker = waiting_for_ps_1();
        worker.wait = Some(Wait { on: vec![TaskId::ps(1)], secs: 4.0 });
        let status = Status { workers: vec![worker], stalled_secs: 4.0, ..training() };
        let expected = "Training: step 5,210 of 10,000, no step for 4.0 s; worker 3 has waited 4.0 s for ps 1";
        assert_eq!(headline(&status), expected);
    }

    #[test]
    fn a_run_that_hangs_says_who_waits_for_whom() {
        let status = Status { workers: vec![waiting_for_ps_1()], stalled_secs: 14.0, ..training() };
        let expected = "Stuck at step 5,210: worker 3 has waited 12 s for ps 1; ps 1 is unknown: it has never joined";
        assert_eq!(headline(&status), expected);
    }

    #[test]
    fn the_other_phases_say_what_they_wait_for() {
        let missing = (0..32).map(TaskId::worker).collect();
        assert_eq!(
            awaiting(Phase::Gathering, missing),
            "Gathering: waiting for worker 0, worker 1, worker 2 and 29 others, 12 s"
        );
        let chief = || vec![TaskId::worker(0)];
        assert_eq!(
            awaiting(Phase::Initialising, chief()),
            "Initialising: waiting for worker 0 to send the first values, 12 s"
        );
        let finishing = "Finishing at step 400: waiting for worker 0 to score the network, 12 s";
        assert_eq!(awaiting(Phase::Finishing, chief()), finishing);
        assert_eq!(headline(&Status::default()), "Gathering: waiting for the first tasks");
    }

    #[test]
    fn the_end_is_told_with_its_reason() {
        let over = Status { phase: Phase::Over, step: 10_000, start: 2_000, elapsed_secs: 5.17, ..Status::default() };
        assert_eq!(headline(&over), "Over: step 10,000 reached, 8,000 steps in 5.2 s");
        let failed = Phase::Failed { why: "ps 1 did not come back in 60 s".into() };
        assert_eq!(
            headline(&Status { phase: failed, ..over }),
            "Failed at step 10,000: ps 1 did not come back in 60 s"
        );
        let stopped = Phase::Stopped { why: "ps 0 was told to stop".into() };
        let expected = "Stopped at step 5,210 of 10,000: ps 0 was told to stop";
        assert_eq!(headline(&training().ended(stopped)), expected);
    }

    #[test]
    fn a_run_that_died_promises_nothing() {
        let worker = Worker { index: 3, state: State::Dead, ..Worker::default() };
        let died = Status { workers: vec![worker, waiting_for_ps_1()], ..training() }.ended(Phase::Died);
        assert_eq!(headline(&died), "Died at step 5,210 of 10,000");
        let gathered = Status { phase: Phase::Gathering, step: 0, ..training() };
        assert_eq!(headline(&gathered.ended(Phase::Died)), "Died before the first step");
        assert_eq!(headline(&training().ended(Phase::Unknown)), "Last seen at step 5,210 of 10,000");
    }
}
