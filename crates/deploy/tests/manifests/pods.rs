//! Properties that pods of every kind have.

use serde_json::{Value, json};

use crate::{documents, manifest, number, templates, text};

const KINDS: [&str; 4] = ["k8s", "jobset", "tfjob", "trainjob"];

fn each_pod(check: impl Fn(&str, &Value, &Value)) {
    for kind in KINDS {
        let found = templates(&manifest(&format!(
            "{kind} --namespace n --ps 2 --workers 3 --storage pvc:runs --name a -- mnist"
        )));
        assert_eq!(found.len(), 2, "{kind}");
        for (job, template) in &found {
            check(kind, job, &template["spec"]);
        }
    }
}

#[test]
fn every_pod_runs_without_rights() {
    each_pod(|kind, _, pod| {
        let container = &pod["containers"][0];
        assert_eq!(pod["automountServiceAccountToken"], false, "{kind}");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{kind}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{kind}");
        let security = &container["securityContext"];
        assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}), "{kind}");
        assert_eq!(security["allowPrivilegeEscalation"], false, "{kind}");
        assert_eq!(security["readOnlyRootFilesystem"], true, "{kind}");
    });
}

#[test]
fn every_pod_gets_exactly_what_it_asks_for() {
    each_pod(|kind, _, pod| {
        let resources = &pod["containers"][0]["resources"];
        assert_eq!(resources["requests"], resources["limits"], "{kind}");
        assert!(resources["limits"]["memory"].is_string(), "{kind}");
    });
}

#[test]
fn every_pod_is_asked_on_the_port_of_its_task() {
    each_pod(|kind, _, pod| {
        let container = &pod["containers"][0];
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], 2222, "{kind} {probe}");
        }
        assert_eq!(text(container, "/livenessProbe/httpGet/path"), "/livez", "{kind}");
        // A task that loads for hours must not be killed: it answers /livez all the while, but /startupz only
        // afterwards.
        assert_eq!(text(container, "/startupProbe/httpGet/path"), "/livez", "{kind}");
        // The operator of a TFJob publishes a pod only once it is ready, so readiness must not depend on other pods.
        let ready = if kind == "tfjob" { "/livez" } else { "/readyz" };
        assert_eq!(text(container, "/readinessProbe/httpGet/path"), ready, "{kind}");
    });
}

#[test]
fn pods_ask_to_be_scraped_only_where_prometheus_may_connect() {
    for kind in KINDS {
        for (flag, is_asked) in [("", false), ("--scrape-from monitoring", true)] {
            for (_, template) in templates(&manifest(&format!("{kind} --namespace n {flag} --name a -- mnist"))) {
                let annotation = &template["metadata"]["annotations"]["prometheus.io/scrape"];
                assert_eq!(annotation == "true", is_asked, "{kind} {flag}");
            }
        }
    }
}

#[test]
fn every_pod_has_time_for_three_checkpoints() {
    each_pod(|kind, _, pod| assert_eq!(number(pod, "/terminationGracePeriodSeconds"), 120, "{kind}"));
}

#[test]
fn the_time_to_stop_reaches_every_kind() {
    for kind in KINDS {
        for (_, template) in templates(&manifest(&format!("{kind} --namespace n --grace 777 --name a -- mnist"))) {
            assert_eq!(number(&template, "/spec/terminationGracePeriodSeconds"), 777, "{kind}");
        }
    }
    let compose = documents(&manifest("compose --grace 777 --name a -- mnist"));
    for task in ["ps-0", "worker-0", "worker-1"] {
        assert_eq!(compose[0]["services"][task]["stop_grace_period"], "777s", "{task}");
    }
    let slurm = manifest("slurm --grace 777 --storage file:/x --name a -- mnist");
    assert!(slurm.contains("#SBATCH --signal=USR1@777\n") && slurm.contains("is --time longer than 777 s?"), "{slurm}");
}

#[test]
fn jobs_retry_what_can_be_retried() {
    each_pod(|kind, job, pod| {
        if kind == "tfjob" {
            assert_eq!(job["restartPolicy"], "ExitCode");
            return;
        }
        assert_eq!(pod["restartPolicy"], "Never", "{kind}");
        assert_eq!(job["podReplacementPolicy"], "Failed", "{kind}");
        assert_eq!(job["completionMode"], "Indexed", "{kind}");
        assert!(job["backoffLimitPerIndex"].is_u64(), "{kind}");
        let rules = &job["podFailurePolicy"]["rules"];
        assert_eq!(rules[0]["onPodConditions"][0]["type"], "DisruptionTarget", "{kind}");
        assert_eq!(rules[0]["action"], "Ignore", "{kind}");
        assert_eq!(rules[1]["onExitCodes"]["values"], json!([2, 3, 4]), "{kind}");
        assert_eq!(rules[1]["action"], "FailJob", "{kind}");
        assert_eq!(rules[1]["onExitCodes"]["containerName"], pod["containers"][0]["name"], "{kind}");
        assert_eq!(rules[2]["onExitCodes"]["values"], json!([143]), "{kind}");
        assert_eq!(rules[2]["action"], "Ignore", "{kind}");
    });
}

