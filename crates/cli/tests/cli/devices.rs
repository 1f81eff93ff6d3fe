//! `windlass devices`, and runs that are told what to compute on.

use insta::assert_snapshot;
use serde_json::Value;

use crate::process::windlass;

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
    assert_eq!(last, "hidden by CUDA_VISIBLE_DEVICES=1,0, HIP_VISIBLE_DEVICES=; numbers count what is left");
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
