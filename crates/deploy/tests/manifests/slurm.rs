//! What the script for Slurm does after its tasks have ended: bash runs it with stand-ins for Slurm's programs.

use std::process::Command;

use crate::manifest;

const STORED: &str = "slurm --storage file:/scratch --name digits -- mnist";

/// Runs a script whose tasks end with `code`. Returns the exit code of the script and whether it requeued its job.
fn ended(script: &str, code: u8, restarts: Option<u32>) -> (Option<i32>, bool) {
    let stand_ins = format!("srun() {{ return {code}; }}\nscontrol() {{ echo \"scontrol $*\"; }}\n");
    let mut bash = Command::new("bash");
    bash.args(["-euc", &format!("{stand_ins}{script}")]).env("SLURM_JOB_ID", "7").env_remove("SLURM_RESTART_COUNT");
    if let Some(restarts) = restarts {
        bash.env("SLURM_RESTART_COUNT", restarts.to_string());
    }
    let output = bash.output().expect("bash");
    let said = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), said.lines().any(|line| line == "scontrol requeue 7"))
}

#[test]
fn a_job_that_has_trained_and_is_told_to_stop_is_requeued_however_often_it_was() {
    // Bash continues to count from this value.
    let script = format!("SECONDS=30\n{}", manifest(STORED));
    for code in [138, 143] {
        assert_eq!(ended(&script, code, None), (Some(code.into()), true));
        assert_eq!(ended(&script, code, Some(500)), (Some(code.into()), true));
    }
}

#[test]
fn a_job_that_loses_a_task_is_requeued_a_limited_number_of_times() {
    let script = manifest(STORED);
    // 139 is a crash, 134 an abort, 135 a bus error.
    for code in [5, 129, 134, 135, 137, 139] {
        assert_eq!(ended(&script, code, None), (Some(code.into()), true));
        assert_eq!(ended(&script, code, Some(19)), (Some(code.into()), true));
        assert_eq!(ended(&script, code, Some(20)), (Some(code.into()), false));
    }
}

#[test]
fn a_job_that_ends_or_fails_by_itself_is_not_requeued() {
    let script = manifest(STORED);
    // 130 is SIGINT: a user interrupted it.
    for code in [0, 1, 2, 3, 4, 127, 128, 130] {
        assert_eq!(ended(&script, code, None), (Some(code.into()), false));
    }
}

#[test]
fn a_job_that_is_told_to_stop_as_soon_as_it_starts_is_requeued_a_limited_number_of_times() {
    let script = manifest(STORED);
    for code in [138, 143] {
        assert_eq!(ended(&script, code, None), (Some(code.into()), true));
        assert_eq!(ended(&script, code, Some(19)), (Some(code.into()), true));
        assert_eq!(ended(&script, code, Some(20)), (Some(code.into()), false));
    }
}

#[test]
fn a_job_without_checkpoints_is_never_requeued() {
    let script = manifest("slurm --name digits -- mnist");
    for code in [0, 5, 137, 138, 143] {
        assert_eq!(ended(&script, code, None), (Some(code.into()), false));
    }
    assert!(!script.contains("requeue") && !script.contains("--signal"), "{script}");
}

#[test]
fn a_run_that_has_finished_is_not_requeued_for_the_sake_of_a_lost_task() {
    let directory = std::env::temp_dir().join(format!("windlass-finished-{}", std::process::id()));
    let run = directory.join("it's");
    std::fs::create_dir_all(run.join("digits")).unwrap();
    let script = manifest(&format!("slurm --storage file:{} --name digits -- mnist", run.display()));
    for (status, is_requeued) in [
        (r#"{"written":99999999999,"exit_code":null,"status":{}}"#, true),
        (r#"{"written":99999999999,"exit_code":143,"status":{}}"#, true),
        (r#"{"written":99999999999,"exit_code":0,"status":{}}"#, false),
        (r#"{"status":{},"exit_code":0,"written":99999999999}"#, false),
        // Left by an earlier job, whose run this job was meant to continue.
        (r#"{"written":1,"exit_code":0,"status":{}}"#, true),
    ] {
        std::fs::write(run.join("digits/status.json"), status).unwrap();
        for code in [5, 137, 143] {
            assert_eq!(ended(&script, code, None), (Some(code.into()), is_requeued), "{status} {code}");
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn every_task_of_the_step_gets_its_cpus() {
    let script = manifest("slurm --cpu 2500m --name digits -- mnist");
    let srun = script.lines().find(|line| line.starts_with("srun ")).expect("srun");
    assert!(srun.contains(" --cpus-per-task=3 "), "{srun}");
}

#[test]
fn tasks_that_nothing_restarts_are_not_waited_for_longer_than_usual() {
    assert!(!manifest(STORED).contains("--peer-timeout"));
    assert!(manifest(&format!("{STORED} --peer-timeout 9")).contains("--peer-timeout 9"));
}
