//! A TrainJob and the ClusterTrainingRuntime that it refers to. The trainer creates a JobSet of the TrainJob's name
//! from it, so hosts are named as in `jobset`. The runtime holds everything, host lists included. It belongs to one
//! run, but not to a namespace, so applying the manifest requires rights on the whole cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use windlass_core::cluster::Job;

use crate::crd::{JobSetTemplate, MlPolicy, Resource, RuntimeRef, RuntimeSpec, TrainJobSpec, Trainer};
use crate::metadata::{labels, queued};
use crate::yaml::Manifest;
use crate::{Error, Request, guards, jobset};

const GROUP: &str = "trainer.kubeflow.org";
const VERSION: &str = "trainer.kubeflow.org/v1alpha1";
const RUNTIME: &str = "ClusterTrainingRuntime";
/// The trainer looks for its container by this name.
const CONTAINER: &str = "node";
/// The label by which the trainer finds the Job that `numNodes` counts.
const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";

pub(crate) fn render(request: &Request) -> Result<String, Error> {
    let mut manifest = Manifest::new(
        request,
        &[
            "Start with `kubectl apply -f -`, end with `kubectl delete -f -`. Needs Kubeflow Trainer.".to_owned(),
            format!("{RUNTIME} is a resource of the whole cluster: you need the right to create and delete it."),
        ],
    );
    manifest.add(&guards::network_policy(request))?;
    manifest.add(&guards::disruption_budget(request))?;
    let runtime = runtime_name(request)?;
    let extra = |job| match job {
        Job::Ps => BTreeMap::new(),
        Job::Worker | Job::Client => BTreeMap::from([(STEP.to_owned(), "trainer".to_owned())]),
    };
    manifest.add(&Resource {
        api_version: VERSION,
        kind: RUNTIME,
        metadata: ObjectMeta {
            name: Some(runtime.clone()),
            labels: Some(labels(request, None)),
            ..ObjectMeta::default()
        },
        spec: RuntimeSpec {
            ml_policy: MlPolicy { num_nodes: request.workers },
            template: JobSetTemplate { spec: jobset::spec(request, CONTAINER, extra) },
        },
    })?;
    manifest.add(&Resource {
        api_version: VERSION,
        kind: "TrainJob",
        metadata: queued(request, request.name.to_string(), None),
        spec: TrainJobSpec {
            runtime_ref: RuntimeRef { api_group: GROUP, kind: RUNTIME, name: runtime },
            trainer: Trainer { num_nodes: request.workers },
        },
    })?;
    Ok(manifest.finish())
}

/// The name of the runtime. It is unique in the cluster because it contains the namespace of the run, up to the first
/// dot: namespaces and names are DNS labels, which have no dots.
fn runtime_name(request: &Request) -> Result<String, Error> {
    let namespace = request.namespace.as_ref().ok_or(Error::NoNamespace)?;
    Ok(format!("{}.{}", namespace.as_str(), request.name))
}
