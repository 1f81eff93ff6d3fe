//! Tests of `tf_config`: the texts are shortened versions of what Kubeflow's operator writes.

use proptest::prelude::*;

use super::*;
use crate::cluster::{ClusterSpec, TaskId};

const WITH_CHIEF: &str = r#"{
    "cluster": {"chief": ["c:1"], "ps": ["p:1"], "worker": ["w0:1", "w1:1"]},
    "task": {"type": "worker", "index": 1},
    "environment": "cloud", "rpc_layer": "grpc"
}"#;

fn task(text: &str) -> Option<TaskId> {
    let task = parse(text).unwrap().task?;
    Some(TaskId { job: task.job, index: task.index.unwrap() })
}

fn spec(text: &str) -> ClusterSpec {
    parse(text).unwrap().cluster.unwrap().check().unwrap()
}

fn refusal(text: &str) -> String {
    parse(text).err().unwrap().to_string()
}

#[test]
fn lists_of_hosts_become_tasks_in_their_order() {
    let text = r#"{"cluster": {"ps": ["p:1"], "worker": ["a:1", "b:1"]},
                   "task": {"type": "ps", "index": 0}, "environment": "cloud"}"#;
    assert_eq!(task(text), Some(TaskId::ps(0)));
    assert_eq!(spec(text).host_list(Job::Worker), "a:1,b:1");
}

#[test]
fn a_chief_becomes_worker_0_and_the_workers_follow() {
    assert_eq!(spec(WITH_CHIEF).host_list(Job::Worker), "c:1,w0:1,w1:1");
    assert_eq!(task(WITH_CHIEF), Some(TaskId::worker(2)));
}

