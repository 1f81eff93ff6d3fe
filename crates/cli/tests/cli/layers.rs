//! A custom model with layers that have more than trained weights: running statistics follow training without being
//! trained, frozen layers stay unchanged, and random numbers are derived from seed, worker and step.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Launched, summary};
use crate::own_crate::OwnCrate;
use crate::process::{Invocation, Told};

/// `tests/models/layers.rs`, built once for all tests here.
static PROGRAM: LazyLock<OwnCrate> = LazyLock::new(|| OwnCrate::build("tests/models/layers.rs", "layers"));

/// The program with that model.
pub fn layers(words: &str) -> Invocation {
    Invocation::new(PROGRAM.path(), words)
}

/// The same program, run in the directory of a command that has ended.
pub fn after(told: &Told, words: &str) -> Invocation {
    told.invoke(PROGRAM.path(), words)
}

/// A complete run, in the directory `run`.
fn trained(words: &str) -> Told {
    layers(&format!("{words} --format json --run-dir run")).run().succeeded()
}

/// The tensors of the newest checkpoint in `run`, by name.
pub fn tensors(told: &Told) -> BTreeMap<String, Vec<f32>> {
    after(told, "checkpoint export run --output model.safetensors").run().succeeded();
    let (header, data) = safetensors(&told.directory().join("model.safetensors"));
    let values = |spec: &Value| {
        let [start, end] = [0, 1].map(|at| spec["data_offsets"][at].as_u64().unwrap() as usize);
        data[start..end].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    tensors.map(|(name, spec)| (name.clone(), values(spec))).collect()
}

fn safetensors(path: &Path) -> (Value, Vec<u8>) {
    let file = fs::read(path).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).unwrap(), data.to_vec())
}

