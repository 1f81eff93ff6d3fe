//! Which nodes the pods of a run share. Both layouts are preferences: a run that fits only in another way is not held
//! back.

use k8s_openapi::api::core::v1::{
    Affinity, PodAffinity, PodAffinityTerm, PodSpec, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use windlass_core::cluster::Job;

use crate::metadata::selector;
use crate::{Layout, Request};

const NODE: &str = "kubernetes.io/hostname";

/// Adds the affinities of the layout to a pod.
pub(crate) fn place(request: &Request, job: Job, pod: &mut PodSpec) {
    match request.layout {
        Layout::Apart => {
            pod.topology_spread_constraints = Some(vec![TopologySpreadConstraint {
                label_selector: Some(selector(request, Some(job))),
                max_skew: 1,
                topology_key: NODE.to_owned(),
                when_unsatisfiable: "ScheduleAnyway".to_owned(),
                ..TopologySpreadConstraint::default()
            }]);
        }
        Layout::Together => {
            let near = PodAffinityTerm {
                label_selector: Some(selector(request, None)),
                topology_key: NODE.to_owned(),
                ..PodAffinityTerm::default()
            };
            let preferred = vec![WeightedPodAffinityTerm { pod_affinity_term: near, weight: 100 }];
            pod.affinity = Some(Affinity {
                pod_affinity: Some(PodAffinity {
                    preferred_during_scheduling_ignored_during_execution: Some(preferred),
                    ..PodAffinity::default()
                }),
                ..Affinity::default()
            });
        }
    }
}
