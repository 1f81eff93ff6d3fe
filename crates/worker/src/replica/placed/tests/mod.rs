//! Tests of `placed`: a model divided into stages computes the same as an undivided one.

mod branching;
mod workers;

use windlass_core::parameter::ParameterKind;

use self::branching::Branching;
use super::*;
use crate::batches::order::DataPosition;
use crate::randomness::Draw;

const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };

fn local(model: &Branching, parts: usize) -> Local<Branching> {
    Local::new(model.clone(), LocalConfig { accumulate: parts, ..LocalConfig::on_cpu(7) }).unwrap()
}

/// Places the stages on these lanes of the CPU: trunk, left, right, head.
fn config(lanes: [usize; 4], micro_batches: usize) -> PlacedConfig {
    with_towers(lanes.each_ref().map(std::slice::from_ref), micro_batches)
}

/// Like [`config`], with several lanes for each stage.
fn with_towers(lanes: [&[usize]; 4], micro_batches: usize) -> PlacedConfig {
    let place = |lane: &usize| Place { name: format!("cpu:{lane}"), at: PlaceAt::Here(Device::flex()) };
    let places = ["trunk", "left", "right", "head"].into_iter().zip(lanes);
    PlacedConfig {
        client: ("cpu:0".to_owned(), Device::flex()),
        places: places.map(|(stage, lanes)| (stage.to_owned(), lanes.iter().map(place).collect())).collect(),
        micro_batches,
        threads: 2,
        seed: 7,
        trace: None,
    }
}

fn placed(model: &Branching, lanes: [usize; 4], micro_batches: usize) -> Placed {
    Placed::of(model.clone(), config(lanes, micro_batches)).unwrap()
}

/// Computes a step on these samples with values other than the initial ones.
fn step(replica: &mut dyn Replica, samples: &[usize]) -> anyhow::Result<StepResult> {
    let batch = replica.source().batch(samples, DRAW)?;
    let values = loaded(replica, batch.rows());
    replica.load(values);
    replica.step(batch)
}

/// Returns the initial values plus a little, with these rows.
fn loaded(replica: &dyn Replica, rows: &[RowRequest]) -> Vec<TensorBuffer> {
    let mut values = replica.first_values();
    values.iter_mut().for_each(|values| values.iter_mut().for_each(|value| *value += 0.25));
    for RowRequest { parameter, rows } in rows {
        let (width, table) = (replica.table()[*parameter].width(), &mut values[parameter.0 as usize]);
        let own: Vec<f32> = rows.iter().flat_map(|row| &table[*row as usize * width..][..width]).copied().collect();
        *table = own.into();
    }
    values
}

fn assert_near(got: &StepResult, expected: &StepResult, what: &str) {
    assert_eq!(got.samples, expected.samples, "{what}");
    let near = |one: f32, other: f32| (one - other).abs() <= 1e-4 * (1.0 + other.abs());
    assert!(near(got.loss, expected.loss), "{what}: a loss of {} and not {}", got.loss, expected.loss);
    for (lists, name) in [((&got.gradients, &expected.gradients), "gradient"), ((&got.state, &expected.state), "state")]
    {
        assert_eq!(lists.0.len(), lists.1.len(), "{what}: {name}");
        for (index, (got, expected)) in lists.0.iter().zip(lists.1).enumerate() {
            assert_eq!(got.len(), expected.len(), "{what}: {name} {index}");
            let are_near = got.iter().zip(&**expected).all(|(one, other)| near(*one, *other));
            assert!(are_near, "{what}: {name} {index} is {got:?} and not {expected:?}");
        }
    }
}

const SAMPLES: [usize; 7] = [4, 19, 2, 11, 5, 17, 8];

#[test]
fn a_client_has_room_for_a_gradient_from_every_device_of_a_stage() {
    let bytes = |lanes| Placed::of(Branching::default(), with_towers(lanes, 3)).unwrap().gradient_bytes();
    let on_one = bytes([&[0], &[1], &[0], &[1]]);
    assert_eq!(on_one, local(&Branching::default(), 1).gradient_bytes());
    // Each branch has ten trained parameters.
    let (left, right) = (10 * size_of::<f32>() as u64, 10 * size_of::<f32>() as u64);
    assert_eq!(bytes([&[0], &[1, 2], &[0, 1, 2], &[1]]), on_one + left + 2 * right);
}