/// The names of all tensors in the parts of the newest checkpoint: values and the optimizer's state.
fn written(told: &Told) -> Vec<String> {
    let checkpoints = fs::read_dir(told.directory().join("run/checkpoints")).unwrap();
    let directories = checkpoints.map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        path.is_dir() && name.starts_with(|first: char| first.is_ascii_digit())
    });
    let parts = fs::read_dir(directories.max().expect("a checkpoint")).unwrap();
    let headers = parts.map(|part| safetensors(&part.unwrap().path()).0);
    headers.flat_map(|header| header.as_object().unwrap().keys().cloned().collect::<Vec<_>>()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Asserts that the final values and their checkpoint have the same scores.
fn scores_agree(words: &str) {
    let told = trained(words);
    let in_training = &summary(&told)["metrics"];
    let scored = after(&told, "eval layers --checkpoint run --format json").run().succeeded();
    let scored: Value = serde_json::from_str(scored.stdout.trim()).unwrap();
    assert_eq!(&scored["metrics"], in_training, "{words}");
    assert!(in_training["accuracy"].as_f64() > Some(0.85), "{words}: {in_training}");
}

#[test]
fn a_single_process_and_eval_score_a_normalised_network_alike() {
    scores_agree("train layers");
}

#[test]
fn an_async_cluster_and_eval_score_a_normalised_network_alike() {
    scores_agree("launch layers");
}

#[test]
fn a_sync_cluster_and_eval_score_a_normalised_network_alike() {
    scores_agree("launch layers --mode sync --steps 300");
}

#[test]
fn a_bounded_cluster_and_eval_score_a_normalised_network_alike() {
    scores_agree("launch layers --mode ssp --staleness 2");
}

#[test]
fn colocated_workers_and_eval_score_a_normalised_network_alike() {
    scores_agree("launch layers --colocate");
}

#[test]
fn running_statistics_may_be_spread_over_two_servers() {
    scores_agree("launch layers --ps 2 --sharding round_robin");
    scores_agree("launch layers --ps 2 --min-shard-bytes 0 --mode sync --steps 300");
}

#[test]
fn an_evaluator_scores_a_normalised_network_as_the_run_does() {
    let run = Launched::by(layers("launch layers --format json --run-dir run"));
    let evaluator = run.0.invoke(PROGRAM.path(), "train layers --job_name evaluator --run-dir run").start();
    let trained = run.wait().succeeded();
    let accuracy = summary(&trained)["metrics"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.85, "{trained}");
    let last = format!("evaluator  step 1000: accuracy {:.2}%", accuracy * 100.0);
    let scored = evaluator.wait().succeeded();
    assert!(scored.stdout.contains(&last), "no {last:?} in {scored}");
}

/// The layers before the normalization are frozen, so the statistics depend on the data alone.
#[test]
fn no_optimizer_touches_running_statistics() {
    let statistics = |optimizer: &str| {
        let tensors = tensors(&trained(&format!("train layers --steps 200 --optimizer {optimizer}")));
        (bits(&tensors["norm.running_mean"]), bits(&tensors["norm.running_var"]))
    };
    let by_sgd = statistics("sgd");
    assert_eq!(statistics("adamw --optimizer-option weight_decay=0.5"), by_sgd);
    assert_eq!(statistics("momentum"), by_sgd);
}

#[test]
fn running_statistics_come_to_those_of_the_data() {
    for words in ["train layers", "launch layers", "launch layers --mode sync --workers 3"] {
        let tensors = tensors(&trained(words));
        let points = (0..1000).map(|index| {
            let (radius, angle) = ((index as f32 / 1000.0).sqrt(), index as f32 * 2.399_963);
            [5.0 + 3.0 * radius * angle.cos(), -4.0 + 3.0 * radius * angle.sin()]
        });
        let points: Vec<[f32; 2]> = points.collect();
        let (weight, bias) = (&tensors["features.weight"], &tensors["features.bias"]);
        let width = bias.len();
        for feature in 0..width {
            let value = |[x, y]: &[f32; 2]| x * weight[feature] + y * weight[width + feature] + bias[feature];
            let mean = points.iter().map(value).sum::<f32>() / 1000.0;
            let variance = points.iter().map(|point| (value(point) - mean).powi(2)).sum::<f32>() / 1000.0;
            let (found_mean, found) = (tensors["norm.running_mean"][feature], tensors["norm.running_var"][feature]);
            assert!((found_mean - mean).abs() < 0.3 * variance.sqrt(), "{words}: {found_mean} for {mean}");
            assert!((found / variance - 1.0).abs() < 0.3, "{words}: {found} for {variance}");
        }
    }
}

/// The layers before the normalization are frozen, so the statistics of a step depend on its batch alone.
#[test]
fn the_running_mean_of_towers_is_that_of_one_replica() {
    let statistics = |flags: &str| {
        let tensors = tensors(&trained(&format!("train layers --steps 1 --seed 3 {flags}")));
        ["norm.running_mean", "norm.running_var"].map(|name| tensors[name].clone())
    };
    let ([mean, variance], [means, variances]) = (statistics(""), statistics("--towers 2"));
    for feature in 0..mean.len() {
        assert!((means[feature] - mean[feature]).abs() < 1e-5 * mean[feature].abs().max(1.0), "{means:?} for {mean:?}");
        // Neither half contains the variance between the halves.
        assert_ne!(variances[feature], variance[feature]);
        assert!((variances[feature] / variance[feature] - 1.0).abs() < 0.1, "{variances:?} for {variance:?}");
    }
}

#[test]
fn what_is_frozen_stays_as_it_was_and_the_optimizer_has_no_state_of_it() {
    let (one, many) = (trained("launch layers --steps 1"), trained("launch layers --optimizer adamw"));
    let (first, last) = (tensors(&one), tensors(&many));
    for name in ["features.weight", "features.bias", "order"] {
        assert_eq!(bits(&first[name]), bits(&last[name]), "{name}");
    }
    assert_ne!(first["hidden.weight"], last["hidden.weight"]);
    assert_eq!(last["order"], (0..24).rev().map(|index| index as f32).collect::<Vec<_>>());
    let written = written(&many);
    let slots =
        |name: &str| written.iter().filter(|tensor| tensor.starts_with(name) && tensor.ends_with("_moment")).count();
    assert_eq!([slots("features."), slots("order")], [0, 0], "{written:?}");
    assert!(slots("hidden.") > 0, "{written:?}");
    let inspected = after(&many, "checkpoint inspect run").run().succeeded().stdout;
    assert!(inspected.contains("frozen"), "{inspected}");
}

#[test]
fn a_network_that_is_wholly_frozen_is_not_trained() {
    for words in ["train layers", "launch layers", "launch layers --colocate"] {
        let refused = layers(&format!("{words} --freeze all")).run();
        assert_eq!(refused.exit_code(), Some(2), "{refused}");
        assert!(refused.stderr.contains("all of the network is frozen: there is nothing to train"), "{refused}");
    }
    let told = trained("train layers --steps 100");
    after(&told, "eval layers --checkpoint run --freeze all").run().succeeded();
}

#[test]
fn what_is_frozen_does_not_travel() {
    let moved = |flags: &str| {
        let bytes = &summary(&trained(&format!("launch layers --steps 20 {flags}")))["bytes_per_step"];
        [&bytes["sent"], &bytes["received"]].map(|bytes| bytes.as_f64().unwrap())
    };
    let (frozen, trained) = (moved("--freeze first"), moved("--freeze nothing"));
    assert!(frozen[0] < trained[0] && frozen[1] < trained[1], "{frozen:?} against {trained:?}");
}

#[test]
fn a_layer_may_be_frozen_or_trained_again_from_a_checkpoint_on() {
    let trained_first = trained("launch layers --ps 2 --min-shard-bytes 0 --steps 300 --freeze nothing");
    let before = tensors(&trained_first);
    let resume = |told: &Told, flags: &str| {
        after(told, &format!("launch layers --format json --run-dir run {flags}")).run().succeeded()
    };
    let frozen = resume(&trained_first, "--steps 600 --freeze first");
    let then = tensors(&frozen);
    for name in ["features.weight", "features.bias"] {
        assert_eq!(bits(&then[name]), bits(&before[name]), "{name}");
    }
    assert_ne!(then["hidden.weight"], before["hidden.weight"]);
    let again = resume(&frozen, "--mode sync --ps 2 --min-shard-bytes 0 --steps 1500 --freeze nothing");
    assert_ne!(tensors(&again)["features.weight"], then["features.weight"]);
    assert!(summary(&again)["metrics"]["accuracy"].as_f64() > Some(0.85));
}

/// The first step of a new Adam is as long as the learning rate, whatever the gradient.
#[test]
fn a_layer_that_is_trained_again_begins_as_with_a_new_optimizer() {
    let frozen = trained("train layers --steps 50 --freeze first");
    let before = tensors(&frozen);
    let thawed = after(&frozen, "train layers --steps 51 --freeze nothing --run-dir run").run().succeeded();
    let now = tensors(&thawed);
    let moved = now["features.weight"].iter().zip(&before["features.weight"]);
    let longest = moved.map(|(now, then)| f64::from(now - then).abs()).fold(0.0, f64::max);
    assert!((longest / 0.01 - 1.0).abs() < 0.01, "moved by {longest} with a learning rate of 0.01");
}

#[test]
fn a_layer_that_is_trained_again_ends_with_the_same_bits_if_the_run_is_resumed_with_other_servers() {
    let thawed = |flags: &[&str]| {
        let frozen = trained("launch layers --workers 1 --steps 50 --freeze first");
        let resume =
            |flags| after(&frozen, &format!("launch layers --workers 1 --freeze nothing --run-dir run {flags}"));
        tensors(flags.iter().map(|flags| resume(flags).run().succeeded()).collect::<Vec<_>>().last().unwrap())
    };
    let whole = thawed(&["--steps 60"]);
    same_bits(&thawed(&["--steps 53", "--ps 2 --min-shard-bytes 0 --steps 56", "--steps 60"]), &whole);
}

#[test]
fn a_sync_run_that_is_resumed_ends_with_the_same_bits() {
    let flags = "launch layers --mode sync --dropout 0.3";
    let whole = tensors(&trained(&format!("{flags} --steps 400")));
    let first = trained(&format!("{flags} --steps 150"));
    let resumed = after(&first, &format!("{flags} --steps 400 --format json --run-dir run")).run().succeeded();
    assert_eq!(summary(&resumed)["resumed_at"], 150);
    same_bits(&tensors(&resumed), &whole);
}

#[test]
fn a_sync_run_that_is_told_to_stop_and_resumed_ends_with_the_same_bits() {
    let flags = "launch layers --mode sync --dropout 0.3 --steps 6000 --log-every 10 --format json --run-dir run";
    let whole = tensors(&layers(flags).run().succeeded());
    let run = Launched::by(layers(flags));
    run.0.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(100));
    run.0.signal(Signal::TERM);
    let stopped = run.wait();
    assert_eq!(stopped.exit_code(), Some(143), "{stopped}");
    let resumed = after(&stopped, flags).run().succeeded();
    assert!(summary(&resumed)["resumed_at"].as_u64() > Some(100));
    same_bits(&tensors(&resumed), &whole);
}

