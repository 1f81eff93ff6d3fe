//! `windlass manifest`: what it prints, and what it refuses before it prints anything.

use crate::process::windlass;

#[test]
fn a_manifest_holds_the_run_and_nothing_else() {
    let told = windlass("manifest k8s --ps 2 --workers 3 --storage pvc:runs -- mnist --mode sync --hidden 64,32").run();
    let told = told.succeeded();
    assert_eq!(told.stderr, "", "{told}");
    for part in ["kind: Job", "completions: 3", "claimName: runs", "- --hidden", "- 64,32", "/readyz"] {
        assert!(told.stdout.contains(part), "no {part:?} in\n{told}");
    }
}

#[test]
fn what_is_wrong_is_said_before_anything_is_printed() {
    for (words, said) in [
        ("k8s --storage ftp://host/path -- mnist", "unknown scheme ftp://"),
        ("k8s --namespace Team_A -- mnist", "Team_A"),
        ("k8s --workers 0 -- mnist", "0"),
        ("k8s --memory 4GB -- mnist", "4GB"),
        ("k8s -- mnist --no-such-flag 3", "--no-such-flag"),
        ("k8s -- mnist --learning-rate fast", "fast"),
        ("k8s -- mnist --optimizer-option no_such=1", "no_such"),
        ("k8s -- mnist --help", "only prints something"),
        ("k8s -- mnist --print-cluster", "only prints"),
        ("k8s -- mnist --config run.toml", "cannot bring along a file"),
        ("k8s -- nonet", "the models are linear, mnist"),
        ("k8s mnist --hidden 8", "after `--`: -- mnist"),
        ("k8s", "MODEL FLAGS"),
        ("swarm -- mnist", "swarm"),
        ("k8s -- mnist --job_name ps", "--job"),
        ("trainjob -- mnist", "--namespace"),
        ("k8s --storage pvc:runs -- mnist --keep 0", "--keep must be at least 1"),
        ("k8s --storage pvc:runs -- mnist --checkpoint-steps 0", "--checkpoint-steps must be at least 1"),
        ("compose -- mnist --checkpoint-secs -5", "--checkpoint-secs"),
        ("k8s -- mnist --checkpoint-steps 50", "--storage WHERE"),
        ("slurm -- mnist --checkpoint-secs 5", "--storage WHERE"),
        ("k8s -- mnist --histograms", "--storage WHERE"),
        ("k8s -- mnist --resume runs/a", "leave --resume out"),
        ("k8s --gpus 2 --storage pvc:x -- linear", "--devices names 2, but a worker's step has only 1 sample"),
        ("slurm --gpus 3 -- mnist --batch-size 2", "--devices names 3, but a worker's step has only 2 samples"),
        ("k8s --gpus 2 -- mnist --towers 3", "--towers is 3, but --gpus gives each worker 2"),
        ("k8s --workers 2 -- mnist --mode sync --replicas-to-aggregate 3", "more than the run's 2 workers"),
    ] {
        let told = windlass(&format!("manifest {words}")).run();
        assert_eq!((told.exit_code(), &*told.stdout), (Some(2), ""), "{words}: {told}");
        assert!(told.stderr.contains(said), "no {said:?} for {words}: {told}");
    }
}

#[test]
fn flags_about_checkpoints_are_taken_where_the_manifest_has_a_place_for_them() {
    for words in ["k8s --storage pvc:runs", "slurm --storage s3://bucket/run", "compose"] {
        let told = windlass(&format!("manifest {words} -- mnist --checkpoint-steps 50 --keep 2")).run().succeeded();
        assert!(told.stdout.contains("checkpoint-steps") && told.stderr.is_empty(), "{told}");
    }
}

#[test]
fn gpus_that_this_build_cannot_use_are_warned_of() {
    let told = windlass("manifest k8s --gpus 2 --storage s3://bucket/run -- mnist").run().succeeded();
    assert!(told.stderr.contains("--gpus 2") && told.stderr.starts_with("warning: "), "{told}");
    assert!(told.stdout.contains("nvidia.com/gpu"), "{told}");
}

#[test]
fn a_pod_of_an_indexed_job_finds_its_place() {
    let told = windlass("train mnist --job_name worker --ps_hosts a:2222 --worker_hosts b:2222,c:2222 --print-cluster")
        .env("JOB_COMPLETION_INDEX", "1")
        .run()
        .succeeded();
    assert!(told.stdout.contains("worker 1"), "{told}");
}
