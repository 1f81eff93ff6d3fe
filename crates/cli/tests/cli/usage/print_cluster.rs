//! The output of `--print-cluster` for flags, files and `TF_CONFIG`, and their precedence.

use insta::assert_snapshot;

use super::{CLUSTER_FILE, PLACE, TF_CONFIG, with_cluster_file};
use crate::process::windlass;

#[test]
fn without_a_cluster_one_process_trains() {
    assert_snapshot!(windlass("train linear --print-cluster").run(), @"
    exit code 0
    --- stdout
    no cluster given: training in one process
    --- stderr
    ");
}

#[test]
fn flags_may_have_underscores() {
    assert_snapshot!(windlass(&format!("train linear --print_cluster {PLACE}")).run(), @"
    exit code 0
    --- stdout
    cluster from flags --ps_hosts/--worker_hosts
    task worker 1 at c:2222 from flags --job_name/--task_index
    chief is worker 0 at b:2222
    job ps -> {0 -> a:2222}
    job worker -> {0 -> b:2222, 1 -> c:2222 (this task)}
    --- stderr
    ");
}

#[test]
fn flags_may_have_hyphens() {
    let place = PLACE.replace('_', "-");
    let (underscores, hyphens) = (
        windlass(&format!("train linear --print_cluster {PLACE}")).run().to_string(),
        windlass(&format!("train linear --print-cluster {place}")).run().to_string(),
    );
    assert_eq!(underscores, hyphens);
}

#[test]
fn a_cluster_file_names_cluster_and_task() {
    assert_snapshot!(with_cluster_file("--print-cluster", CLUSTER_FILE).run(), @"
    exit code 0
    --- stdout
    cluster from cluster.toml
    task ps 0 at g:2222 from cluster.toml
    chief is worker 0 at h:2222
    job ps -> {0 -> g:2222 (this task)}
    job worker -> {0 -> h:2222, 1 -> i:2222}
    --- stderr
    ");
}

#[test]
fn in_tf_config_the_chief_is_worker_0() {
    assert_snapshot!(windlass("train linear --print-cluster").env("TF_CONFIG", TF_CONFIG).run(), @"
    exit code 0
    --- stdout
    cluster from TF_CONFIG
    task worker 1 at f:2222 from TF_CONFIG
    chief is worker 0 at d:2222
    job ps -> {0 -> e:2222}
    job worker -> {0 -> d:2222, 1 -> f:2222 (this task)}
    --- stderr
    ");
}

#[test]
fn a_sparse_tf_config_names_what_the_task_needs() {
    let tf_config = r#"{"sparseCluster": {"ps": ["e:2222"], "worker": {"3": "f:2222"}},
        "task": {"type": "worker", "index": 3}}"#;
    assert_snapshot!(windlass("train linear --print-cluster").env("TF_CONFIG", tf_config).run(), @"
    exit code 0
    --- stdout
    cluster from TF_CONFIG
    task worker 3 at f:2222 from TF_CONFIG
    chief is worker 0 at an address unknown here
    job ps -> {0 -> e:2222}
    job worker -> {0..=2 -> unknown (sparseCluster), 3 -> f:2222 (this task), 4.. -> unknown (sparseCluster)}
    --- stderr
    ");
}

#[test]
fn a_colocated_cluster_has_no_ps_tasks() {
    let told =
        windlass("train linear --print-cluster --colocate --job_name worker --task_index 1 --worker_hosts b:1,c:1")
            .run();
    assert_snapshot!(told, @"
    exit code 0
    --- stdout
    cluster from flags --ps_hosts/--worker_hosts
    task worker 1 at c:1 from flags --job_name/--task_index
    chief is worker 0 at b:1
    job ps -> co-located, shard i in worker i
    job worker -> {0 -> b:1, 1 -> c:1 (this task)}
    --- stderr
    ");
}

#[test]
fn a_cluster_file_goes_before_tf_config() {
    assert_snapshot!(with_cluster_file("--print-cluster", CLUSTER_FILE).env("TF_CONFIG", TF_CONFIG).run(), @"
    exit code 0
    --- stdout
    cluster from cluster.toml
    task ps 0 at g:2222 from cluster.toml
    chief is worker 0 at h:2222
    job ps -> {0 -> g:2222 (this task)}
    job worker -> {0 -> h:2222, 1 -> i:2222}
    --- stderr
    ");
}

#[test]
fn flags_go_before_both() {
    let words = format!("--print-cluster {PLACE}");
    assert_snapshot!(with_cluster_file(&words, CLUSTER_FILE).env("TF_CONFIG", TF_CONFIG).run(), @"
    exit code 0
    --- stdout
    cluster from flags --ps_hosts/--worker_hosts
    task worker 1 at c:2222 from flags --job_name/--task_index
    chief is worker 0 at b:2222
    job ps -> {0 -> a:2222}
    job worker -> {0 -> b:2222, 1 -> c:2222 (this task)}
    --- stderr
    ");
}

#[test]
fn the_task_may_come_from_flags_and_the_cluster_from_a_file() {
    let words = "--print-cluster --job_name worker --task_index 1";
    assert_snapshot!(with_cluster_file(words, CLUSTER_FILE).run(), @"
    exit code 0
    --- stdout
    cluster from cluster.toml
    task worker 1 at i:2222 from flags --job_name/--task_index
    chief is worker 0 at h:2222
    job ps -> {0 -> g:2222}
    job worker -> {0 -> h:2222, 1 -> i:2222 (this task)}
    --- stderr
    ");
}
