//! Tests of the cluster that Slurm's variables make.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::cluster::{ClusterInput, Environment, ResolvedTask, Source, resolve};

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment::read(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
}

fn input(variables: &[(&str, &str)]) -> ClusterInput {
    ClusterInput { environment: environment(variables), ..ClusterInput::default() }
}

fn resolved(variables: &[(&str, &str)]) -> ResolvedTask {
    resolve(&input(variables)).unwrap().unwrap()
}

fn refusal(variables: &[(&str, &str)]) -> String {
    resolve(&input(variables)).unwrap_err().to_string()
}

const THREE_NODES: [(&str, &str); 4] = [
    ("SLURM_PROCID", "2"),
    ("SLURM_JOB_NODELIST", "node[01-02],gpu1"),
    ("SLURM_TASKS_PER_NODE", "2,1(x2)"),
    ("WINDLASS_SLURM_PS", "1"),
];

#[test]
fn the_first_tasks_are_ps_and_the_rest_are_workers() {
    let task = resolved(&THREE_NODES);
    assert_eq!(task.cluster.host_list(Job::Ps), "node01:2222");
    assert_eq!(task.cluster.host_list(Job::Worker), "node01:2223,node02:2222,gpu1:2222");
    assert_eq!(task.task, TaskId::worker(1));
    assert_eq!(task.address.to_string(), "node02:2222");
    assert_eq!((task.cluster_source, task.task_source), (Source::Slurm, Source::Slurm));
}

#[test]
fn a_step_on_part_of_the_allocation_counts_its_own_nodes() {
    let step = [("SLURM_STEP_NODELIST", "gpu1"), ("SLURM_STEP_TASKS_PER_NODE", "3")];
    let task = resolved(&[&THREE_NODES[..], &step].concat());
    assert_eq!(task.cluster.host_list(Job::Worker), "gpu1:2223,gpu1:2224");
}

#[test]
fn a_cyclic_distribution_goes_round_the_nodes() {
    let cyclic = [("SLURM_DISTRIBUTION", "cyclic:block"), ("WINDLASS_SLURM_PORT", "7000")];
    let task = resolved(&[&THREE_NODES[..], &cyclic].concat());
    assert_eq!(task.cluster.host_list(Job::Ps), "node01:7000");
    assert_eq!(task.cluster.host_list(Job::Worker), "node02:7000,gpu1:7000,node01:7001");
}

#[test]
fn without_ps_the_workers_hold_the_parameters() {
    let task = resolved(&[("SLURM_PROCID", "1"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("WINDLASS_SLURM_PS", "0")]);
    assert!(task.cluster.is_colocated());
    assert_eq!(task.task, TaskId::worker(1));
}

#[test]
fn a_job_that_does_not_say_how_many_ps_it_has_trains_in_one_process() {
    assert_eq!(resolve(&input(&THREE_NODES[..3])), Ok(None));
}

#[test]
fn hosts_named_by_flags_need_only_the_task_number() {
    let hosts = ClusterInput {
        ps_hosts: Some("a:1,b:1".to_owned()),
        worker_hosts: Some("c:1,d:1".to_owned()),
        ..input(&THREE_NODES)
    };
    let task = resolve(&hosts).unwrap().unwrap();
    assert_eq!(task.address.to_string(), "c:1");
    assert_eq!((task.cluster_source, task.task_source), (Source::Flags, Source::Slurm));
}

#[test]
fn what_is_missing_or_malformed_is_refused_by_name() {
    let with = |name, value| [&THREE_NODES[..], &[(name, value)]].concat();
    let set = |name: &str, value: &'static str| {
        let mut variables = THREE_NODES.to_vec();
        variables.iter_mut().filter(|(key, _)| *key == name).for_each(|entry| entry.1 = value);
        refusal(&variables)
    };
    assert_eq!(refusal(&THREE_NODES[1..]), "Slurm's variables: WINDLASS_SLURM_PS is set, but SLURM_PROCID is not");
    assert_eq!(
        set("SLURM_JOB_NODELIST", "n[1"),
        "Slurm's variables: the list of nodes is \"n[1\": the brackets do not match"
    );
    assert_eq!(
        set("SLURM_TASKS_PER_NODE", "2"),
        "Slurm's variables: tasks per node are \"2\", which does not fit 3 nodes"
    );
    assert_eq!(set("WINDLASS_SLURM_PS", "4"), "Slurm's variables: 4 tasks with 4 ps leave no worker");
    assert_eq!(set("SLURM_PROCID", "4"), "Slurm's variables: SLURM_PROCID is 4, but the cluster has 4 tasks");
    assert_eq!(
        refusal(&with("SLURM_DISTRIBUTION", "plane")),
        "Slurm's variables: the tasks are distributed as \"plane\", expected block or cyclic"
    );
    assert!(refusal(&with("WINDLASS_SLURM_PORT", "65535")).starts_with("Slurm's variables: node \"node01\": port 0"));
}

proptest! {
    #[test]
    fn every_task_of_a_step_finds_itself_in_the_same_cluster(
        counts in prop::collection::vec(1u16..4, 1..6),
        ps in any::<prop::sample::Index>(),
        cyclic in any::<bool>(),
    ) {
        let tasks: u32 = counts.iter().map(|count| u32::from(*count)).sum();
        prop_assume!(tasks > 1);
        let ps = (ps.index(tasks as usize) as u32).to_string();
        let per_node: Vec<String> = counts.iter().map(u16::to_string).collect();
        let (per_node, nodes) = (per_node.join(","), format!("n[1-{}]", counts.len()));
        let distribution = if cyclic { "cyclic" } else { "block" };
        let mut addresses = BTreeSet::new();
        let mut clusters = Vec::new();
        for proc_id in 0..tasks {
            let proc_id = proc_id.to_string();
            let task = resolved(&[
                ("SLURM_PROCID", &proc_id),
                ("SLURM_JOB_NODELIST", &nodes),
                ("SLURM_TASKS_PER_NODE", &per_node),
                ("SLURM_DISTRIBUTION", distribution),
                ("WINDLASS_SLURM_PS", &ps),
            ]);
            addresses.insert(task.address.clone());
            clusters.push(task.cluster);
        }
        prop_assert_eq!(addresses.len(), tasks as usize);
        prop_assert!(clusters.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