#[test]
fn the_guards_select_the_pods_of_the_run() {
    for kind in KINDS {
        let manifest = manifest(&format!("{kind} --namespace n --ps 2 --workers 3 --name a -- mnist"));
        let of_kind = |kind: &str| documents(&manifest).into_iter().find(|document| document["kind"] == kind);
        let policy = of_kind("NetworkPolicy").expect(kind);
        let budget = of_kind("PodDisruptionBudget").expect(kind);
        assert_eq!(number(&budget, "/spec/minAvailable"), 2, "{kind}");
        for (_, template) in templates(&manifest) {
            let labels = &template["metadata"]["labels"];
            let selects = |selector: &Value| {
                let wanted = selector["matchLabels"].as_object().unwrap();
                wanted.iter().all(|(key, value)| labels[key] == *value)
            };
            assert!(selects(&policy["spec"]["podSelector"]), "{kind}");
            assert!(selects(&policy["spec"]["ingress"][0]["from"][0]["podSelector"]), "{kind}");
            let is_ps = labels["app.kubernetes.io/component"] == "ps";
            assert_eq!(selects(&budget["spec"]["selector"]), is_ps, "{kind}");
        }
    }
}

/// The peers that may connect to the pods of a run.
fn callers(words: &str) -> Value {
    let documents = documents(&manifest(words));
    let policy = documents.iter().find(|document| document["kind"] == "NetworkPolicy").expect(words);
    assert_eq!(policy["spec"]["ingress"].as_array().map(Vec::len), Some(1), "{words}");
    policy["spec"]["ingress"][0]["from"].clone()
}

#[test]
fn only_the_pods_of_the_run_reach_its_port() {
    for kind in KINDS {
        let from = callers(&format!("{kind} --namespace team-a --name a -- mnist"));
        let own = json!({"app.kubernetes.io/name": "windlass", "app.kubernetes.io/instance": "a"});
        assert_eq!(from, json!([{"podSelector": {"matchLabels": own}}]), "{kind}");
    }
}

#[test]
fn prometheus_is_let_in_from_one_namespace() {
    for kind in KINDS {
        let from = callers(&format!("{kind} --namespace team-a --scrape-from monitoring --name a -- mnist"));
        let scraper = json!({
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
        });
        assert_eq!((from.as_array().map(Vec::len), &from[1]), (Some(2), &scraper), "{kind}");
    }
}

#[test]
fn a_queue_admits_what_kueue_knows() {
    for (kind, queued) in [("k8s", "Job"), ("jobset", "JobSet"), ("tfjob", "TFJob"), ("trainjob", "TrainJob")] {
        let documents = documents(&manifest(&format!("{kind} --namespace n --queue training --name a -- mnist")));
        for document in documents {
            let queue = &document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"];
            assert_eq!(queue.is_string(), document["kind"] == queued, "{kind}: {}", document["kind"]);
        }
    }
}

#[test]
fn only_workers_get_gpus() {
    for kind in KINDS {
        for (_, template) in templates(&manifest(&format!("{kind} --namespace n --gpus 2 --name a -- mnist"))) {
            let limits = &template["spec"]["containers"][0]["resources"]["limits"];
            let is_worker = template["metadata"]["labels"]["app.kubernetes.io/component"] == "worker";
            assert_eq!(limits["nvidia.com/gpu"] == "2", is_worker, "{kind}");
            let text = template.to_string();
            assert_eq!(text.contains(r#""--devices","gpu:0,gpu:1""#), is_worker, "{kind}: {text}");
        }
    }
}

#[test]
fn a_command_that_says_what_to_compute_on_is_left_alone() {
    let place = "--place hidden=gpu:0,output=gpu:1";
    for flag in ["--device gpu", "--devices=cpu,gpu:0", "--device=gpu:1 --towers 4", place] {
        let manifest = manifest(&format!("k8s --gpus 2 --name a -- mnist {flag}"));
        assert!(!manifest.contains("gpu:0,gpu:1"), "{flag}: {manifest}");
    }
}

#[test]
fn a_command_with_a_replica_for_each_gpu_has_them_there() {
    for flag in ["--towers 2", "--towers=2"] {
        let manifest = manifest(&format!("k8s --gpus 2 --name a -- mnist {flag}"));
        assert!(manifest.contains("- gpu:0,gpu:1"), "{flag}: {manifest}");
    }
}
