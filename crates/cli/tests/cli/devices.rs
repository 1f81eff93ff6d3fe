//! `windlass devices`, and runs with devices chosen by the user.

use insta::assert_snapshot;
use serde_json::Value;

use crate::cluster::summary;
use crate::process::{Told, windlass};

#[test]
fn the_devices_of_this_machine_are_listed_with_what_the_build_lacks() {
    let told = windlass("devices").run().succeeded();
    let first: Vec<&str> = told.stdout.lines().take(2).map(str::trim).collect();
    assert!(first[0].starts_with("device  memory") && first[1].starts_with("cpu:0   "), "{told}");
    assert!(first[1].contains(" GB") && first[1].contains("core"), "{told}");
    for backend in ["cuda", "rocm", "metal", "vulkan", "wgpu"] {
        let lacks = format!(" {backend:<7}  not in this build (cargo feature `{backend}`)");
        assert!(told.stdout.contains(&lacks) || told.stdout.contains(&format!("{backend}:0")), "{lacks}: {told}");
    }
    assert!(!told.stdout.contains("hidden by"), "{told}");
}

#[test]
fn the_devices_are_told_to_programs_too() {
    let told = windlass("devices --json").env("CUDA_VISIBLE_DEVICES", "1").run().succeeded();
    let listing: Value = serde_json::from_str(&told.stdout).unwrap();
    let cpu = &listing["devices"][0];
    assert_eq!((cpu["name"].as_str(), cpu["backend"].as_str()), (Some("cpu:0"), Some("cpu")));
    assert!(cpu["memory_bytes"].as_u64().unwrap() > 1 << 20, "{told}");
    let cuda = listing["missing"].as_array().unwrap().iter().find(|missing| missing["backend"] == "cuda").unwrap();
    assert_eq!(cuda["is_built"], false);
    assert_eq!(listing["masks"], serde_json::json!({ "CUDA_VISIBLE_DEVICES": "1" }));
}

#[test]
fn masks_are_shown() {
    let told = windlass("devices").env("CUDA_VISIBLE_DEVICES", "1,0").env("HIP_VISIBLE_DEVICES", "").run().succeeded();
    let last = told.stdout.lines().last().unwrap();
    assert_eq!(last, "CUDA_VISIBLE_DEVICES=1,0, HIP_VISIBLE_DEVICES= hides some devices; the rest are numbered from 0");
}

