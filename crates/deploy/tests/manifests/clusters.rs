//! The cluster that each pod derives from its arguments and variables is the one that Kubernetes creates.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windlass_core::cluster::{ClusterInput, Environment, ResolvedTask, resolve};

use crate::{documents, manifest, number, templates, text};

/// The task that a pod with these arguments and variables resolves to.
fn resolved(arguments: &Value, variables: &[(&str, String)]) -> ResolvedTask {
    let words: Vec<&str> = arguments.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let flag = |name: &str| {
        let at = words.iter().position(|word| *word == name)?;
        Some(words[at + 1].to_owned())
    };
    let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
    let input = ClusterInput {
        job_name: flag("--job-name"),
        task_index: flag("--task-index").map(|index| index.parse().unwrap()),
        ps_hosts: flag("--ps-hosts"),
        worker_hosts: flag("--worker-hosts"),
        colocate: words.contains(&"--colocate"),
        cluster_file: None,
        tf_config: variable("TF_CONFIG"),
        environment: Environment::read(variable),
    };
    resolve(&input).unwrap().expect("a cluster")
}

/// Checks that the cluster, as each pod sees it, consists of exactly these pods by their DNS names.
fn check(found: &[(String, ResolvedTask)], ps: usize, workers: usize) {
    assert_eq!(found.len(), ps + workers);
    let made: BTreeSet<&String> = found.iter().map(|(address, _)| address).collect();
    assert_eq!(made.len(), found.len());
    for (address, task) in found {
        assert_eq!(task.address.to_string(), *address);
        let seen = task.cluster.tasks().map(|task_id| task.cluster.address(task_id).unwrap().to_string());
        assert_eq!(seen.collect::<BTreeSet<String>>().iter().collect::<BTreeSet<&String>>(), made);
        assert_eq!(task.cluster, found[0].1.cluster);
    }
}

fn port(template: &Value) -> u64 {
    number(template, "/spec/containers/0/ports/0/containerPort")
}

