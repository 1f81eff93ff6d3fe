//! An Indexed Job: all ps, or all workers, each with an index that it keeps when its pod is replaced.
//!
//! The ps are an Indexed Job, too, rather than a StatefulSet: a StatefulSet restarts whatever exits, so it could never
//! complete. A ps exits with 0 when training is over.

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use windlass_core::cluster::Job;
use windlass_core::lifecycle::exit_code;

use crate::Request;

/// How often a task may fail for reasons of its own, such as running out of memory.
const FAILURES_PER_INDEX: i32 = 6;

/// How long a finished Job is kept for inspection.
pub(crate) const KEEP_FINISHED_SECONDS: i32 = 86_400;

/// The Job of the run's ps or of its workers, with as many indices as there are tasks.
pub(crate) fn spec(request: &Request, job: Job, container: &str, template: PodTemplateSpec) -> JobSpec {
    let count = request.jobs().find(|(wanted, _)| *wanted == job).map_or(0, |(_, count)| count);
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    JobSpec {
        completion_mode: Some("Indexed".to_owned()),
        completions: Some(count),
        parallelism: Some(count),
        backoff_limit_per_index: Some(FAILURES_PER_INDEX),
        // Training continues without a worker, but not without a task that holds parameters.
        max_failed_indexes: (job == request.servers().0).then_some(0),
        pod_failure_policy: Some(failure_policy(container)),
        // A task must be gone before the next one of the same index starts.
        pod_replacement_policy: Some("Failed".to_owned()),
        template,
        ..JobSpec::default()
    }
}

fn failure_policy(container: &str) -> PodFailurePolicy {
    let on_codes = |action: &str, codes: &[u8]| PodFailurePolicyRule {
        action: action.to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(container.to_owned()),
            operator: "In".to_owned(),
            values: codes.iter().map(|code| (*code).into()).collect(),
        }),
        on_pod_conditions: None,
    };
    let disrupted =
        PodFailurePolicyOnPodConditionsPattern { type_: "DisruptionTarget".to_owned(), status: "True".to_owned() };
    let disrupted = PodFailurePolicyRule {
        action: "Ignore".to_owned(),
        on_pod_conditions: Some(vec![disrupted]),
        on_exit_codes: None,
    };
    // Retrying does not help against bad flags, a loss that is not finite or a checkpoint that does not fit.
    let hopeless = on_codes("FailJob", &[exit_code::USAGE, exit_code::NUMERIC, exit_code::CHECKPOINT]);
    // A task that was told to stop has written a checkpoint. When a ps is told to stop, all other tasks exit with this
    // code, too.
    let stopped = on_codes("Ignore", &[exit_code::TERMINATED]);
    PodFailurePolicy { rules: vec![disrupted, hopeless, stopped] }
}
