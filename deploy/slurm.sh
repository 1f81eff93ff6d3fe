#!/bin/bash
# A Windlass run: tasks 0 to 5 in one step, of which the first 2 are ps.
# Start with `sbatch --time=… FILE`, end with `scancel --name=digits`. The program is $WINDLASS, or windlass in the PATH.
#SBATCH --job-name=digits
#SBATCH --ntasks=6
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=1024M
#SBATCH --output=digits-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
#SBATCH --spread-job
#SBATCH --partition=gpu

export WINDLASS_SLURM_PS=2
# Tasks on one node take ports in a row from here. Jobs with the same number of tasks and job numbers near each other do
# not collide; jobs with different numbers of tasks can. A task whose port is taken says so: submit the job again.
export WINDLASS_SLURM_PORT=$((10000 + SLURM_JOB_ID * 6 % 20000))

code=0 began=$(date +%s)
# The run survives the loss of a worker, so neither a failure nor the end of one task ends the others.
srun --kill-on-bad-exit=0 --wait=0 --distribution=cyclic --cpus-per-task=2 \
  "${WINDLASS:-windlass}" train mnist --run-dir /scratch/runs/digits --mode sync || code=$?

has_finished() { # The exit code that ps 0 noted when the run was over, unless that was before this job.
  local written
  written=$(grep -os '"written":[0-9]*' /scratch/runs/digits/status.json) && ((${written##*:} >= began)) &&
    grep -qs '"exit_code":0[,}]' /scratch/runs/digits/status.json
}
requeue() {
  echo "$1 (exit code $code): requeueing job $SLURM_JOB_ID"
  scontrol requeue "$SLURM_JOB_ID"
}
requeue_unless_often() {
  if ((${SLURM_RESTART_COUNT:-0} < 20)); then
    requeue "$1"
  else
    echo "$1 (exit code $code): job $SLURM_JOB_ID has been restarted $SLURM_RESTART_COUNT times, giving up"
  fi
}
if ((code != 0)) && has_finished; then
  echo "the run has finished, although a task of it failed (exit code $code)"
elif ((code == 138 || code == 143)); then # Told to stop, with a checkpoint written: resume from it.
  if ((SECONDS >= 30)); then
    requeue "the tasks were told to stop"
  else # The tasks are told 120 s before the time limit. If the limit is not longer than that, they never make a step.
    requeue_unless_often "the tasks were told to stop as soon as they had started; is --time longer than 120 s?"
  fi
elif ((code == 5 || code > 128 && code != 130)); then
  # A task gave up waiting for another, or a signal ended one: resume from the last checkpoint, but not for ever.
  requeue_unless_often "a task was lost"
fi
exit "$code"
