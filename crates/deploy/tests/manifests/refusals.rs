//! Requests that are refused before anything is printed, with the messages that the user sees.

use insta::assert_snapshot;
use windlass_deploy::render;

use crate::request;

fn refusal(words: &str) -> String {
    let error = request(words).and_then(|request| render(&request)).expect_err(words);
    format!("error: {error}\nhint: {}", error.hint().unwrap_or_default())
}

#[test]
fn of_a_run_without_workers() {
    assert_snapshot!(refusal("k8s --workers 0 -- mnist"), @"
    error: --workers is 0, expected at least 1
    hint: give --workers 1 or more
    ");
}

#[test]
fn of_a_name_that_is_too_long_with_what_is_appended() {
    assert_snapshot!(refusal("k8s --name a-name-that-is-much-longer-than-any-name-of-a-run-should-be -- mnist"), @r#"
    error: name "a-name-that-is-much-longer-than-any-name-of-a-run-should-be" has 59 characters, expected at most 48 for k8s: a pod would be "a-name-that-is-much-longer-than-any-name-of-a-run-should-be-ps-0-abcde"
    hint: choose a --name of at most 48 characters
    "#);
}

#[test]
fn of_a_name_that_is_too_long_for_a_coordinators_label() {
    assert_snapshot!(refusal("jobset --name a-name-of-twenty-eight-chars -- mnist"), @r#"
    error: name "a-name-of-twenty-eight-chars" has 28 characters, expected at most 27 for jobset: the coordinator's label would be "a-name-of-twenty-eight-chars-ps-0-0.a-name-of-twenty-eight-chars"
    hint: choose a --name of at most 27 characters
    "#);
}

#[test]
fn of_a_flag_that_the_manifest_sets() {
    assert_snapshot!(refusal("k8s -- mnist --run_dir=/x"), @"
    error: --run-dir is given after --, but the manifest sets it
    hint: leave --run-dir out, and say where with --storage
    ");
}

#[test]
fn of_more_or_fewer_replicas_than_gpus() {
    for towers in [1, 4] {
        let refusal = refusal(&format!("k8s --gpus 2 -- mnist --towers {towers}"));
        assert!(refusal.contains(&format!("--towers is {towers}, but --gpus gives each worker 2")), "{refusal}");
    }
    assert_snapshot!(refusal("slurm --gpus 2 -- mnist --towers 4"), @"
    error: --towers is 4, but --gpus gives each worker 2
    hint: omit --towers for a replica of the network on each GPU, or name what to compute on with --devices
    ");
}

#[test]
fn of_a_flag_that_would_undo_what_a_replaced_task_has_done() {
    assert_snapshot!(refusal("slurm --storage file:/x -- mnist --resume never"), @"
    error: --resume is given after --, but the manifest would give it to every task that is replaced
    hint: leave --resume out: a run resumes from its own checkpoints, if it has any; to start from scratch, choose another --name
    ");
}

#[test]
fn of_flags_that_the_manifest_does_not_set_but_cannot_pass_on() {
    assert_snapshot!(refusal("k8s -- mnist --bind 0.0.0.0:1"), @"
    error: --bind is given after --, but the manifest decides where tasks listen and find each other
    hint: leave --bind out
    ");
    assert_snapshot!(refusal("k8s -- mnist --restarted"), @"
    error: --restarted is given after --, but the manifest would give it to every task that is replaced
    hint: leave --restarted out
    ");
}

#[test]
fn of_no_time_to_stop() {
    assert_snapshot!(refusal("k8s --grace 0 -- mnist"), @r#"
    error: --grace is "0", expected a number of seconds above zero and up to 86400
    hint: such as 30
    "#);
}

#[test]
fn of_a_trainjob_without_a_namespace() {
    assert_snapshot!(refusal("trainjob -- mnist"), @"
    error: no --namespace is given, and trainjob needs it: the name of its ClusterTrainingRuntime contains it
    hint: give the namespace that the run belongs to, as in --namespace team-a
    ");
}

#[test]
fn of_a_directory_in_kubernetes() {
    assert_snapshot!(refusal("k8s --storage file:/x -- mnist"), @r#"
    error: storage "file:/x" cannot be used with k8s
    hint: use pvc:NAME, nfs:SERVER:/PATH, or s3://, gs:// or az://
    "#);
}

#[test]
fn of_a_claim_in_slurm() {
    assert_snapshot!(refusal("slurm --storage pvc:x -- mnist"), @r#"
    error: storage "pvc:x" cannot be used with slurm
    hint: nodes of a Slurm cluster share a file system: use file:/PATH, or s3://, gs:// or az://
    "#);
}

#[test]
fn of_a_flag_in_the_place_of_the_model() {
    assert_snapshot!(refusal("k8s -- --steps 5"), @"
    error: no model is given after --
    hint: name the model and its flags, as in -- mnist --steps 1000
    ");
}

#[test]
fn of_more_tasks_than_a_command_line_holds() {
    assert_snapshot!(refusal("k8s --ps 1 --workers 4000000000 -- mnist"), @"
    error: 4000000001 tasks, expected at most 1000
    hint: ask for fewer ps and workers, with more CPUs each
    ");
}

#[test]
fn warnings_name_what_the_author_may_not_want() {
    let request = request("k8s --gpus 2 --queue q -- mnist").unwrap();
    let warnings: Vec<String> = request.warnings(false).iter().map(ToString::to_string).collect();
    assert_snapshot!(warnings.join("\n"), @"
    --gpus 2 is given, but this build of windlass has no GPU backend: its workers would refuse to start
    no --storage is given: without checkpoints a run that is interrupted starts from the beginning
    Kueue admits the Jobs of ps and workers separately: with a full queue, one may run and wait for the other
    ");
    let texts = |words: &str| -> Vec<String> {
        crate::request(words).unwrap().warnings(true).iter().map(ToString::to_string).collect()
    };
    assert_snapshot!(texts("compose --queue q --namespace n --layout together -- mnist").join("\n"), @"
    --namespace has no effect with compose
    --queue has no effect with compose
    --layout has no effect with compose
    ");
    assert_snapshot!(texts("slurm --storage file:/a --queue q --scrape-from n --image i -- mnist").join("\n"), @"
    --scrape-from has no effect with slurm
    --image has no effect with slurm
    ");
    let jobset = crate::request("jobset --gpus 2 --queue q --storage pvc:a -- mnist").unwrap();
    assert_eq!(jobset.warnings(true), []);
}
