//! Tests of `resolve`: precedence, and refused inputs.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const FILE: &str = "[cluster]\nps = [\"fp:1\"]\nworker = [\"fw0:1\", \"fw1:1\"]\n";
const TF_CONFIG: &str = r#"{"cluster": {"ps": ["tp:1"], "worker": ["tw0:1", "tw1:1"]},
                            "task": {"type": "worker", "index": 1}}"#;

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn hosts(ps: &str, workers: &str) -> ClusterInput {
    ClusterInput { ps_hosts: some(ps), worker_hosts: some(workers), ..ClusterInput::default() }
}

fn colocated(workers: &str) -> ClusterInput {
    ClusterInput { worker_hosts: some(workers), colocate: true, ..ClusterInput::default() }
}

fn with_task(input: ClusterInput, job: &str, index: Option<u32>) -> ClusterInput {
    ClusterInput { job_name: some(job), task_index: index, ..input }
}

fn with_file(input: ClusterInput, text: &str) -> ClusterInput {
    ClusterInput { cluster_file: Some(("cluster.toml".to_owned(), text.to_owned())), ..input }
}

fn with_tf_config(input: ClusterInput, text: &str) -> ClusterInput {
    ClusterInput { tf_config: some(text), ..input }
}

fn none() -> ClusterInput {
    ClusterInput::default()
}

fn resolved(input: ClusterInput) -> ResolvedTask {
    resolve(&input).unwrap().unwrap()
}

/// The error and its hint, as the user sees them.
fn refusal(input: ClusterInput) -> (String, String) {
    let error = resolve(&input).unwrap_err();
    (error.to_string(), error.hint().unwrap_or_default())
}

fn from_file() -> Source {
    Source::File("cluster.toml".to_owned())
}

#[test]
fn nothing_named_means_a_single_process() {
    assert_eq!(resolve(&none()), Ok(None));
    assert_eq!(resolve(&with_tf_config(none(), "{}")), Ok(None));
}

#[test]
fn a_tf_config_of_a_local_job_means_a_single_process() {
    let text = r#"{"task": {"type": "worker", "index": 0}}"#;
    assert_eq!(resolve(&with_tf_config(none(), text)), Ok(None));
}

#[test]
fn flags_name_cluster_and_task() {
    let task = resolved(with_task(hosts("a:1", "b:1,c:1"), "worker", Some(1)));
    assert_eq!(task.task, TaskId::worker(1));
    assert_eq!(task.address.to_string(), "c:1");
    assert_eq!((task.cluster_source, task.task_source), (Source::Flags, Source::Flags));
}

#[test]
fn flags_override_the_file_and_the_file_overrides_tf_config() {
    let all = with_tf_config(with_file(hosts("a:1", "b:1,c:1"), FILE), TF_CONFIG);
    let task = resolved(with_task(all.clone(), "ps", None));
    assert_eq!(task.address.to_string(), "a:1");

    let without_hosts = ClusterInput { ps_hosts: None, worker_hosts: None, ..all };
    let task = resolved(with_task(without_hosts, "ps", None));
    assert_eq!(task.address.to_string(), "fp:1");
}

#[test]
fn a_shared_file_names_the_cluster_and_flags_the_task() {
    let task = resolved(with_task(with_file(none(), FILE), "worker", Some(1)));
    assert_eq!(task.address.to_string(), "fw1:1");
    assert_eq!((task.cluster_source, task.task_source), (from_file(), Source::Flags));
}

#[test]
fn the_task_may_come_from_tf_config_when_the_cluster_does_not() {
    let task = resolved(with_tf_config(with_file(none(), FILE), TF_CONFIG));
    assert_eq!(task.address.to_string(), "fw1:1");
    assert_eq!((task.cluster_source, task.task_source), (from_file(), Source::TfConfig));
}

#[test]
fn a_tf_config_that_is_fully_overridden_is_not_read() {
    let input = with_task(hosts("a:1", "b:1"), "ps", None);
    assert!(resolve(&with_tf_config(input, "not json")).is_ok());
}

#[test]
fn an_error_in_file_or_tf_config_says_where_it_is() {
    let (error, _) = refusal(with_file(none(), "[cluster]\nwroker = []\n"));
    assert!(error.starts_with("cluster.toml: line 2, column 1: unknown field `wroker`"));
    let (error, _) = refusal(with_tf_config(none(), "{"));
    assert!(error.starts_with("TF_CONFIG: malformed JSON"), "{error}");
    assert!(error.ends_with("line 1 column 1"), "{error}");
}

#[test]
fn the_index_defaults_to_0_for_the_only_task_of_a_job() {
    let task = resolved(with_task(hosts("a:1", "b:1,c:1"), "ps", None));
    assert_eq!(task.task, TaskId::ps(0));
}