#[test]
fn devices_takes_no_words() {
    assert_snapshot!(windlass("devices gpu").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: unexpected argument 'gpu' found

    Usage: windlass devices [OPTIONS]

    For more information, try '--help'.
    ");
}

/// A run of a few steps with these flags.
fn trained(words: &str) -> Told {
    windlass(&format!("{words} --hidden 8 --steps 20 --evaluate end --run-dir run")).run().succeeded()
}

#[test]
fn every_name_of_the_processor_is_the_default() {
    let loss = |flags: &str| summary(&trained(&format!("train mnist --seed 3 {flags}")))["loss"].clone();
    let default = loss("");
    for name in ["cpu", "cpu:0", "/cpu:0", "/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0", "/task:0"] {
        assert_eq!(loss(&format!("--device {name}")), default, "{name}");
    }
}

#[test]
fn a_device_that_does_not_exist_is_refused_with_a_list_of_those_that_do() {
    for verb in ["train", "launch"] {
        let told = windlass(&format!("{verb} mnist --device cpu:1")).run();
        assert_eq!(told.stdout, "", "{told}");
        let [error, hint] = told.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{told}") };
        assert_eq!(error, "error: device cpu:1 is not on this machine: the only cpu is cpu:0");
        assert!(hint.starts_with("hint: this machine has cpu:0") && hint.contains("--soft-placement on"), "{told}");
        assert_eq!(told.exit_code(), Some(2));
        assert_eq!(std::fs::read_dir(told.directory()).unwrap().count(), 0, "{verb} has left something");
    }
}

#[test]
fn a_backend_that_is_not_built_in_is_refused_with_its_feature() {
    let told = windlass("train mnist --device rocm:0").run();
    assert_eq!(told.exit_code(), Some(2));
    let error = "error: device rocm:0 is not on this machine: rocm: not in this build (cargo feature `rocm`)";
    assert!(told.stderr.starts_with(error), "{told}");
}

#[test]
fn soft_placement_computes_on_a_device_that_exists_and_warns() {
    for words in ["train mnist --device cpu:7", "launch mnist --devices cpu:0,cpu:7"] {
        let told = trained(&format!("{words} --soft-placement on"));
        let warning = "device cpu:7 is not on this machine (the only cpu is cpu:0): computing on cpu:0 instead";
        let warnings = told.stderr.lines().filter(|line| line.contains("WARN") && line.ends_with(warning)).count();
        assert_eq!(warnings, 1, "{told}");
    }
}

#[test]
fn a_device_of_another_task_is_refused() {
    assert_snapshot!(windlass("train mnist --device /job:ps/task:0 --soft-placement on").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: device /job:ps/task:0 does not belong to worker 0, which is to compute on it
    hint: each worker computes on devices of its own: omit the task, as in gpu:0
    ");
    assert_snapshot!(windlass("launch mnist --device /task:0/cpu:0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: device /task:0/device:CPU:0 does not belong to worker 1, which is to compute on it
    hint: each worker computes on devices of its own: omit the task, as in gpu:0
    ");
    assert_snapshot!(windlass("launch mnist --device /replica:1/cpu:0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: device /replica:1/device:CPU:0 does not belong to worker 0, which is to compute on it
    hint: each worker computes on devices of its own: omit the task, as in gpu:0
    ");
}

#[test]
fn what_is_no_name_of_a_device_is_refused() {
    assert_snapshot!(windlass("train mnist --device tpu:0").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --device: "tpu" in the device name "tpu:0" is not a kind of device
    hint: name one such as gpu:0 or /job:worker/task:1/device:GPU:0; the kinds are cpu, gpu, cuda, rocm, vulkan, metal, wgpu
    "#);
    assert_snapshot!(windlass("launch mnist --devices cpu,gpu:x").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --devices: "x" in the device name "gpu:x" is not a number
    hint: name one such as gpu:0 or /job:worker/task:1/device:GPU:0; the kinds are cpu, gpu, cuda, rocm, vulkan, metal, wgpu
    "#);
    assert_snapshot!(windlass("launch mnist --devices cpu,").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --devices: the name of a device is empty
    hint: name one such as gpu:0 or /job:worker/task:1/device:GPU:0; the kinds are cpu, gpu, cuda, rocm, vulkan, metal, wgpu
    ");
}

#[test]
fn flags_of_devices_that_contradict_each_other_are_refused() {
    assert_snapshot!(windlass("train mnist --device cpu --devices cpu,cpu").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: the argument '--device <NAME>' cannot be used with '--devices <NAMES>'

    Usage: windlass train mnist --device <NAME>

    For more information, try '--help'.
    ");
    assert_snapshot!(windlass("train mnist --towers 3 --devices cpu,cpu").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --towers is 3, but --devices names 2
    hint: there is a replica on each device: omit --towers
    ");
    assert_snapshot!(windlass("train mnist --soft-placement maybe").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: invalid value 'maybe' for '--soft-placement <SOFT_PLACEMENT>'
      [possible values: on, off]

    For more information, try '--help'.
    ");
    let many = vec!["cpu"; 257].join(",");
    assert_snapshot!(windlass(&format!("train mnist --devices {many}")).run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --devices names 257, but there are at most 256 in a worker
    ");
}

#[test]
fn the_placement_of_every_parameter_is_told() {
    let told = trained("launch mnist --ps 2 --workers 2 --sharding round_robin --mode sync --log-placement");
    let lines: Vec<&str> = told.stdout.lines().collect();
    let at = lines.iter().position(|line| *line == "worker 0 computes on cpu:0").unwrap_or_else(|| panic!("{told}"));
    assert_snapshot!(lines[at + 1..][..5].join("\n"), @"
    parameter        shape    held by  computed on
    layers.0.weight  784 x 8  ps 0     cpu:0
    layers.0.bias    8        ps 1     cpu:0
    layers.1.weight  8 x 10   ps 0     cpu:0
    layers.1.bias    10       ps 1     cpu:0
    ");
    assert!(lines.contains(&"worker 1 computes on cpu:0"), "{told}");
    let told = trained("train mnist --device cpu --towers 2 --log-placement --format json");
    let events = told.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let placed: Vec<Value> = events.filter(|event| event["event"] == "placed").collect();
    assert_eq!(placed.len(), 1, "{told}");
    assert_eq!(placed[0]["devices"], serde_json::json!(["cpu:0", "cpu:0"]));
    let first = &placed[0]["parameters"][0];
    assert_eq!((&first["shape"], &first["servers"]), (&serde_json::json!([784, 8]), &serde_json::json!([0])));
}

#[test]
fn devices_by_name_learn_as_towers_do() {
    let loss = |flags: &str| summary(&trained(&format!("launch mnist --mode sync --seed 3 {flags}")))["loss"].clone();
    let towers = loss("--towers 2");
    assert_eq!(loss("--devices cpu:0,cpu"), towers);
    assert_eq!(loss("--device cpu --towers 2"), towers);
    assert_eq!(loss("--devices cpu,cpu --towers 2"), towers);
    assert_eq!(loss("--devices gpu:63,cpu:1 --soft-placement on"), towers);
}