#[test]
fn the_chief_itself_is_worker_0_under_either_name() {
    let chief = WITH_CHIEF.replace(r#""worker", "index": 1"#, r#""chief", "index": 0"#);
    assert_eq!(task(&chief), Some(TaskId::worker(0)));
    let master = chief.replace("chief", "master");
    assert_eq!(task(&master), Some(TaskId::worker(0)));
    assert_eq!(spec(&master).host_list(Job::Worker), "c:1,w0:1,w1:1");
}

#[test]
fn an_index_may_be_a_string() {
    let text = WITH_CHIEF.replace("\"index\": 1", "\"index\": \"1\"");
    assert_eq!(task(&text), Some(TaskId::worker(2)));
}

#[test]
fn an_index_that_is_no_number_is_refused_with_its_value() {
    for value in ["-1", "1.5", "\"one\"", "null", "4294967296"] {
        let text = WITH_CHIEF.replace("\"index\": 1", &format!("\"index\": {value}"));
        assert_eq!(refusal(&text), format!("task index {value} is not a whole number from 0"));
    }
}

#[test]
fn an_index_outside_the_job_is_counted_as_tf_config_counts() {
    let text = WITH_CHIEF.replace("\"index\": 1", "\"index\": 2");
    assert_eq!(refusal(&text), "task_index 2 is outside job worker, which has 2 tasks, 0 to 1");
}

#[test]
fn several_chiefs_are_refused() {
    assert_eq!(
        refusal(r#"{"cluster": {"chief": ["a:1"], "master": ["b:1"]}}"#),
        "the cluster names 2 tasks under chief and master, expected one at most"
    );
}

#[test]
fn an_evaluator_in_the_cluster_is_left_out() {
    let text = WITH_CHIEF.replace("\"ps\"", "\"evaluator\": [\"e:1\"], \"ps\"");
    assert_eq!(spec(&text).tasks().count(), 4);
}

#[test]
fn an_evaluator_is_told_from_the_tasks_that_train() {
    let text = WITH_CHIEF.replace(r#""type": "worker""#, r#""type": "evaluator""#);
    assert!(names_evaluator(&text) && !names_evaluator(WITH_CHIEF) && !names_evaluator("{"));
    assert_eq!(refusal(&text), "an evaluator does not train, expected ps, worker, chief or master");
}

#[test]
fn an_unknown_job_is_refused_rather_than_lost() {
    let text = WITH_CHIEF.replace("\"worker\": [", "\"workers\": [");
    assert_eq!(refusal(&text), "unknown job \"workers\", expected ps, worker or evaluator");
}

#[test]
fn a_local_job_names_no_cluster() {
    for text in ["", "  ", "{}", r#"{"cluster": {}}"#, r#"{"cluster": null}"#] {
        let statement = parse(text).unwrap();
        assert!(statement.cluster.is_none() && statement.task.is_none());
    }
    let only_task = r#"{"task": {"type": "worker", "index": 0}}"#;
    assert!(parse(only_task).unwrap().cluster.is_none());
    assert_eq!(task(only_task), Some(TaskId::worker(0)));
}

#[test]
fn malformed_json_is_refused_with_its_position() {
    assert_eq!(
        refusal(r#"{"cluster": {"ps": ["p:1"]"#),
        "malformed JSON near `cluster\": {\"ps\": [\"p:1\"]`: EOF while parsing an object at \
         line 1 column 26"
    );
}

#[test]
fn a_value_of_the_wrong_type_is_refused_with_what_was_expected() {
    assert_eq!(
        refusal(r#"{"cluster": {"ps": 3}}"#),
        "malformed JSON near `{\"cluster\": {\"ps\": 3`: invalid type: integer `3`, expected a \
         list of host:port, or a map from task index to host:port at line 1 column 20"
    );
}

#[test]
fn a_malformed_address_is_refused_with_list_and_position() {
    assert_eq!(
        refusal(&WITH_CHIEF.replace("w1:1", "w1")),
        "entry 2 of 2 in cluster.worker, \"w1\": no port, expected host:port"
    );
}

#[test]
fn a_worker_of_a_sparse_cluster_knows_itself_and_every_ps() {
    for key in ["sparseCluster", "cluster"] {
        let text = format!(
            r#"{{"{key}": {{"worker": {{"1": "w1:1"}}, "ps": ["p0:1", "p1:1"]}},
                 "task": {{"type": "worker", "index": 1}}}}"#
        );
        let spec = spec(&text);
        assert_eq!(task(&text), Some(TaskId::worker(1)));
        assert_eq!(spec.task_count(Job::Ps), Some(2));
        assert_eq!(spec.task_count(Job::Worker), None);
        assert_eq!(
            spec.map_lines(Some(TaskId::worker(1))),
            [
                "job ps -> {0 -> p0:1, 1 -> p1:1}",
                "job worker -> {0 -> unknown (sparseCluster), 1 -> w1:1 (this task), \
                 2.. -> unknown (sparseCluster)}",
            ]
        );
    }
}

#[test]
fn a_ps_of_a_sparse_cluster_knows_only_itself_at_its_own_index() {
    let text = r#"{"cluster": {"worker": {}, "ps": ["p1:1"]}, "task": {"type": "ps", "index": 1}}"#;
    let spec = spec(text);
    assert_eq!(spec.address(TaskId::ps(1)).unwrap().to_string(), "p1:1");
    assert_eq!(spec.address(TaskId::ps(0)), None);
    assert_eq!(spec.task_count(Job::Ps), None);
    assert_eq!(spec.task_count(Job::Worker), None);
}

#[test]
fn a_ps_of_a_sparse_cluster_may_be_told_of_workers_and_other_ps() {
    let text = r#"{"cluster": {"worker": {"0": "w0:1", "3": "w3:1"}, "ps": ["p0:1", "p1:1"]},
                   "task": {"type": "ps", "index": 1}}"#;
    let spec = spec(text);
    assert_eq!(spec.task_count(Job::Ps), Some(2));
    assert_eq!(spec.address(TaskId::worker(3)).unwrap().to_string(), "w3:1");
}

#[test]
fn a_chief_of_a_sparse_cluster_is_refused_since_it_is_told_nothing() {
    let text = r#"{"sparseCluster":{"worker":{},"ps":[]},"task":{"type":"chief","index":0}}"#;
    let error = parse(text).err().unwrap();
    assert_eq!(error.to_string(), "this process is the chief, but the cluster names none");
    assert!(error.hint().unwrap().contains("enableDynamicWorker"));
}

#[test]
fn a_sparse_index_that_is_no_number_or_given_twice_is_refused() {
    let with = |map: &str| refusal(&format!(r#"{{"cluster": {{"worker": {map}}}}}"#));
    assert!(with(r#"{"x": "a:1"}"#).contains("\"x\" is not a task index"));
    assert!(with(r#"{"1": "a:1", "1": "b:1"}"#).contains("task index 1 is given twice"));
}

#[test]
fn the_largest_sparse_index_neither_panics_nor_costs_memory() {
    let text = r#"{"cluster": {"worker": {"4294967295": "w:1"}, "ps": ["p:1"], "chief": ["c:1"]},
                   "task": {"type": "worker", "index": 4294967295}}"#;
    assert_eq!(refusal(text), "task index 4294967295 is not a whole number from 0");
    assert_eq!(spec(&text.replace(", \"chief\": [\"c:1\"]", "")).tasks().count(), 2);
}

proptest! {
    #[test]
    fn no_damage_to_the_text_panics(cut in 0..WITH_CHIEF.len(), with in "[{}\\[\\]:,\"é0-9]{0,3}") {
        let _ = parse(&format!("{}{with}{}", &WITH_CHIEF[..cut], &WITH_CHIEF[cut + 1..]));
    }
}
