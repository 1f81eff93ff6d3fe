//! Every name in a manifest, and every name that controllers derive from it, is a DNS label; the name of a runtime,
//! which has no namespace, consists of two labels.

use proptest::prelude::*;
use serde_json::Value;
use windlass_deploy::{Error, Kind, Request, render};

use crate::documents;

fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 63
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.bytes().all(inner)
}

/// The names of pods with the longest suffixes appended to them, computed from the documents alone.
fn pod_names(kind: Kind, documents: &[Value]) -> Vec<String> {
    let of_kind = |kind: &'static str| documents.iter().filter(move |document| document["kind"] == *kind).cloned();
    let name = |document: &Value| document["metadata"]["name"].as_str().unwrap().to_owned();
    let last = |job: &Value| job["completions"].as_u64().unwrap() - 1;
    let of_jobset = |name: &str, spec: &Value| -> Vec<String> {
        let jobs = spec["replicatedJobs"].as_array().unwrap();
        jobs.iter()
            .map(|job| format!("{name}-{}-0-{}-abcde", job["name"].as_str().unwrap(), last(&job["template"]["spec"])))
            .collect()
    };
    match kind {
        Kind::K8s => of_kind("Job").map(|job| format!("{}-{}-abcde", name(&job), last(&job["spec"]))).collect(),
        Kind::JobSet => of_kind("JobSet").flat_map(|set| of_jobset(&name(&set), &set["spec"])).collect(),
        Kind::TrainJob => {
            let run = name(&of_kind("TrainJob").next().unwrap());
            let runtime = of_kind("ClusterTrainingRuntime").next().unwrap();
            of_jobset(&run, &runtime["spec"]["template"]["spec"])
        }
        Kind::TfJob => {
            let job = of_kind("TFJob").next().unwrap();
            let replicas = job["spec"]["tfReplicaSpecs"].as_object().unwrap();
            let last = |spec: &Value| spec["replicas"].as_u64().unwrap() - 1;
            replicas
                .iter()
                .map(|(role, spec)| format!("{}-{}-{}", name(&job), role.to_lowercase(), last(spec)))
                .collect()
        }
        Kind::Compose | Kind::Slurm => Vec::new(),
    }
}

fn kubernetes() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![Kind::K8s, Kind::JobSet, Kind::TfJob, Kind::TrainJob])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn names_fit_or_are_refused(
        kind in kubernetes(),
        name in "[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
        ps in 0u32..200,
        workers in 1u32..200,
    ) {
        let mut request = Request::new(kind, name.parse().unwrap(), vec!["mnist".to_owned()]);
        (request.ps, request.workers) = (ps, workers);
        request.namespace = Some("n".repeat(63).parse().unwrap());
        match render(&request) {
            Ok(manifest) => {
                let documents = documents(&manifest);
                for document in &documents {
                    let name = document["metadata"]["name"].as_str().unwrap();
                    match document["kind"] == "ClusterTrainingRuntime" {
                        true => prop_assert!(name.len() <= 253 && name.split('.').all(is_label), "{name}"),
                        false => prop_assert!(is_label(name), "{name}"),
                    }
                }
                for name in pod_names(kind, &documents) {
                    prop_assert!(is_label(&name), "{name}");
                }
                if matches!(kind, Kind::JobSet | Kind::TrainJob) {
                    let job = if ps == 0 { "worker" } else { "ps" };
                    let label = format!("{name}-{job}-0-0.{name}");
                    prop_assert!(label.len() <= 63, "{}", label);
                }
            }
            Err(Error::NameTooLong { longest, .. }) => {
                prop_assert!(longest < name.len());
                // What the error suggests is accepted.
                request.name = name[..longest].trim_end_matches('-').parse().unwrap();
                prop_assert!(render(&request).is_ok(), "{longest}");
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn runtimes_of_different_runs_never_share_a_name() {
    let runtime = |namespace: &str, name: &str| {
        let mut request = Request::new(Kind::TrainJob, name.parse().unwrap(), vec!["mnist".to_owned()]);
        request.namespace = Some(namespace.parse().unwrap());
        let documents = documents(&render(&request).unwrap());
        let runtime = documents.iter().find(|document| document["kind"] == "ClusterTrainingRuntime").unwrap();
        runtime["metadata"]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(runtime("team-a", "digits"), "team-a.digits");
    // Joined by a hyphen, these two names would be the same.
    assert_ne!(runtime("team", "a-digits"), runtime("team-a", "digits"));
}
