//! What protects a run from others: who may connect to its pods, and which of them a node drain leaves alone.

use std::iter;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::metadata::{APPLICATION, object, selector};
use crate::{Namespace, PORT, Request};

/// The label that Kubernetes itself gives every namespace.
const NAMESPACE: &str = "kubernetes.io/metadata.name";

/// Allows connections only between the run's pods, and from Prometheus in the namespace that the request names. The
/// port that Prometheus scrapes also carries the coordinator and the parameters, none of it authenticated, so a pod
/// label alone, which anyone can give their pods, does not grant access. Outgoing connections are not restricted: the
/// location of DNS and object stores depends on the cluster.
pub(crate) fn network_policy(request: &Request) -> NetworkPolicy {
    let own = NetworkPolicyPeer { pod_selector: Some(selector(request, None)), ..NetworkPolicyPeer::default() };
    let scraper = request.scrape_from.as_ref().map(scraper);
    let port = NetworkPolicyPort {
        port: Some(IntOrString::Int(PORT.into())),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    let rule =
        NetworkPolicyIngressRule { from: Some(iter::once(own).chain(scraper).collect()), ports: Some(vec![port]) };
    NetworkPolicy {
        metadata: object(request, request.name.to_string(), None),
        spec: Some(NetworkPolicySpec {
            ingress: Some(vec![rule]),
            pod_selector: Some(selector(request, None)),
            policy_types: Some(vec!["Ingress".to_owned()]),
            egress: None,
        }),
    }
}

/// Selects the pods of Prometheus in a namespace.
fn scraper(namespace: &Namespace) -> NetworkPolicyPeer {
    let labelled = |key: &str, value: &str| LabelSelector {
        match_labels: Some([(key.to_owned(), value.to_owned())].into()),
        match_expressions: None,
    };
    NetworkPolicyPeer {
        namespace_selector: Some(labelled(NAMESPACE, namespace.as_str())),
        pod_selector: Some(labelled(APPLICATION, "prometheus")),
        ip_block: None,
    }
}

/// Protects every task that holds parameters: evicting one stops the run until it is back. The budget is a count
/// because Kubernetes accepts nothing else for pods of Jobs.
pub(crate) fn disruption_budget(request: &Request) -> PodDisruptionBudget {
    let (job, count) = request.servers();
    PodDisruptionBudget {
        metadata: object(request, format!("{}-{job}", request.name), Some(job)),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(i32::try_from(count).unwrap_or(i32::MAX))),
            selector: Some(selector(request, Some(job))),
            // A pod that is not ready, perhaps because others are missing, must not block a node drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            max_unavailable: None,
        }),
        status: None,
    }
}
