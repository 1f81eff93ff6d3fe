//! Impossible clusters, and places that a cluster does not have.

use std::net::TcpListener;

use insta::assert_snapshot;

use super::{CLUSTER_FILE, PLACE, TF_CONFIG, with_cluster_file};
use crate::process::windlass;

#[test]
fn a_host_without_a_port_is_refused() {
    assert_snapshot!(windlass("train linear --job_name ps --ps_hosts a --worker_hosts b:2222").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: entry 1 of 1 in --ps_hosts, "a": no port, expected host:port
    hint: add a port, as in a:2222
    "#);
}

#[test]
fn a_list_of_hosts_with_an_empty_entry_is_refused() {
    assert_snapshot!(windlass("train linear --job_name ps --ps_hosts a:1,,b:2 --worker_hosts b:2222").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: entry 2 of 3 in --ps_hosts, "": empty, expected host:port
    hint: remove the extra comma, or add the missing host:port
    "#);
}

#[test]
fn an_index_outside_the_job_is_refused() {
    let told = windlass("train linear --job_name worker --task_index 2 --ps_hosts a:1 --worker_hosts b:1,c:1").run();
    assert_snapshot!(told, @"
    exit code 2
    --- stdout
    --- stderr
    error: task_index 2 is outside job worker, which has 2 tasks, 0 to 1
    hint: indices count from 0; check the index, or add the missing host to the list
    ");
}

#[test]
fn an_index_that_is_no_number_is_refused() {
    assert_snapshot!(windlass("train linear --task_index -1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: invalid value '-1' for '--task-index <N>': -1 is not in 0..=4294967295

    For more information, try '--help'.
    ");
}

#[test]
fn a_job_without_a_cluster_is_refused() {
    assert_snapshot!(windlass("train linear --job_name ps --task_index 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --job_name ps is given without a cluster
    hint: name the cluster with --ps_hosts and --worker_hosts, --cluster FILE or TF_CONFIG, or leave out --job_name to train in a single process
    ");
}

#[test]
fn a_cluster_without_workers_is_refused() {
    assert_snapshot!(windlass("train linear --job_name ps --ps_hosts a:2222").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --ps_hosts is given without --worker_hosts, expected both
    hint: add --worker_hosts a:2222,b:2222
    ");
}

#[test]
fn an_unknown_job_is_refused() {
    let told = windlass("train linear --job_name chief --ps_hosts a:2222 --worker_hosts b:2222").run();
    assert_snapshot!(told, @r#"
    exit code 2
    --- stdout
    --- stderr
    error: unknown job "chief", expected ps, worker or evaluator
    hint: the chief is worker 0: --job_name worker --task_index 0
    "#);
}

#[test]
fn an_unknown_job_is_refused_with_those_that_there_are() {
    let told = windlass("train linear --job_name server --ps_hosts a:2222 --worker_hosts b:2222").run();
    assert_snapshot!(told, @r#"
    exit code 2
    --- stdout
    --- stderr
    error: unknown job "server", expected ps, worker or evaluator
    hint: an evaluator scores new checkpoints while the others train
    "#);
}

#[test]
fn ps_hosts_and_colocate_contradict_each_other() {
    assert_snapshot!(windlass(&format!("train linear --colocate {PLACE}")).run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: the cluster is co-located, but also names ps tasks (a:2222)
    hint: leave out either the ps tasks (--ps_hosts) or --colocate
    ");
}

#[test]
fn a_missing_cluster_file_is_refused() {
    assert_snapshot!(windlass("train linear --cluster nowhere.toml").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: cannot read the cluster file nowhere.toml: No such file or directory (os error 2)
    ");
}

#[test]
fn an_unknown_key_in_a_cluster_file_is_refused() {
    assert_snapshot!(with_cluster_file("", &CLUSTER_FILE.replace("worker =", "workers =")).run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: cluster.toml: line 4, column 1: unknown field `workers`, expected one of `ps`, `worker`, `colocate`
    hint: a cluster file has [cluster] with ps = ["a:2222"] (or colocate = true) and worker = ["b:2222"], and may have [task] with job = "worker" and index = 0
    "#);
}

#[test]
fn a_malformed_tf_config_is_refused() {
    assert_snapshot!(windlass("train linear").env("TF_CONFIG", &TF_CONFIG[..40]).run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: TF_CONFIG: malformed JSON near `ief": ["d:2222"], "ps": `: EOF while parsing a value at line 1 column 40
    hint: expected {"cluster": {"ps": ["a:2222"], "worker": ["b:2222"]}, "task": {"type": "worker", "index": 0}}
    "#);
}

#[test]
fn a_task_index_of_tf_config_outside_the_job_is_refused() {
    let tf_config = TF_CONFIG.replace("\"index\": 0", "\"index\": 5");
    assert_snapshot!(windlass("train linear").env("TF_CONFIG", &tf_config).run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: TF_CONFIG: task_index 5 is outside job worker, which has 1 task (index 0)
    hint: indices count from 0; check the index, or add the missing host to the list
    ");
}

#[test]
fn a_port_in_use_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let port = taken.port();
    let told = windlass(&format!("train linear --job_name ps --ps_hosts {taken} --worker_hosts b:2222")).run();
    let told = told.naming(&port.to_string(), "[PORT]").naming(&(port + 1).to_string(), "[NEXT]");
    assert_snapshot!(told.without_log(), @"
    exit code 2
    --- stdout
    --- stderr
    error: port [PORT] on 127.0.0.1 is in use
    hint: another task may still be running; try another port, such as 127.0.0.1:[NEXT]
    ");
}

#[test]
fn of_a_port_in_use_the_hint_is_not_another_tasks() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let [port, first, second, free] = [0, 1, 2, 3].map(|more| listener.local_addr().unwrap().port() + more);
    let workers = format!("127.0.0.1:{first},127.0.0.1:{second}");
    let words = format!("train linear --job_name ps --ps_hosts 127.0.0.1:{port} --worker_hosts {workers}");
    let told = windlass(&words).run();
    assert!(told.stderr.ends_with(&format!("try another port, such as 127.0.0.1:{free}\n")), "{told}");
}

#[test]
fn no_task_of_launch_may_be_missing() {
    assert_snapshot!(windlass("launch linear --ps 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: a cluster has at least one ps and one worker
    hint: --colocate needs no ps; `train` needs no cluster
    ");
    assert_snapshot!(windlass("launch linear --workers 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: a cluster has at least one ps and one worker
    hint: --colocate needs no ps; `train` needs no cluster
    ");
}
