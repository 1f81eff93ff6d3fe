//! The pod of one task: its container, limits, probes and volumes, with no more rights than training needs.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvFromSource, EnvVar, HTTPGetAction,
    NFSVolumeSource, PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    ResourceRequirements, SeccompProfile, SecretEnvSource, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use windlass_core::cluster::Job;

use crate::command::{RUNS, grace_seconds};
use crate::placement::place;
use crate::{PORT, Request, Storage, metadata};

/// The user of the image, who owns no files.
const USER: i64 = 65532;

/// Pods on a lost node are replaced after this time, instead of Kubernetes' five minutes.
const LOST_NODE_SECONDS: i64 = 60;

/// What differs between the kinds.
pub(crate) struct Pod {
    pub(crate) job: Job,
    /// The name of the container: operators look for theirs by name.
    pub(crate) container: &'static str,
    /// The name of the port: TFJob's operator looks for its port by name.
    pub(crate) port: &'static str,
    pub(crate) arguments: Vec<String>,
    /// The headless Service that gives the pod its DNS name, if no controller sets it.
    pub(crate) subdomain: Option<String>,
    /// Whether peers find the pod before it is ready.
    pub(crate) published_early: bool,
    /// `None` where an operator sets it.
    pub(crate) restart_policy: Option<&'static str>,
}

impl Pod {
    pub(crate) fn template(self, request: &Request) -> PodTemplateSpec {
        let job = self.job;
        let mut spec = PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: self.restart_policy.map(str::to_owned),
            security_context: Some(pod_security()),
            subdomain: self.subdomain.clone(),
            termination_grace_period_seconds: Some(grace_seconds(request)),
            tolerations: Some(tolerations()),
            volumes: Some(volumes(request)),
            containers: vec![self.container(request)],
            ..PodSpec::default()
        };
        place(request, job, &mut spec);
        PodTemplateSpec { metadata: Some(metadata::pod(request, job)), spec: Some(spec) }
    }

    fn container(self, request: &Request) -> Container {
        let resources = resources(request, self.job);
        // A pod without a DNS name until it is ready must not wait for its peers to be ready.
        let ready = if self.published_early { "/readyz" } else { "/livez" };
        Container {
            name: self.container.to_owned(),
            image: Some(request.image.clone()),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            args: Some(self.arguments.iter().map(|argument| argument.replace('$', "$$")).collect()),
            env: Some(vec![EnvVar { name: "TMPDIR".to_owned(), value: Some("/tmp".to_owned()), value_from: None }]),
            env_from: credentials(request),
            ports: Some(vec![ContainerPort {
                container_port: PORT.into(),
                name: Some(self.port.to_owned()),
                ..ContainerPort::default()
            }]),
            resources: Some(ResourceRequirements {
                limits: Some(resources.clone()),
                requests: Some(resources),
                ..ResourceRequirements::default()
            }),
            security_context: Some(container_security()),
            // A task has ten minutes to open its port. Loading comes after that and may take hours: /startupz would
            // fail until it is done, and a pod killed for that would be replaced again and again, since exit code 143
            // is not counted.
            startup_probe: Some(probe("/livez", 2, 300)),
            readiness_probe: Some(probe(ready, 5, 3)),
            // Fails after a minute without an answer from the event loop; training that makes no progress still counts
            // as alive.
            liveness_probe: Some(probe("/livez", 10, 6)),
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            volume_mounts: Some(mounts()),
            ..Container::default()
        }
    }
}

fn resources(request: &Request, job: Job) -> BTreeMap<String, Amount> {
    let mut resources = BTreeMap::from([
        ("cpu".to_owned(), Amount(request.cpu.to_string())),
        ("memory".to_owned(), Amount(request.memory.to_string())),
    ]);
    // Parameter servers compute on CPUs.
    if job == Job::Worker && request.gpus > 0 {
        resources.insert("nvidia.com/gpu".to_owned(), Amount(request.gpus.to_string()));
    }
    resources
}

fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        fs_group: Some(USER),
        // Without this, Kubernetes visits every file of a large volume each time a pod starts.
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        run_as_group: Some(USER),
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        privileged: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        ..SecurityContext::default()
    }
}

fn probe(path: &str, period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(PORT.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(5),
        failure_threshold: Some(failure_threshold),
        ..Probe::default()
    }
}

fn tolerations() -> Vec<Toleration> {
    let lost = |key: &str| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: Some(LOST_NODE_SECONDS),
        value: None,
    };
    vec![lost("node.kubernetes.io/not-ready"), lost("node.kubernetes.io/unreachable")]
}

fn volumes(request: &Request) -> Vec<Volume> {
    let empty = |limit: Option<&str>| EmptyDirVolumeSource {
        size_limit: limit.map(|limit| Amount(limit.to_owned())),
        medium: None,
    };
    let mut runs = Volume { name: "runs".to_owned(), ..Volume::default() };
    match &request.storage {
        Some(Storage::Claim(name)) => {
            runs.persistent_volume_claim =
                Some(PersistentVolumeClaimVolumeSource { claim_name: name.clone(), read_only: None });
        }
        Some(Storage::Nfs { server, path }) => {
            runs.nfs = Some(NFSVolumeSource { server: server.clone(), path: path.clone(), read_only: None });
        }
        _ => runs.empty_dir = Some(empty(None)),
    }
    let tmp = Volume { name: "tmp".to_owned(), empty_dir: Some(empty(Some("1Gi"))), ..Volume::default() };
    vec![runs, tmp]
}

fn mounts() -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    };
    vec![mount("runs", RUNS), mount("tmp", "/tmp")]
}

/// The credentials of an object store. They are optional because the identity of a node or workload may suffice.
fn credentials(request: &Request) -> Option<Vec<EnvFromSource>> {
    matches!(request.storage, Some(Storage::Objects(_))).then(|| {
        let secret = SecretEnvSource { name: request.storage_secret.clone(), optional: Some(true) };
        vec![EnvFromSource { secret_ref: Some(secret), ..EnvFromSource::default() }]
    })
}
