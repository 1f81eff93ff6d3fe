//! The parts of JobSet, TFJob and TrainJob that are used here, since no maintained crate has them. Pods and Jobs within
//! them are Kubernetes' own types.

use k8s_openapi::api::batch::v1::JobTemplateSpec;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

/// A custom resource.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resource<S> {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: S,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobSetSpec {
    pub(crate) coordinator: Coordinator,
    pub(crate) network: Network,
    pub(crate) replicated_jobs: Vec<ReplicatedJob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds_after_finished: Option<i32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Coordinator {
    pub(crate) replicated_job: String,
    pub(crate) job_index: u32,
    pub(crate) pod_index: u32,
}

#[derive(Serialize)]
pub(crate) struct Network {
    #[serde(rename = "enableDNSHostnames")]
    pub(crate) enable_dns_hostnames: bool,
    #[serde(rename = "publishNotReadyAddresses")]
    pub(crate) publish_not_ready_addresses: bool,
    pub(crate) subdomain: String,
}

#[derive(Serialize)]
pub(crate) struct ReplicatedJob {
    pub(crate) name: String,
    pub(crate) replicas: u32,
    pub(crate) template: JobTemplateSpec,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TfJobSpec {
    pub(crate) run_policy: RunPolicy,
    pub(crate) success_policy: &'static str,
    pub(crate) tf_replica_specs: ReplicaSpecs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunPolicy {
    pub(crate) clean_pod_policy: &'static str,
    pub(crate) ttl_seconds_after_finished: i32,
}

#[derive(Serialize)]
pub(crate) struct ReplicaSpecs {
    #[serde(rename = "PS", skip_serializing_if = "Option::is_none")]
    pub(crate) ps: Option<ReplicaSpec>,
    #[serde(rename = "Worker")]
    pub(crate) worker: ReplicaSpec,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicaSpec {
    pub(crate) replicas: u32,
    pub(crate) restart_policy: &'static str,
    pub(crate) template: PodTemplateSpec,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuntimeSpec {
    pub(crate) ml_policy: MlPolicy,
    pub(crate) template: JobSetTemplate,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MlPolicy {
    pub(crate) num_nodes: u32,
}

#[derive(Serialize)]
pub(crate) struct JobSetTemplate {
    pub(crate) spec: JobSetSpec,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TrainJobSpec {
    pub(crate) runtime_ref: RuntimeRef,
    pub(crate) trainer: Trainer,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuntimeRef {
    pub(crate) api_group: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) name: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trainer {
    pub(crate) num_nodes: u32,
}
