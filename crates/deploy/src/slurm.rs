//! A batch script for Slurm with one `srun` for all tasks. The tasks determine their roles from Slurm's variables
//! (`core/cluster/environment`); the script only says how many of them are ps.
//!
//! With storage, Slurm sends SIGUSR1 to the tasks before the time limit. They write a last checkpoint and exit with 138
//! (128 + 10), or with 143 if another task ended the run first. Then the script requeues the job, which resumes when it
//! starts again. Without storage there is nothing to resume from: the script neither asks for the signal nor requeues.

use windlass_core::cluster::Job;
use windlass_core::lifecycle::exit_code;

use crate::command::{Naming, arguments, grace_seconds, run_dir};
use crate::{Layout, Request};

/// The number of restarts, for whatever reason, after which a job is no longer requeued if it lost a task or was told
/// to stop soon after its start. A run that fails each time must not stay in the queue forever.
const MOST_RESTARTS: u32 = 20;
/// A job that was told to stop before this time has hardly trained.
const SOON_SECONDS: u32 = 30;

pub(crate) fn render(request: &Request) -> String {
    let tasks = request.ps + request.workers;
    let distribution = match request.layout {
        Layout::Apart => "cyclic",
        Layout::Together => "block",
    };
    let mut script = format!(
        "#!/bin/bash
# A Windlass run: tasks 0 to {last} in one step, of which the first {ps} are ps.
# Start with `sbatch --time=… FILE`, end with `scancel --name={name}`. The program is $WINDLASS, or windlass in the PATH.
",
        last = tasks - 1,
        ps = request.ps,
        name = request.name,
    );
    for option in options(request, tasks) {
        script.push_str(&format!("#SBATCH {option}\n"));
    }
    let words: Vec<String> =
        arguments(request, Job::Worker, &Naming::Variables).iter().map(|word| quote(word)).collect();
    script.push_str(&format!(
        "
export WINDLASS_SLURM_PS={ps}
# Tasks on one node take ports in a row from here. Jobs with the same number of tasks and job numbers near each other do
# not collide; jobs with different numbers of tasks can. A task whose port is taken says so: submit the job again.
export WINDLASS_SLURM_PORT=$((10000 + SLURM_JOB_ID * {tasks} % 20000))

code=0{began}
# The run survives the loss of a worker, so neither a failure nor the end of one task ends the others.
srun --kill-on-bad-exit=0 --wait=0 --distribution={distribution} --cpus-per-task={cpus} \\
  \"${{WINDLASS:-windlass}}\" {command} || code=$?
",
        ps = request.ps,
        began = if request.storage.is_some() { " began=$(date +%s)" } else { "" },
        // Since Slurm 22.05 `srun` does not inherit this from `sbatch`, and would give each task one CPU.
        cpus = cpus(request),
        command = words.join(" "),
    ));
    if request.storage.is_some() {
        script.push_str(&requeue(request));
    }
    script.push_str("exit \"$code\"\n");
    script
}

/// Requeues the job if it can resume. Nothing restarts a single task within a step, so after the loss of a ps the
/// others give up, and the whole job starts again. `srun` returns the highest exit code of all tasks, so a killed task
/// hides the codes of the others; whether the run has finished is therefore read from the last status that ps 0
/// recorded.
fn requeue(request: &Request) -> String {
    // The exit code of a task that a user interrupted with SIGINT is 130.
    let (stopped, peers, interrupted) = (exit_code::TERMINATED, exit_code::PEERS, 130);
    let (grace, status) = (grace_seconds(request), quote(&format!("{}/status.json", run_dir(request))));
    format!(
        "
has_finished() {{ # The exit code that ps 0 noted when the run was over, unless that was before this job.
  local written
  written=$(grep -os '\"written\":[0-9]*' {status}) && ((${{written##*:}} >= began)) &&
    grep -qs '\"exit_code\":0[,}}]' {status}
}}
requeue() {{
  echo \"$1 (exit code $code): requeueing job $SLURM_JOB_ID\"
  scontrol requeue \"$SLURM_JOB_ID\"
}}
requeue_unless_often() {{
  if ((${{SLURM_RESTART_COUNT:-0}} < {MOST_RESTARTS})); then
    requeue \"$1\"
  else
    echo \"$1 (exit code $code): job $SLURM_JOB_ID has been restarted $SLURM_RESTART_COUNT times, giving up\"
  fi
}}
if ((code != 0)) && has_finished; then
  echo \"the run has finished, although a task of it failed (exit code $code)\"
elif ((code == 138 || code == {stopped})); then # Told to stop, with a checkpoint written: resume from it.
  if ((SECONDS >= {SOON_SECONDS})); then
    requeue \"the tasks were told to stop\"
  else # The tasks are told {grace} s before the time limit. If the limit is not longer than that, they never make a step.
    requeue_unless_often \"the tasks were told to stop as soon as they had started; is --time longer than {grace} s?\"
  fi
elif ((code == {peers} || code > 128 && code != {interrupted})); then
  # A task gave up waiting for another, or a signal ended one: resume from the last checkpoint, but not for ever.
  requeue_unless_often \"a task was lost\"
fi
"
    )
}

/// The CPUs per task: Slurm assigns only whole CPUs.
fn cpus(request: &Request) -> u64 {
    request.cpu.rounded_up().max(1)
}

fn options(request: &Request, tasks: u32) -> Vec<String> {
    let cpus = cpus(request);
    let mut options = vec![
        format!("--job-name={}", request.name),
        format!("--ntasks={tasks}"),
        format!("--cpus-per-task={cpus}"),
        // Slurm counts memory by CPU or node, not by task.
        format!("--mem-per-cpu={}M", request.memory.mebibytes().div_ceil(cpus).max(1)),
        format!("--output={}-%j.log", request.name),
        "--open-mode=append".to_owned(),
    ];
    if request.storage.is_some() {
        options.push("--requeue".to_owned());
        options.push(format!("--signal=USR1@{}", grace_seconds(request)));
    }
    if request.layout == Layout::Apart {
        options.push("--spread-job".to_owned());
    }
    if request.gpus > 0 {
        // All tasks of a step are alike, so the ps get GPUs, too; with --ps 0 none are wasted.
        options.push(format!("--gpus-per-task={}", request.gpus));
    }
    options.extend(request.queue.as_ref().map(|queue| format!("--partition={queue}")));
    options
}

/// Quotes a word for a shell.
fn quote(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,@%+".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_program_as_they_are() {
        for word in ["plain", "", "a b", "it's", "$(rm)", "\"", "a\\b", "*"] {
            let output = std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quote(word))]).output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), word);
        }
    }
}