#[test]
fn stages_compute_what_the_whole_model_does_wherever_they_are_and_however_a_batch_is_split() {
    for is_summed in [false, true] {
        let model = Branching { is_summed, ..Branching::default() };
        let expected = step(&mut local(&model, 1), &SAMPLES).unwrap();
        assert!(expected.gradients.iter().flat_map(|gradient| gradient.iter()).any(|value| value.abs() > 0.1));
        for lanes in [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]] {
            for micro_batches in [1, 2, 3, 4, 7] {
                let mut placed = placed(&model, lanes, micro_batches);
                for again in 0..2 {
                    let got = step(&mut placed, &SAMPLES).unwrap();
                    // The running state differs for a batch in parts, as the next test shows.
                    let got = StepResult { state: expected.state.clone(), ..got };
                    let what = format!("{micro_batches} micro-batches on {lanes:?}, {again}, summed {is_summed}");
                    assert_near(&got, &expected, &what);
                }
            }
        }
    }
}

#[test]
fn running_statistics_and_dropout_are_those_of_a_batch_computed_in_as_many_parts() {
    for (dropout, has_norm) in [(0.5, false), (0.0, true), (0.5, true)] {
        let model = Branching { dropout, has_norm, ..Branching::default() };
        for micro_batches in [1, 2] {
            let expected = step(&mut local(&model, micro_batches), &SAMPLES).unwrap();
            let mut placed = placed(&model, [0, 1, 2, 3], micro_batches);
            for _ in 0..3 {
                assert_near(
                    &step(&mut placed, &SAMPLES).unwrap(),
                    &expected,
                    &format!("{micro_batches} micro-batches"),
                );
            }
            assert!(expected.state.iter().any(|state| !state.is_empty()));
        }
    }
}

#[test]
fn a_stage_of_several_towers_computes_what_one_device_does() {
    for (is_summed, dropout) in [(false, 0.5), (true, 0.0)] {
        let model = Branching { is_summed, dropout, ..Branching::default() };
        for (lanes, micro_batches) in [
            ([&[0, 1][..], &[0], &[1], &[0]], 2),
            ([&[0, 1], &[1, 0], &[2], &[1, 2]], 4),
            ([&[0, 1, 2], &[3], &[0, 3], &[1]], 7),
        ] {
            let expected = step(&mut local(&model, micro_batches), &SAMPLES).unwrap();
            let mut placed = Placed::of(model.clone(), with_towers(lanes, micro_batches)).unwrap();
            for again in 0..3 {
                let got = step(&mut placed, &SAMPLES).unwrap();
                // The next test covers running statistics.
                let got = StepResult { state: expected.state.clone(), ..got };
                assert_near(&got, &expected, &format!("{micro_batches} parts on {lanes:?}, {again}, {is_summed}"));
            }
            assert_eq!(
                placed.placement()[0].device,
                lanes[0].iter().map(|lane| format!("cpu:{lane}")).collect::<Vec<_>>().join("+")
            );
            // With fewer samples than devices, some devices have nothing to do.
            let few = &SAMPLES[..1];
            let expected = step(&mut local(&model, micro_batches), few).unwrap();
            let got = step(&mut placed, few).unwrap();
            assert_near(&StepResult { state: expected.state.clone(), ..got }, &expected, "one sample");
        }
    }
}

