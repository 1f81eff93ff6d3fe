//! Names, labels and selectors of objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use windlass_core::cluster::Job;

use crate::{PORT, Request};

/// The label that names the program.
pub(crate) const APPLICATION: &str = "app.kubernetes.io/name";
const RUN: &str = "app.kubernetes.io/instance";
const JOB: &str = "app.kubernetes.io/component";
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// The labels of all objects of the run, or of one of its jobs.
pub(crate) fn labels(request: &Request, job: Option<Job>) -> BTreeMap<String, String> {
    let pairs = [(APPLICATION, "windlass".to_owned()), (RUN, request.name.to_string())];
    let pairs = pairs.into_iter().chain(job.map(|job| (JOB, job.to_string())));
    pairs.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Selects the objects with those labels.
pub(crate) fn selector(request: &Request, job: Option<Job>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels(request, job)), match_expressions: None }
}

/// The metadata of an object in the request's namespace.
pub(crate) fn object(request: &Request, name: String, job: Option<Job>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: request.namespace.as_ref().map(|namespace| namespace.as_str().to_owned()),
        labels: Some(labels(request, job)),
        ..ObjectMeta::default()
    }
}

/// The metadata of an object that a queue admits: Kueue suspends it until there is capacity.
pub(crate) fn queued(request: &Request, name: String, job: Option<Job>) -> ObjectMeta {
    let mut metadata = object(request, name, job);
    if let (Some(queue), Some(labels)) = (&request.queue, &mut metadata.labels) {
        labels.insert(QUEUE.to_owned(), queue.clone());
    }
    metadata
}

/// The metadata of a pod. The annotations that Prometheus looks for are present only if it may connect: otherwise it
/// would find targets that never answer.
pub(crate) fn pod(request: &Request, job: Job) -> ObjectMeta {
    let annotations = [
        ("prometheus.io/scrape", "true".to_owned()),
        ("prometheus.io/port", PORT.to_string()),
        ("prometheus.io/path", "/metrics".to_owned()),
    ];
    ObjectMeta {
        labels: Some(labels(request, Some(job))),
        annotations: request
            .scrape_from
            .is_some()
            .then(|| annotations.map(|(key, value)| (key.to_owned(), value)).into()),
        ..ObjectMeta::default()
    }
}
