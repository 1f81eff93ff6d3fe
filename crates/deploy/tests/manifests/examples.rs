//! The files in `deploy/` are the output of `windlass manifest`. `UPDATE_EXAMPLES=1 cargo test -p windlass-deploy`
//! regenerates them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{documents, manifest, text};

const EXAMPLES: [(&str, &str); 6] = [
    ("k8s.yaml", "k8s --ps 2 --workers 4 --storage pvc:windlass-runs --name digits -- mnist --mode sync"),
    ("jobset.yaml", "jobset --ps 2 --workers 4 --storage s3://my-bucket/runs --queue training --name digits -- mnist"),
    ("tfjob.yaml", "tfjob --workers 4 --storage pvc:windlass-runs --namespace team-a --name digits -- mnist"),
    (
        "trainjob.yaml",
        "trainjob --workers 4 --storage nfs:10.0.0.1:/export/runs --namespace team-a --name digits -- mnist",
    ),
    ("compose-generated.yaml", "compose --name digits --storage pvc:windlass-runs -- mnist --mode sync"),
    (
        "slurm.sh",
        "slurm --ps 2 --workers 4 --storage file:/scratch/runs --queue gpu --name digits -- mnist --mode sync",
    ),
];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The services of a Compose file.
fn services(compose: &str) -> Vec<Value> {
    documents(compose)[0]["services"].as_object().expect("services").values().cloned().collect()
}

#[test]
fn compose_restarts_and_stops_tasks_alike_whether_written_or_generated() {
    let written = std::fs::read_to_string(directory().join("compose.yaml")).unwrap();
    for compose in [written, manifest("compose --name digits -- mnist")] {
        let services = services(&compose);
        let tasks = services.iter().filter(|service| service["profiles"].is_null());
        let policies: Vec<(&str, &str)> =
            tasks.map(|task| (text(task, "/restart"), text(task, "/stop_grace_period"))).collect();
        assert_eq!(policies, [("on-failure:6", "120s"); 3], "{compose}");
    }
}

#[test]
fn compose_publishes_tensorboard_on_this_machine_alone_and_nothing_else() {
    let written = std::fs::read_to_string(directory().join("compose.yaml")).unwrap();
    for compose in [written, manifest("compose --name digits -- mnist")] {
        let services = services(&compose);
        let ports: Vec<&Value> =
            services.iter().map(|service| &service["ports"]).filter(|ports| !ports.is_null()).collect();
        assert_eq!(ports, [&serde_json::json!(["127.0.0.1:6006:6006"])], "{compose}");
    }
}

#[test]
fn compose_keeps_runs_in_its_volume_even_if_no_storage_is_named() {
    let services = services(&manifest("compose --name digits -- mnist"));
    let tasks = services.iter().filter(|service| service["profiles"].is_null());
    for task in tasks {
        let words: Vec<&str> = task["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(words.windows(2).any(|pair| pair == ["--run-dir", "/runs/digits"]), "{words:?}");
    }
}

#[test]
fn compose_reads_the_credentials_of_a_store_from_a_file_that_its_manifest_names() {
    let manifest = manifest("compose --storage s3://bucket/runs --storage-secret keys --name digits -- mnist");
    let line = "# Needs Docker Compose 2.24 or later. The store's credentials are read from keys.env beside this file, if it is there.";
    assert!(manifest.lines().any(|other| other == line), "{manifest}");
    let services = services(&manifest);
    let tasks = services.iter().filter(|service| service["profiles"].is_null());
    let files: Vec<&Value> = tasks.map(|task| &task["env_file"]).collect();
    assert_eq!(files, [&serde_json::json!([{"path": "keys.env", "required": false}]); 3]);
}

#[test]
fn no_two_workers_of_compose_share_a_gpu() {
    let services = services(&manifest("compose --workers 3 --gpus 2 --name digits -- mnist"));
    let gpus = |service: &Value| service.pointer("/deploy/resources/reservations/devices/0/device_ids").cloned();
    let gpus: Vec<Value> = services.iter().filter_map(gpus).collect();
    assert_eq!(gpus, [serde_json::json!(["0", "1"]), serde_json::json!(["2", "3"]), serde_json::json!(["4", "5"])]);
}

#[test]
fn the_examples_are_what_is_printed() {
    for (file, words) in EXAMPLES {
        let (path, printed) = (directory().join(file), manifest(words));
        if std::env::var_os("UPDATE_EXAMPLES").is_some() {
            std::fs::write(&path, printed).unwrap();
            continue;
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(kept == printed, "deploy/{file} is not what is printed now; UPDATE_EXAMPLES=1 writes it anew");
    }
}