fn completion_index(index: u64) -> [(&'static str, String); 1] {
    [("JOB_COMPLETION_INDEX", index.to_string())]
}

#[test]
fn of_plain_kubernetes() {
    for (ps, workers) in [(1, 1), (2, 12), (0, 3)] {
        let manifest = manifest(&format!("k8s --ps {ps} --workers {workers} --name digits -- mnist"));
        let documents = documents(&manifest);
        let mut found = Vec::new();
        for job in documents.iter().filter(|document| document["kind"] == "Job") {
            let template = &job["spec"]["template"];
            let subdomain = text(template, "/spec/subdomain");
            let is_service =
                |document: &&Value| document["kind"] == "Service" && document["metadata"]["name"] == subdomain;
            let service = documents.iter().find(is_service).expect("a Service for each Job");
            assert_eq!(service["spec"]["clusterIP"], "None");
            assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
            assert_eq!(service["spec"]["selector"], template["metadata"]["labels"]);
            for index in 0..number(job, "/spec/completions") {
                let address = format!("{}-{index}.{subdomain}:{}", text(job, "/metadata/name"), port(template));
                let arguments = &template["spec"]["containers"][0]["args"];
                found.push((address, resolved(arguments, &completion_index(index))));
            }
        }
        check(&found, ps, workers);
    }
}

/// The pods of a JobSet with this name and content.
fn pods_of_jobset(name: &str, spec: &Value) -> Vec<(String, ResolvedTask)> {
    let mut found = Vec::new();
    let subdomain = text(spec, "/network/subdomain");
    assert_eq!(spec["network"]["publishNotReadyAddresses"], true);
    for job in spec["replicatedJobs"].as_array().unwrap() {
        assert_eq!(job["replicas"], 1);
        let template = &job["template"]["spec"]["template"];
        for index in 0..number(job, "/template/spec/completions") {
            let address = format!("{name}-{}-0-{index}.{subdomain}:{}", text(job, "/name"), port(template));
            let arguments = &template["spec"]["containers"][0]["args"];
            found.push((address, resolved(arguments, &completion_index(index))));
        }
    }
    found
}

#[test]
fn of_a_jobset() {
    for (ps, workers) in [(1, 2), (3, 11), (0, 2)] {
        let manifest = manifest(&format!("jobset --ps {ps} --workers {workers} --name digits -- mnist"));
        let documents = documents(&manifest);
        let jobset = documents.iter().find(|document| document["kind"] == "JobSet").unwrap();
        check(&pods_of_jobset(text(jobset, "/metadata/name"), &jobset["spec"]), ps, workers);
        let coordinator = text(jobset, "/spec/coordinator/replicatedJob");
        assert_eq!(coordinator, if ps == 0 { "worker" } else { "ps" });
        assert!(jobset["spec"]["successPolicy"].is_null());
    }
}

#[test]
fn of_a_trainjob() {
    let manifest = manifest("trainjob --ps 2 --workers 3 --namespace team-a --name digits -- mnist");
    let documents = documents(&manifest);
    let of_kind = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap();
    let (job, runtime) = (of_kind("TrainJob"), of_kind("ClusterTrainingRuntime"));
    assert_eq!(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"]);
    // The trainer derives the number of workers from this.
    assert_eq!(job["spec"]["trainer"]["numNodes"], 3);
    check(&pods_of_jobset(text(job, "/metadata/name"), &runtime["spec"]["template"]["spec"]), 2, 3);
}

#[test]
fn of_a_tfjob() {
    for (ps, workers) in [(2, 3), (0, 2), (1, 1)] {
        let manifest =
            manifest(&format!("tfjob --ps {ps} --workers {workers} --namespace team-a --name digits -- mnist"));
        let jobs = [("ps", ps as u64), ("worker", workers as u64)];
        // The operator creates a Service for each pod and names it like this.
        let address = |job: &str, index: u64| format!("digits-{job}-{index}.team-a.svc:2222");
        let hosts = |job: &str, count: u64| (0..count).map(|index| address(job, index)).collect::<Vec<String>>();
        let cluster: serde_json::Map<String, Value> = jobs
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(job, count)| ((*job).to_owned(), json!(hosts(job, *count))))
            .collect();
        let mut found = Vec::new();
        for (replicas, template) in templates(&manifest) {
            let container = &template["spec"]["containers"][0];
            assert_eq!((text(container, "/name"), text(container, "/ports/0/name")), ("tensorflow", "tfjob-port"));
            let job = text(&template, "/metadata/labels/app.kubernetes.io~1component");
            for index in 0..number(&replicas, "/replicas") {
                let task = json!({"type": job, "index": index});
                let config = json!({"cluster": cluster, "task": task, "environment": "cloud"}).to_string();
                found.push((address(job, index), resolved(&container["args"], &[("TF_CONFIG", config)])));
            }
        }
        check(&found, ps, workers);
    }
}

#[test]
fn of_a_tfjob_of_one_task_to_which_the_operator_gives_no_tf_config() {
    let manifest = manifest("tfjob --ps 0 --workers 1 --name digits -- mnist");
    let (replicas, template) = templates(&manifest).remove(0);
    assert_eq!(number(&replicas, "/replicas"), 1);
    let task = resolved(&template["spec"]["containers"][0]["args"], &[]);
    // The Service that the operator creates for the pod, in its namespace.
    check(&[("digits-worker-0:2222".to_owned(), task)], 0, 1);
}

#[test]
fn of_compose() {
    let manifest = manifest("compose --ps 2 --workers 3 --name digits -- mnist");
    let services = documents(&manifest)[0]["services"].clone();
    let tasks = services.as_object().unwrap().iter().filter(|(name, _)| *name != "tensorboard");
    let found: Vec<(String, ResolvedTask)> =
        tasks.map(|(name, service)| (format!("{name}:2222"), resolved(&service["command"], &[]))).collect();
    check(&found, 2, 3);
}

#[test]
fn of_slurm() {
    let script = manifest("slurm --ps 2 --workers 3 --name digits -- mnist");
    let ps = script.lines().find_map(|line| line.strip_prefix("export WINDLASS_SLURM_PS=")).unwrap();
    let mut found = Vec::new();
    for proc_id in 0..5 {
        let variables = [
            ("SLURM_PROCID", proc_id.to_string()),
            ("SLURM_STEP_NODELIST", "n[1-2]".to_owned()),
            ("SLURM_STEP_TASKS_PER_NODE", "3,2".to_owned()),
            ("SLURM_DISTRIBUTION", "cyclic".to_owned()),
            ("WINDLASS_SLURM_PS", ps.to_owned()),
        ];
        let task = resolved(&json!(["train", "mnist"]), &variables);
        found.push((task.address.to_string(), task));
    }
    check(&found, 2, 3);
    assert!(script.contains("--distribution=cyclic"), "as assumed above");
}
