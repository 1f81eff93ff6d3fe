//! A JobSet of two Indexed Jobs. Its controller creates the headless Service, and a queue admits both Jobs at once.
//!
//! The JobSet has no success policy of its own: by default all Jobs must complete, so no ps is ended before its last
//! checkpoint. It has no `dependsOn` either, since tasks may start in any order.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::JobTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use windlass_core::cluster::{Job, TaskId};

use crate::command::{Naming, arguments};
use crate::crd::{Coordinator, JobSetSpec, Network, ReplicatedJob, Resource};
use crate::indexed_job::{self, KEEP_FINISHED_SECONDS};
use crate::metadata::{labels, queued};
use crate::pod::Pod;
use crate::yaml::Manifest;
use crate::{Error, PORT, Request, guards};

pub(crate) fn render(request: &Request) -> Result<String, Error> {
    let mut manifest = Manifest::new(
        request,
        &["Start with `kubectl apply -f -`, end with `kubectl delete -f -`. Needs JobSet.".to_owned()],
    );
    manifest.add(&guards::network_policy(request))?;
    manifest.add(&guards::disruption_budget(request))?;
    let mut spec = spec(request, "windlass", |_| BTreeMap::new());
    spec.ttl_seconds_after_finished = Some(KEEP_FINISHED_SECONDS);
    manifest.add(&Resource {
        api_version: "jobset.x-k8s.io/v1alpha2",
        kind: "JobSet",
        metadata: queued(request, request.name.to_string(), None),
        spec,
    })?;
    Ok(manifest.finish())
}

/// The contents of a JobSet named after the run; `extra` are labels of its Jobs.
pub(crate) fn spec(
    request: &Request,
    container: &'static str,
    extra: impl Fn(Job) -> BTreeMap<String, String>,
) -> JobSetSpec {
    let replicated = |(job, _): (Job, u32)| {
        let address = |task| address(request, task);
        let pod = Pod {
            job,
            container,
            port: "windlass",
            arguments: arguments(request, job, &Naming::Hosts(&address)),
            subdomain: None,
            published_early: true,
            // JobSet's default is OnFailure, which a podFailurePolicy forbids.
            restart_policy: Some("Never"),
        };
        let mut labels = labels(request, Some(job));
        labels.extend(extra(job));
        let metadata = ObjectMeta { labels: Some(labels), ..ObjectMeta::default() };
        let spec = indexed_job::spec(request, job, container, pod.template(request));
        let template = JobTemplateSpec { metadata: Some(metadata), spec: Some(spec) };
        ReplicatedJob { name: job.to_string(), replicas: 1, template }
    };
    JobSetSpec {
        coordinator: Coordinator { replicated_job: request.servers().0.to_string(), job_index: 0, pod_index: 0 },
        network: Network {
            enable_dns_hostnames: true,
            publish_not_ready_addresses: true,
            subdomain: request.name.to_string(),
        },
        replicated_jobs: request.jobs().map(replicated).collect(),
        ttl_seconds_after_finished: None,
    }
}

/// The DNS name of a pod of a JobSet, within its namespace.
fn address(request: &Request, task: TaskId) -> String {
    let (name, TaskId { job, index }) = (&request.name, task);
    format!("{name}-{job}-0-{index}.{name}:{PORT}")
}
