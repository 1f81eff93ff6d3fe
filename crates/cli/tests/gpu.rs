//! Every model on a GPU backend, trained by the real binary in each layout, compared with the same on the CPU.
//!
//! Needs the feature `wgpu` and a Vulkan driver, which may be a software driver: `scripts/gpu-tests` provides both.

#[allow(dead_code)] // What tests on the CPU use.
#[path = "cli/process.rs"]
mod process;

use process::windlass;
use serde_json::Value;

/// Small networks with few steps, because a software driver is slow.
const MODELS: [&str; 5] = [
    "linear --steps 6",
    "mnist --hidden 16 --batch-size 20 --steps 4",
    "autoencoder --hidden 16 --batch-size 20 --steps 4",
    "stn --images 200 --filters 4 --hidden 16 --keep-probability 1 --batch-size 8 --steps 3",
    "seq2seq --size 8 --layers 1 --batch-size 4 --steps 3",
];

/// The loss of the last batch of a run with these flags.
fn loss(words: &str) -> f64 {
    let told = windlass(&format!("{words} --seed 3 --evaluate end --run-dir run")).run().succeeded();
    let text = std::fs::read_to_string(told.directory().join("run/summary.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["loss"].as_f64().unwrap()
}

fn assert_same(layout: &str, on_cpu: &str, on_card: &str) {
    for model in MODELS {
        let (cpu, card) = (loss(&format!("{layout} {model} {on_cpu}")), loss(&format!("{layout} {model} {on_card}")));
        println!("{layout} {model}: {cpu} on the CPU, {card} with {on_card}");
        assert!((cpu - card).abs() <= 2e-3 * cpu.abs(), "{layout} {model}: {cpu} on the CPU, {card} with {on_card}");
    }
}

#[test]
fn a_driver_in_software_is_listed_and_is_no_card() {
    let told = windlass("devices --json").run().succeeded();
    let listing: Value = serde_json::from_str(&told.stdout).unwrap();
    let listed = listing["devices"].as_array().unwrap().iter().find(|device| device["name"] == "wgpu:0");
    let listed = listed.unwrap_or_else(|| panic!("{told}"));
    assert!(listed["description"].as_str().is_some_and(|name| !name.is_empty()), "{told}");
    assert_eq!(listed["gpu"].is_null(), listed["is_software"].as_bool().unwrap(), "{told}");
}

#[test]
fn in_one_process_a_card_learns_as_the_cpu_does() {
    assert_same("train", "", "--device wgpu:0");
}

#[test]
fn in_a_sync_cluster_cards_learn_as_the_cpu_does() {
    assert_same("launch", "--mode sync", "--mode sync --device wgpu:0");
}

#[test]
fn towers_on_cards_learn_as_those_on_the_cpu_do() {
    assert_same("train", "--towers 2", "--devices wgpu:0,wgpu:0");
}

#[test]
fn towers_may_be_on_different_devices() {
    assert_same("train", "--towers 2", "--devices cpu:0,wgpu:0");
}
