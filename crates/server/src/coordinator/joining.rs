//! How tasks join: whether a task that says hello is admitted, and what the other tasks are told about it.

use std::sync::Arc;

use tracing::{info, warn};
use windlass_core::cluster::{Job, TaskId, WorkerId};
use windlass_core::lifecycle::{Decision, JoinError, Outcome, Phase, exit_code};
use windlass_core::run::RunSpec;
use windlass_wire::PROTOCOL;
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{Busy, Hello, Over, Waiting};

use super::interface::{OwnShard, SessionId};
use super::machine::Coordinator;
use super::observation::RunFacts;
use crate::NOTICE;

/// Why a task is not admitted.
enum Refusal {
    /// It should ask again later.
    ForNow(String),
    /// The task should exit.
    ForGood(Outcome),
}

impl<S: OwnShard> Coordinator<S> {
    /// Admits a task, or tells it why not.
    pub(super) fn hello(&mut self, id: SessionId, hello: &Hello, heard: u64) {
        match self.admit(id, hello, heard) {
            Ok(()) => {}
            Err(Refusal::ForNow(reason)) => {
                if matches!(self.lifecycle.phase(), Phase::Saving(_)) {
                    self.untold.put_off(hello);
                }
                self.members.dismiss(id, Kind::Busy(Busy { reason }));
            }
            Err(Refusal::ForGood(outcome)) => {
                if !outcome.reason.is_empty() {
                    let task = format!("{} {}", hello.job, hello.index);
                    let task = TaskId::named(&task).map_or(task, |task| self.lifecycle.named(task).to_string());
                    warn!("refused {task}: {}", outcome.reason);
                    // The tasks that wait for it are told with the next list of awaited tasks.
                    if self.lifecycle.awaited().iter().any(|it| self.lifecycle.named(*it).to_string() == task) {
                        self.refused.insert(task, outcome.reason.clone());
                    }
                }
                let over = Over { exit_code: u32::from(outcome.exit_code), reason: outcome.reason };
                self.members.dismiss(id, Kind::Over(over));
                self.untold.dismissed(id, hello);
            }
        }
    }

    fn admit(&mut self, id: SessionId, hello: &Hello, heard: u64) -> Result<(), Refusal> {
        let refuse = |reason: String| Refusal::ForGood(Outcome { exit_code: exit_code::USAGE, reason });
        if hello.protocol != PROTOCOL {
            return Err(refuse(format!(
                "ps 0 speaks protocol {PROTOCOL}, this task speaks {}: run the same version everywhere",
                hello.protocol
            )));
        }
        let job: Job = hello.job.parse().map_err(|_| refuse(format!("unknown job {:?}", hello.job)))?;
        let task = TaskId { job, index: hello.index };
        let run = if job == Job::Worker { Some(self.agreed_run(task, &hello.run).map_err(refuse)?) } else { None };
        if let Some(shortage) = run.as_ref().and_then(|run| self.shortage(run)) {
            return Err(refuse(shortage));
        }
        let earlier = self.members.earlier(task, hello.process);
        let was_here = self.lifecycle.incarnation(task).is_some();
        let joined = self.lifecycle.join(task, earlier, self.now);
        let (incarnation, mut decisions) = joined.map_err(|error| match error {
            JoinError::Over(outcome) => Refusal::ForGood(outcome),
            JoinError::Contested(_) | JoinError::Scoring | JoinError::Saving => Refusal::ForNow(error.to_string()),
            error => refuse(error.to_string()),
        })?;
        if hello.begun {
            decisions.extend(self.lifecycle.begun_before());
            // Once a run is prepared, ps 0 knows the step itself.
            if self.prepare.number == 0 {
                self.seen_step = self.seen_step.max(hello.global_step);
            }
        }
        if let Some(endpoint) = hello.endpoint.clone().filter(|_| job == Job::Ps) {
            self.endpoints.insert(task.index, endpoint);
            self.memory.extend(hello.memory.map(|memory| (task.index, memory)));
        }
        let name = self.lifecycle.named(task);
        self.refused.remove(&name.to_string());
        self.untold.let_in(hello);
        if let Some(run) = run {
            decisions.extend(self.take_run(task, run, hello));
        }
        let is_new = earlier != Some(incarnation);
        let is_announced = is_new && (name != TaskId::CLIENT || self.client.joined(WorkerId(task.index)));
        match (is_new, self.lifecycle.phase()) {
            (false, _) => info!("{name} reconnected"),
            (true, _) if !is_announced => {}
            (true, Phase::Training) if was_here => info!(target: NOTICE, "{name} is back"),
            (true, Phase::Training) => info!(target: NOTICE, "{name} joined during training"),
            (true, _) => info!("{name} joined"),
        }
        if is_new {
            self.history.joined(self.now, task, hello.process, is_announced.then_some(name));
        }
        self.members.welcome(id, task, hello, incarnation, heard);
        if *self.lifecycle.phase() == Phase::Gathering {
            self.members.mention(&Kind::Waiting(self.waiting()));
        }
        self.carry_out(decisions);
        Ok(())
    }

    /// Adopts the run that a worker brings, which agrees with that of the others.
    fn take_run(&mut self, task: TaskId, run: RunSpec, hello: &Hello) -> Vec<Decision> {
        self.mention_difference(task, &run);
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.keep_files(&run, &hello.files);
        }
        let decisions = self.lifecycle.set_active_servers(&self.active_servers(&run));
        self.facts = Some(Arc::new(RunFacts::new(&run, self.config.servers)));
        self.run = Some((hello.run.clone(), run));
        self.note_if_more_is_wanted();
        self.positions.set_pass(WorkerId(task.index), hello.batches);
        decisions
    }

    /// Checks a worker's run: the first worker brings it, and the others must have the same.
    fn agreed_run(&self, task: TaskId, text: &str) -> Result<RunSpec, String> {
        let theirs: RunSpec = serde_json::from_str(text).map_err(|error| format!("{task} sent no run: {error}"))?;
        let alone = self.lifecycle.present_workers().iter().all(|worker| TaskId::from(*worker) == task);
        let first = self.prepare.number == 0 && alone;
        match &self.run {
            Some((_, run)) if !first => match theirs.first_difference(run) {
                Some(difference) => Err(difference.describe(&task.to_string(), "the other workers")),
                None => Ok(theirs),
            },
            _ => Ok(theirs),
        }
    }

    /// Tells all tasks of a permitted difference between a worker and the others.
    fn mention_difference(&mut self, task: TaskId, run: &RunSpec) {
        let others = self.lifecycle.present_workers().iter().any(|worker| TaskId::from(*worker) != task);
        let agreed = self.run.as_ref().filter(|_| others);
        if let Some(difference) = agreed.and_then(|(_, agreed)| run.tolerated_difference(agreed)) {
            let notice = difference.describe(&task.to_string(), "the other workers");
            warn!("{notice}");
            self.members.mention(&Kind::Waiting(Waiting { tasks: Vec::new(), notices: vec![notice] }));
        }
    }
}
