//! Tests of verdicts on crafted and on random measurements.

use proptest::prelude::*;

use super::*;

/// Ten seconds with 100 steps of 10 samples and no waiting.
fn steady() -> Window {
    Window {
        span_secs: 10.0,
        steps: 100,
        samples: 1000,
        compute_secs: 7.0,
        data_secs: 1.0,
        network_secs: 2.0,
        wait_secs: 0.0,
        processor_secs: Some(6.5),
        memory_stall: Some(0.0),
        swapped: None,
    }
}

/// The same steps as `window` in more time, all of which is spent waiting for others.
fn waiting(window: Window, more_secs: f64) -> Window {
    Window { span_secs: window.span_secs + more_secs, wait_secs: window.wait_secs + more_secs, ..window }
}

fn measured(windows: &[Vec<Window>]) -> Vec<Measured> {
    let of_worker =
        |(index, windows): (usize, &Vec<Window>)| Measured { worker: WorkerId(index as u32), windows: windows.clone() };
    windows.iter().enumerate().map(of_worker).collect()
}

/// Judges three steady workers and one with these windows.
fn beside_steady_ones(windows: Vec<Window>) -> Verdict {
    let usual = vec![steady(); windows.len()];
    judge(&measured(&[usual.clone(), usual.clone(), windows, usual]))
}

fn only_straggler(verdict: Verdict) -> Straggler {
    match verdict {
        Verdict::Stragglers { stragglers } if stragglers.len() == 1 => stragglers[0].clone(),
        other => panic!("expected one straggler: {other:?}"),
    }
}

#[test]
fn equal_workers_are_even() {
    assert_eq!(beside_steady_ones(vec![steady(); 5]), Verdict::Even);
}

#[test]
fn one_worker_alone_is_not_judged() {
    let verdict = judge(&measured(&[vec![steady(); 9]]));
    assert_eq!(verdict.to_string(), "not enough evidence: there is no second worker to compare with");
}

#[test]
fn two_windows_are_not_enough_evidence() {
    let verdict = beside_steady_ones(vec![Window { compute_secs: 70.0, span_secs: 73.0, ..steady() }; 2]);
    assert!(matches!(verdict, Verdict::NotEnoughEvidence { .. }), "{verdict:?}");
}

#[test]
fn in_a_synchronous_run_the_one_that_never_waits_is_to_blame_and_not_those_that_do() {
    let slow = Window { span_secs: 24.0, compute_secs: 21.0, processor_secs: Some(20.0), ..steady() };
    let others = vec![waiting(steady(), 14.0); 5];
    let straggler = only_straggler(judge(&measured(&[others.clone(), others.clone(), vec![slow; 5], others])));
    assert_eq!((straggler.worker, straggler.course), (WorkerId(2), Course::Chronic));
    assert_eq!(straggler.cause, Cause::Compute);
    assert!((straggler.slowdown - 2.4).abs() < 1e-9, "{}", straggler.slowdown);
}

#[test]
fn one_long_pause_is_a_moment_and_not_a_habit() {
    let paused = Window { steps: 20, samples: 200, compute_secs: 1.4, data_secs: 0.2, network_secs: 0.4, ..steady() };
    let mut windows = vec![steady(); 8];
    windows[5] = paused;
    let straggler = only_straggler(beside_steady_ones(windows));
    assert_eq!((straggler.course, straggler.cause), (Course::OneOff, Cause::NotScheduled));
    assert_eq!((straggler.slow_windows, straggler.judged_windows), (1, 8));
}

#[test]
fn a_little_jitter_is_no_verdict() {
    let mut windows = vec![steady(); 8];
    windows[3] = Window { span_secs: 18.0, compute_secs: 15.0, ..steady() };
    assert_eq!(beside_steady_ones(windows), Verdict::Even);
}

#[test]
fn the_part_of_the_step_that_exceeds_the_others_is_the_cause() {
    let of = |window: Window| only_straggler(beside_steady_ones(vec![window; 4])).cause;
    assert_eq!(of(Window { span_secs: 25.0, network_secs: 17.0, ..steady() }), Cause::Network);
    assert_eq!(of(Window { span_secs: 25.0, data_secs: 16.0, ..steady() }), Cause::Data);
    let both = Window { data_secs: 7.0, network_secs: 8.0, compute_secs: 13.0, span_secs: 28.0, ..steady() };
    assert_eq!(of(Window { processor_secs: None, ..both }), Cause::Unclear);
}

#[test]
fn a_slow_computation_that_uses_little_processor_time_is_not_being_scheduled() {
    let starved = Window { span_secs: 25.0, compute_secs: 22.0, processor_secs: Some(6.5), ..steady() };
    assert_eq!(only_straggler(beside_steady_ones(vec![starved; 4])).cause, Cause::NotScheduled);
}

#[test]
fn a_slow_computation_that_stalls_on_memory_is_short_of_it() {
    let window = Window { span_secs: 25.0, compute_secs: 22.0, memory_stall: Some(0.5), ..steady() };
    assert_eq!(only_straggler(beside_steady_ones(vec![window; 4])).cause, Cause::MemoryPressure);
}