#[test]
fn the_index_is_required_where_the_job_has_several_tasks() {
    let (error, hint) = refusal(with_task(hosts("a:1", "b:1,c:1"), "worker", None));
    assert_eq!(error, "no task_index is given for job worker, which has 2 tasks, 0 to 1");
    assert!(hint.starts_with("add --task_index"));
}

#[test]
fn an_index_outside_the_job_is_refused_with_its_range() {
    let (error, _) = refusal(with_task(hosts("a:1", "b:1,c:1"), "worker", Some(5)));
    assert_eq!(error, "task_index 5 is outside job worker, which has 2 tasks, 0 to 1");
    let (error, _) = refusal(with_task(hosts("a:1", "b:1,c:1"), "ps", Some(1)));
    assert_eq!(error, "task_index 1 is outside job ps, which has 1 task (index 0)");
}

#[test]
fn a_job_without_a_cluster_is_refused() {
    let (error, hint) = refusal(with_task(none(), "worker", Some(0)));
    assert_eq!(error, "--job_name worker is given without a cluster");
    assert!(hint.contains("leave out --job_name to train in a single process"));
}

#[test]
fn an_index_without_a_job_is_refused() {
    let input = ClusterInput { task_index: Some(1), ..with_file(none(), FILE) };
    let (error, _) = refusal(input);
    assert_eq!(error, "--task_index 1 is given without --job_name");
}

#[test]
fn hosts_without_a_job_are_refused() {
    let (error, hint) = refusal(hosts("a:1", "b:1"));
    assert_eq!(
        error,
        "a cluster is given by flags --ps_hosts/--worker_hosts, but not which of its tasks this \
         process is"
    );
    assert_eq!(hint, "add --job_name and --task_index, as in --job_name worker --task_index 0");
}

#[test]
fn one_host_list_without_the_other_is_refused() {
    let without_workers = ClusterInput { worker_hosts: None, ..hosts("a:1", "") };
    let (error, hint) = refusal(without_workers);
    assert_eq!(error, "--ps_hosts is given without --worker_hosts, expected both");
    assert_eq!(hint, "add --worker_hosts a:2222,b:2222");
    let without_ps = ClusterInput { ps_hosts: None, ..hosts("", "a:1") };
    assert!(refusal(without_ps).1.contains("--colocate"));
}

#[test]
fn a_trailing_comma_is_refused_with_list_and_position() {
    let (error, hint) = refusal(with_task(hosts("a:1,", "b:1"), "ps", None));
    assert_eq!(error, "entry 2 of 2 in --ps_hosts, \"\": empty, expected host:port");
    assert_eq!(hint, "remove the extra comma, or add the missing host:port");
}

#[test]
fn a_colocated_cluster_needs_worker_hosts_only() {
    let task = resolved(with_task(colocated("a:1,b:1"), "worker", Some(1)));
    assert!(task.cluster.is_colocated());
    assert_eq!(task.cluster.task_count(Job::Ps), Some(2));
}

#[test]
fn colocation_by_flag_applies_to_a_tf_config_without_ps() {
    let input =
        ClusterInput { colocate: true, ..with_tf_config(none(), &TF_CONFIG.replace("\"ps\": [\"tp:1\"],", "")) };
    assert!(resolved(input).cluster.is_colocated());
}

#[test]
fn colocation_and_ps_tasks_contradict_each_other() {
    let input = ClusterInput { colocate: true, ..hosts("a:1", "b:1") };
    let (error, hint) = refusal(with_task(input, "worker", None));
    assert_eq!(error, "the cluster is co-located, but also names ps tasks (a:1)");
    assert_eq!(hint, "leave out either the ps tasks (--ps_hosts) or --colocate");
    let file = FILE.replace("[cluster]", "[cluster]\ncolocate = true");
    let (error, _) = refusal(with_file(none(), &file));
    assert!(error.starts_with("cluster.toml: the cluster is co-located"));
}

#[test]
fn colocation_without_a_cluster_is_refused() {
    let input = ClusterInput { colocate: true, ..none() };
    assert_eq!(refusal(input).0, "--colocate is given without a cluster");
}

#[test]
fn a_colocated_cluster_has_no_ps_task() {
    let (error, hint) = refusal(with_task(colocated("a:1"), "ps", Some(0)));
    assert_eq!(error, "job ps has no tasks in a co-located cluster, expected job worker");
    assert!(hint.starts_with("use --job_name worker"));
}

#[test]
fn a_cluster_without_ps_is_refused_with_a_hint_to_colocate() {
    let text = TF_CONFIG.replace("\"ps\": [\"tp:1\"],", "");
    let (error, hint) = refusal(with_tf_config(none(), &text));
    assert_eq!(error, "TF_CONFIG: the cluster has no ps tasks, expected at least one");
    assert!(hint.contains("--colocate"));
}

