//! Kubernetes without extensions: an Indexed Job and a headless Service for each job.

use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use windlass_core::cluster::{Job, TaskId};

use crate::command::{Naming, arguments};
use crate::indexed_job::{self, KEEP_FINISHED_SECONDS};
use crate::metadata::{labels, object, queued};
use crate::pod::Pod;
use crate::yaml::Manifest;
use crate::{Error, PORT, Request, guards};

const CONTAINER: &str = "windlass";

pub(crate) fn render(request: &Request) -> Result<String, Error> {
    let mut manifest =
        Manifest::new(request, &["Start with `kubectl apply -f -`, end with `kubectl delete -f -`.".to_owned()]);
    for (job, _) in request.jobs() {
        manifest.add(&service(request, job))?;
    }
    manifest.add(&guards::network_policy(request))?;
    manifest.add(&guards::disruption_budget(request))?;
    for (job, _) in request.jobs() {
        manifest.add(&indexed_job(request, job))?;
    }
    Ok(manifest.finish())
}

/// The DNS name of a pod of an Indexed Job, within its namespace.
fn address(request: &Request, task: TaskId) -> String {
    let (name, TaskId { job, index }) = (&request.name, task);
    format!("{name}-{job}-{index}.{name}-{job}:{PORT}")
}

/// The Service that gives pods their DNS names. Pods need these names to become ready, so they are published before
/// that.
fn service(request: &Request, job: Job) -> Service {
    Service {
        metadata: object(request, format!("{}-{job}", request.name), Some(job)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(labels(request, Some(job))),
            ports: Some(vec![ServicePort {
                name: Some("windlass".to_owned()),
                port: PORT.into(),
                target_port: Some(IntOrString::Int(PORT.into())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn indexed_job(request: &Request, job: Job) -> batch::Job {
    let name = format!("{}-{job}", request.name);
    let address = |task| address(request, task);
    let pod = Pod {
        job,
        container: CONTAINER,
        port: "windlass",
        arguments: arguments(request, job, &Naming::Hosts(&address)),
        subdomain: Some(name.clone()),
        published_early: true,
        restart_policy: Some("Never"),
    };
    let mut spec = indexed_job::spec(request, job, CONTAINER, pod.template(request));
    spec.ttl_seconds_after_finished = Some(KEEP_FINISHED_SECONDS);
    batch::Job { metadata: queued(request, name, Some(job)), spec: Some(spec), status: None }
}
