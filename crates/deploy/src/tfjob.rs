//! A TFJob. The operator names the pods and their Services, and describes the cluster to every task in `TF_CONFIG`.

use windlass_core::cluster::{Job, TaskId};

use crate::command::{Naming, arguments};
use crate::crd::{ReplicaSpec, ReplicaSpecs, Resource, RunPolicy, TfJobSpec};
use crate::indexed_job::KEEP_FINISHED_SECONDS;
use crate::metadata::queued;
use crate::pod::Pod;
use crate::yaml::Manifest;
use crate::{Error, PORT, Request, guards};

pub(crate) fn render(request: &Request) -> Result<String, Error> {
    let mut manifest = Manifest::new(
        request,
        &[
            "Start with `kubectl apply -f -`, end with `kubectl delete -f -`. Needs Kubeflow's training operator."
                .to_owned(),
            "The operator retries exit codes of 128 and more: a task that was told to stop, but none that gave up"
                .to_owned(),
            "waiting for others (exit code 5). If the TFJob fails, delete it: pods that wait for a failed one stay until they"
                .to_owned(),
            "give up.".to_owned(),
        ],
    );
    manifest.add(&guards::network_policy(request))?;
    manifest.add(&guards::disruption_budget(request))?;
    manifest.add(&Resource {
        api_version: "kubeflow.org/v1",
        kind: "TFJob",
        metadata: queued(request, request.name.to_string(), None),
        spec: TfJobSpec {
            run_policy: RunPolicy {
                // When the workers are done, a ps may still be writing the last checkpoint, and ends by itself
                // afterwards. The other policies would delete it meanwhile, since the operator has one policy for
                // success and failure.
                clean_pod_policy: "None",
                ttl_seconds_after_finished: KEEP_FINISHED_SECONDS,
            },
            success_policy: "AllWorkers",
            tf_replica_specs: ReplicaSpecs {
                ps: (request.ps > 0).then(|| replicas(request, Job::Ps, request.ps)),
                worker: replicas(request, Job::Worker, request.workers),
            },
        },
    })?;
    Ok(manifest.finish())
}

fn replicas(request: &Request, job: Job, count: u32) -> ReplicaSpec {
    let arguments = task_arguments(request, job);
    let pod = Pod {
        job,
        container: "tensorflow",
        port: "tfjob-port",
        arguments,
        subdomain: None,
        // The operator's Services exclude pods that are not ready.
        published_early: false,
        restart_policy: None,
    };
    ReplicaSpec { replicas: count, restart_policy: "ExitCode", template: pod.template(request) }
}

/// The arguments of each task of a job. The operator sets no `TF_CONFIG` if a job has only a single task, so that task
/// is identified by flags, with the Service that the operator creates for it.
fn task_arguments(request: &Request, job: Job) -> Vec<String> {
    if request.tasks().count() == 1 {
        let address = |TaskId { job, index }| format!("{}-{job}-{index}:{PORT}", request.name);
        return arguments(request, job, &Naming::HostsAndIndex(&address, 0));
    }
    let mut arguments = arguments(request, job, &Naming::Variables);
    if request.ps == 0 {
        arguments.insert(2, "--colocate".to_owned());
    }
    arguments
}