#[test]
fn an_unknown_job_is_refused_with_the_valid_ones() {
    let (error, _) = refusal(with_task(hosts("a:1", "b:1"), "trainer", None));
    assert_eq!(error, "unknown job \"trainer\", expected ps, worker or evaluator");
}

#[test]
fn a_worker_that_is_not_told_every_ps_is_refused() {
    let text = r#"{"cluster": {"ps": {"1": "p:1"}, "worker": {"0": "w:1"}},
                   "task": {"type": "worker", "index": 0}}"#;
    assert_eq!(
        refusal(with_tf_config(none(), text)).0,
        "TF_CONFIG: the sparse cluster does not name all ps tasks, which worker 0 needs"
    );
}

#[test]
fn a_task_that_is_not_told_its_own_address_is_refused() {
    let text = r#"{"cluster": {"ps": ["p:1"], "worker": {"0": "w:1"}},
                   "task": {"type": "worker", "index": 3}}"#;
    assert_eq!(
        refusal(with_tf_config(none(), text)).0,
        "TF_CONFIG: the sparse cluster names no address for worker 3, which is this process"
    );
}

fn with_job_index(input: ClusterInput, text: &str) -> ClusterInput {
    let environment = Environment { job_completion_index: some(text), ..Environment::default() };
    ClusterInput { environment, ..input }
}

#[test]
fn the_index_of_an_indexed_job_is_that_of_the_task() {
    let input = with_job_index(with_task(hosts("a:1", "b:1,c:1"), "worker", None), "1");
    let task = resolved(input);
    assert_eq!(task.task, TaskId::worker(1));
    assert_eq!(task.print_lines()[1], "task worker 1 at c:1 from flag --job_name, index from JOB_COMPLETION_INDEX");
}

#[test]
fn a_flag_overrides_the_index_of_an_indexed_job() {
    let task = resolved(with_job_index(with_task(hosts("a:1", "b:1,c:1"), "worker", Some(0)), "1"));
    assert_eq!((task.task, task.index_source), (TaskId::worker(0), None));
}

#[test]
fn the_index_of_an_indexed_job_alone_means_a_single_process() {
    assert_eq!(resolve(&with_job_index(none(), "1")), Ok(None));
}

#[test]
fn an_index_outside_the_job_names_the_variable_it_comes_from() {
    let (error, _) = refusal(with_job_index(with_task(hosts("a:1", "b:1,c:1"), "worker", None), "2"));
    assert_eq!(error, "JOB_COMPLETION_INDEX: task_index 2 is outside job worker, which has 2 tasks, 0 to 1");
}

#[test]
fn tf_config_overrides_slurm() {
    let slurm = Environment::read(|name| match name {
        "SLURM_PROCID" => some("0"),
        "SLURM_JOB_NODELIST" => some("n[1-2]"),
        "WINDLASS_SLURM_PS" => some("1"),
        _ => None,
    });
    let task = resolved(ClusterInput { environment: slurm, ..with_tf_config(none(), TF_CONFIG) });
    assert_eq!((task.cluster_source, task.task_source), (Source::TfConfig, Source::TfConfig));
}

#[test]
fn what_is_printed_names_cluster_task_chief_and_sources() {
    let task = resolved(with_task(with_file(none(), FILE), "worker", Some(1)));
    assert_eq!(
        task.print_lines(),
        [
            "cluster from cluster.toml",
            "task worker 1 at fw1:1 from flags --job_name/--task_index",
            "chief is worker 0 at fw0:1",
            "job ps -> {0 -> fp:1}",
            "job worker -> {0 -> fw0:1, 1 -> fw1:1 (this task)}",
        ]
    );
}

#[test]
fn what_is_printed_admits_an_unknown_chief() {
    let text = r#"{"cluster": {"worker": {}, "ps": ["p:1"]}, "task": {"type": "ps", "index": 0}}"#;
    let lines = resolved(with_tf_config(none(), text)).print_lines();
    assert_eq!(lines[2], "chief is worker 0 at an address unknown here");
    assert_eq!(lines[4], "job worker -> {0.. -> unknown (sparseCluster)}");
}

proptest! {
    #[test]
    fn a_cluster_written_as_host_lists_is_read_back_the_same(
        addresses in prop::collection::btree_set(("[a-z]{1,4}", 1..=u16::MAX), 2..12),
        split in any::<prop::sample::Index>(),
    ) {
        let addresses: BTreeSet<(String, u16)> = addresses;
        let mut ps: Vec<Address> = addresses
            .iter()
            .map(|(host, port)| Address::new(host, *port).unwrap())
            .collect();
        let workers = ps.split_off(1 + split.index(ps.len() - 1));
        let spec = ClusterSpec::new(ps, workers).unwrap();
        let input = hosts(&spec.host_list(Job::Ps), &spec.host_list(Job::Worker));
        prop_assert_eq!(resolved(with_task(input, "ps", Some(0))).cluster, spec);
    }
}