#[test]
fn a_sync_run_that_loses_its_ps_ends_with_the_same_bits() {
    let flags = "launch layers --mode sync --dropout 0.3 --steps 12000 --checkpoint-steps 200 --restart 1 \
                 --format json --run-dir run";
    let whole = tensors(&layers(flags).run().succeeded());
    let run = Launched::by(layers(flags));
    let ps = run.task("ps", 0);
    run.logged("ps-0", "checkpoint of step ");
    ps.signal(Signal::KILL);
    let told = run.wait().succeeded();
    assert!(summary(&told)["resumed_at"].as_u64() >= Some(200));
    same_bits(&tensors(&told), &whole);
}

fn same_bits(one: &BTreeMap<String, Vec<f32>>, other: &BTreeMap<String, Vec<f32>>) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, values) in one {
        assert!(bits(values) == bits(&other[name]), "{name} differs");
    }
}

#[test]
fn the_same_seed_drops_the_same_units_and_another_seed_others() {
    let values = |seed: u32| tensors(&trained(&format!("train layers --dropout 0.5 --steps 50 --seed {seed}")));
    let first = values(1);
    same_bits(&values(1), &first);
    assert_ne!(values(2)["last.weight"], first["last.weight"]);
}

/// With the same samples and the same values, losses differ only in the units that are dropped.
#[test]
fn workers_and_steps_drop_units_of_their_own() {
    let losses = |flags: &str| {
        let words = format!("launch layers --mode sync --one-batch --learning-rate 0 --steps 4 --log-every 1 {flags}");
        let told = trained(&words);
        let events = told.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let steps = events.filter(|event| event["event"] == "step");
        let mut losses: Vec<String> = steps.map(|event| event["loss"].to_string()).collect();
        assert!(losses.len() >= 7, "{told}");
        losses.sort();
        losses.dedup();
        losses.len()
    };
    assert_eq!(losses("--dropout 0"), 1);
    assert!(losses("--dropout 0.5") >= 7);
}