#[test]
fn a_slow_worker_whose_memory_is_swapped_out_is_told_so_unless_the_others_are_swapped_out_too() {
    let swapped = |share| Window { swapped: Some(share), ..steady() };
    let slow = |share| Window { span_secs: 25.0, ..swapped(share) };
    let of = |window: Window| only_straggler(beside_steady_ones(vec![window; 4])).cause;
    assert_eq!(of(slow(0.4)), Cause::SwappedOut);
    assert_eq!(of(Window { compute_secs: 22.0, memory_stall: Some(0.5), ..slow(0.4) }), Cause::SwappedOut);
    assert_eq!(of(slow(0.01)), Cause::NotScheduled, "what it does without is no reason");
    assert_eq!(of(Window { network_secs: 17.0, ..slow(0.4) }), Cause::Network);
    let all = judge(&measured(&[vec![swapped(0.3); 4], vec![slow(0.4); 4], vec![swapped(0.3); 4]]));
    assert_eq!(only_straggler(all).cause, Cause::NotScheduled);
}

#[test]
fn a_worker_that_finishes_no_step_is_slow_but_one_that_only_waits_is_not() {
    let stuck = Window { span_secs: 10.0, ..Window::default() };
    let straggler = only_straggler(beside_steady_ones(vec![stuck; 3]));
    assert_eq!(straggler.cause, Cause::NotScheduled);
    let held_back = Window { span_secs: 10.0, wait_secs: 9.9, ..Window::default() };
    assert_eq!(beside_steady_ones(vec![held_back; 3]), Verdict::Even);
}

#[test]
fn a_larger_batch_is_not_slowness() {
    let large = Window { steps: 25, ..steady() };
    assert_eq!(beside_steady_ones(vec![Window { network_secs: 0.5, compute_secs: 8.5, ..large }; 4]), Verdict::Even);
}

#[test]
fn if_nobody_finishes_a_step_nobody_is_a_straggler() {
    let stuck = vec![Window { span_secs: 10.0, ..Window::default() }; 5];
    let verdict = judge(&measured(&[stuck.clone(), stuck]));
    assert!(matches!(verdict, Verdict::NotEnoughEvidence { .. }), "{verdict:?}");
}

#[test]
fn the_verdict_reads_as_a_sentence() {
    let slow = Window { span_secs: 25.0, network_secs: 17.0, ..steady() };
    let expected =
        "worker 2 is a chronic straggler: 2.5 times the others' step time in 4 of 4 windows; its network is slow";
    assert_eq!(beside_steady_ones(vec![slow; 4]).to_string(), expected);
}

prop_compose! {
    fn any_window()(
        steps in 0u64..200, batch in 1u64..64, compute in 0.0..8.0, data in 0.0..3.0, network in 0.0..3.0,
        wait in 0.0..9.0, absent in 0.0..3.0, processor in proptest::option::of(0.0..8.0),
        stall in proptest::option::of(0.0..1.0), swapped in proptest::option::of(0.0..1.0),
    ) -> Window {
        Window {
            span_secs: compute + data + network + wait + absent, steps, samples: steps * batch, compute_secs: compute,
            data_secs: data, network_secs: network, wait_secs: wait, processor_secs: processor, memory_stall: stall,
            swapped,
        }
    }
}

fn any_workers() -> impl Strategy<Value = Vec<Vec<Window>>> {
    proptest::collection::vec(proptest::collection::vec(any_window(), 0..8), 0..6)
}

proptest! {
    #[test]
    fn any_measurements_have_a_verdict_that_names_only_workers_of_the_run(workers in any_workers()) {
        if let Verdict::Stragglers { stragglers } = judge(&measured(&workers)) {
            prop_assert!(!stragglers.is_empty());
            for straggler in stragglers {
                prop_assert!((straggler.worker.0 as usize) < workers.len());
                prop_assert!(straggler.slowdown >= 1.5);
                prop_assert!(straggler.slow_windows <= straggler.judged_windows);
            }
        }
    }

    #[test]
    fn waiting_for_others_changes_no_verdict(mut factors in proptest::collection::vec(0.5f64..5.0, 2..6), more in 0.0f64..100.0) {
        factors.push(1.0);
        let windows = |more: f64| -> Vec<Vec<Window>> {
            let of = |factor: &f64| Window { span_secs: 3.0 + 7.0 * factor, compute_secs: 7.0 * factor, ..steady() };
            factors.iter().map(|factor| vec![waiting(of(factor), more * factor); 4]).collect()
        };
        let names = |verdict: Verdict| match verdict {
            Verdict::Stragglers { stragglers } => stragglers.into_iter().map(|found| found.worker).collect(),
            _ => Vec::new(),
        };
        prop_assert_eq!(names(judge(&measured(&windows(0.0)))), names(judge(&measured(&windows(more)))));
    }

    #[test]
    fn a_worker_that_computes_for_much_longer_is_always_named(workers in 2usize..12, slow in 0usize..12, factor in 2.5f64..50.0) {
        let slow = slow % workers;
        let windows = |index: usize| {
            let slower = Window { span_secs: 3.0 + 7.0 * factor, compute_secs: 7.0 * factor, processor_secs: None, ..steady() };
            let ahead = waiting(steady(), 7.0 * (factor - 1.0));
            vec![if index == slow { slower } else { ahead }; 5]
        };
        let straggler = only_straggler(judge(&measured(&(0..workers).map(windows).collect::<Vec<_>>())));
        prop_assert_eq!(straggler.worker, WorkerId(slow as u32));
        prop_assert_eq!(straggler.cause, Cause::Compute);
    }
}