#[test]
fn running_statistics_of_several_towers_are_theirs_on_average() {
    let model = Branching { has_norm: true, ..Branching::default() };
    // One tower computes three samples and the other two, each from the same values.
    let samples = &SAMPLES[..5];
    let parts = [&samples[..3], &samples[3..]].map(|part| step(&mut local(&model, 1), part).unwrap().state);
    let mut placed = Placed::of(model, with_towers([&[0, 1], &[0], &[1], &[0]], 2)).unwrap();
    let got = step(&mut placed, samples).unwrap();
    let mut compared = 0;
    for (index, state) in got.state.iter().enumerate() {
        for (at, value) in state.iter().enumerate() {
            let expected = 0.6 * parts[0][index][at] + 0.4 * parts[1][index][at];
            assert!((value - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{value} instead of {expected}");
            assert_ne!(parts[0][index][at], parts[1][index][at]);
            compared += 1;
        }
    }
    assert_eq!(compared, 8, "mean and variance of four features");
}

#[test]
fn a_stage_that_fails_is_named_and_the_next_step_is_as_if_it_had_not() {
    let model = Branching { has_norm: true, fails_on: Some(3.0), ..Branching::default() };
    let mut placed = placed(&model, [0, 1, 2, 3], 2);
    let failed = step(&mut placed, &[1, 5, 3, 9]).unwrap_err();
    assert_eq!(format!("{failed:#}"), "forward right 2: does not like a sample");
    let expected = step(&mut local(&model, 2), &SAMPLES).unwrap();
    assert_near(&step(&mut placed, &SAMPLES).unwrap(), &expected, "after a failure");
}

#[test]
fn a_stage_that_takes_the_parameter_of_another_makes_no_loss() {
    let mut placed = placed(&Branching { is_greedy: true, ..Branching::default() }, [0, 1, 1, 1], 1);
    assert!(step(&mut placed, &SAMPLES).unwrap().loss.is_nan());
}

#[test]
fn a_step_that_is_thrown_away_changes_nothing() {
    let model = Branching { has_norm: true, ..Branching::default() };
    let mut placed = placed(&model, [0, 1, 0, 1], 2);
    let batch = |placed: &Placed| placed.source().batch(&SAMPLES, DRAW).unwrap();
    placed.rehearse(batch(&placed)).unwrap();
    assert_eq!(placed.evaluate().unwrap(), local(&model, 1).evaluate().unwrap());
    let first = placed.first_values();
    let (rows, step_batch) = (batch(&placed).rows().to_vec(), batch(&placed));
    let words = rows[0].parameter.0 as usize;
    let mut values: Vec<TensorBuffer> = vec![TensorBuffer::default(); first.len()];
    values[words] =
        rows[0].rows.iter().flat_map(|row| &first[words][*row as usize * 2..][..2]).copied().collect::<Vec<_>>().into();
    placed.load(values.clone());
    let after = placed.step(step_batch).unwrap();
    let mut fresh = local(&model, 2);
    let batch = fresh.source().batch(&SAMPLES, DRAW).unwrap();
    fresh.load(values);
    assert_near(&after, &fresh.step(batch).unwrap(), "after a rehearsal");
}

#[test]
fn the_whole_network_is_scored_with_the_values_that_were_loaded_last() {
    let model = Branching::default();
    let (mut placed, mut local) = (placed(&model, [0, 1, 0, 1], 2), local(&model, 1));
    let values = loaded(&local, &[]);
    placed.load(values.clone());
    local.load(values);
    assert_eq!(placed.evaluate().unwrap(), local.evaluate().unwrap());
    step(&mut placed, &SAMPLES).unwrap();
    let kinds: Vec<ParameterKind> = placed.table().iter().map(|(_, spec)| spec.kind).collect();
    assert!(kinds.contains(&ParameterKind::Constant) && kinds.contains(&ParameterKind::State));
}

#[test]
fn every_piece_of_a_step_is_in_the_trace_and_counts_as_work_of_its_device() {
    let trace = Trace::default();
    assert_eq!(trace.to_json(), None);
    let config = PlacedConfig { trace: Some(trace.clone()), ..config([0, 1, 0, 1], 2) };
    let mut placed = Placed::of(Branching::default(), config).unwrap();
    for _ in 0..TRACED_STEPS + 3 {
        step(&mut placed, &SAMPLES).unwrap();
    }
    let trace: serde_json::Value = serde_json::from_str(&trace.to_json().unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let complete: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    // For each stage: two micro-batches forward and backward, its values and its gradients.
    assert_eq!(complete.len(), TRACED_STEPS * 4 * (2 * 2 + 2));
    let mut names: Vec<(u64, &str)> = complete
        .iter()
        .map(|event| (event["args"]["step"].as_u64().unwrap(), event["name"].as_str().unwrap()))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), complete.len(), "each piece of a step is there once");
    assert!(names.contains(&(1, "backward right 2")));
    assert!(complete.iter().all(|event| event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0));
    let lanes: Vec<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    assert_eq!(lanes, ["cpu:0", "cpu:1"]);
    let reports = placed.lanes();
    assert_eq!(reports[1].stages, ["left", "head"]);
    assert!(reports.iter().all(|report| report.busy > 0.0 && report.busy <= 1.0), "{reports:?}");
}

#[test]
fn a_batch_that_is_fed_to_no_stage_is_refused_before_the_first_step() {
    let check = |model: &Branching| placed(model, [0; 4], 2).check(&SAMPLES);
    check(&Branching::default()).unwrap();
    let refused = check(&Branching { feeds_nobody: true, ..Branching::default() }).unwrap_err();
    assert_eq!(refused.to_string(), "`feed` names `nobody`, but the model has no such stage");
}

#[test]
fn what_cannot_be_divided_is_refused_by_name() {
    let place = Place { name: "cpu:1".to_owned(), at: PlaceAt::Here(Device::flex()) };
    let config = PlacedConfig { places: vec![("tail".to_owned(), vec![place])], ..config([0; 4], 1) };
    let refused = Placed::of(Branching::default(), config).err().unwrap();
    assert_eq!(refused.to_string(), "--place: branching has no stage \"tail\"");
    assert_eq!(refused.hint().unwrap(), "its stages are trunk, left, right, head");
}
