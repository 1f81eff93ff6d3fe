//! The launcher while its tasks run: it shows their events, decides what happens to the run when a task ends, and ends
//! the remaining tasks when the run is over.

mod deadline;
mod ending;
mod last_status;

use std::collections::BTreeSet;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use windlass_core::cluster::{Job, TaskId};
use windlass_core::lifecycle::{NOT_SAVED, exit_code};
use windlass_server::CANNOT_CONTINUE;
use windlass_wire::client::UNUSED;
use windlass_worker::event::{Event, Stopped};

use super::child::{Child, Ended, Plan};
use super::inbox::{Inbox, Message};
use crate::failure::Failure;
use crate::output::count;
use crate::progress::Progress;
use crate::signals::{StopSignal, is_stop, unix_seconds};
use deadline::{DRAIN, Deadline, GRACE};
pub(super) use ending::Resumption;
use ending::describe;

/// How often the same notice is shown, if no other came in between. The log of ps 0 has each of them.
const SAME_NOTICE_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Launcher {
    plan: Plan,
    children: Vec<Child>,
    progress: Progress,
    /// The number of restarts left.
    restarts: u32,
    /// Whether a task was restarted.
    has_restarted: bool,
    /// The servers that hold no parameters.
    idle: BTreeSet<u32>,
    resumption: Resumption,
    /// Why the run ends early, if it does.
    cause: Option<Cause>,
    /// Tasks that were told to stop.
    stopped: Vec<Stopped>,
    /// Why the run could not be saved when it was told to stop.
    unsaved: Option<String>,
    /// The tasks that were given time to save the run.
    saving: BTreeSet<TaskId>,
    /// Why the last checkpoint is missing, should it be: the coordinator did not end in time.
    overdue_coordinator: Option<String>,
    /// The notice of ps 0 while it cannot open the checkpoints.
    stuck: Option<String>,
    /// The last notice that was shown, and when.
    notice: Option<(String, Instant)>,
    /// How long tasks have to end.
    deadline: Deadline,
    /// Tasks that were killed because they did not end in time.
    overdue: BTreeSet<TaskId>,
    /// Whether tasks were killed before the run could be saved.
    at_once: bool,
    summarised: bool,
    /// Whether every task that has ended for good had done its part.
    all_succeeded: bool,
}

/// Why a run ends early.
enum Cause {
    /// A task has failed.
    Failed(Failure),
    /// A task was killed.
    Died(Failure),
    /// The run was told to stop: the exit code for that, and the signal and time if it was the launcher that was told
    /// rather than a task.
    Stopped(u8, Option<(StopSignal, u64)>),
}

impl Cause {
    /// Whether the launcher was told to stop by a signal.
    fn is_signal(&self) -> bool {
        matches!(self, Self::Stopped(_, Some(_)))
    }
}

/// How the tasks are to end.
enum End {
    /// They are told to stop, and killed after this time.
    Within(Duration),
    /// They end by themselves, and are killed after this time.
    By(Duration),
    /// They are killed at once.
    AtOnce,
}

impl Launcher {
    pub(super) fn new(
        plan: Plan,
        children: Vec<Child>,
        progress: Progress,
        restarts: u32,
        resumption: Resumption,
    ) -> Self {
        Self {
            plan,
            children,
            progress,
            restarts,
            has_restarted: false,
            idle: BTreeSet::new(),
            resumption,
            cause: None,
            stopped: Vec::new(),
            unsaved: None,
            saving: BTreeSet::new(),
            overdue_coordinator: None,
            stuck: None,
            notice: None,
            deadline: Deadline::default(),
            overdue: BTreeSet::new(),
            at_once: false,
            summarised: false,
            all_succeeded: true,
        }
    }

    /// Runs until every task has ended.
    pub(super) fn run(mut self, messages: &Inbox) -> Result<(), Failure> {
        while self.children.iter().any(Child::is_running) {
            let message = match messages.next(self.deadline.at()) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    self.kill_overdue();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let end = self.handle(message);
            self.set_deadline(end, Instant::now());
        }
        // Events of the last task may still be in transit.
        while let Some(message) = messages.next_if_any() {
            self.handle(message);
        }
        self.progress.finish();
        if !self.has_begun() {
            self.plan.run_file.restore();
        }
        // A signal does not undo a run that had been completed and is saved.
        let is_complete = self.summarised && self.all_succeeded;
        let Some(cause) = self.cause.take().filter(|cause| !(cause.is_signal() && is_complete)) else {
            if !self.summarised {
                return Err(self.without_summary());
            }
            self.progress.say(&format!("logs and checkpoints are in {}", self.plan.run_dir.display()));
            return Ok(());
        };
        let (failure, word) = self.describe_end(cause);
        word.record(&self.plan.run_dir, self.resumption.began);
        Err(failure)
    }

    /// The failure to report when all tasks exited successfully without a summary: the chief was killed after the last
    /// step.
    fn without_summary(&self) -> Failure {
        if !self.has_restarted {
            return Failure::internal("the run ended without a summary");
        }
        Failure::internal("training has ended, but its chief was killed before it could write the summary")
            .with_hint(format!("the trained network is in {}", self.plan.run_dir.display()))
    }

    fn set_deadline(&mut self, end: Option<End>, now: Instant) {
        match end {
            Some(End::Within(grace)) if self.deadline.set(now + grace) => {
                self.children.iter().filter(|child| child.is_running()).for_each(Child::terminate);
            }
            Some(End::By(grace)) => {
                self.deadline.set(now + grace);
            }
            Some(End::AtOnce) => {
                self.at_once = true;
                self.deadline.shorten(now);
            }
            Some(End::Within(_)) | None => {}
        }
        if !self.coordinator_runs() {
            // The chief may still be writing the summary.
            let is_complete = self.cause.is_some() || self.summarised;
            self.deadline.shorten(now + if is_complete { GRACE } else { DRAIN });
        }
        if self.deadline.at().is_some() {
            self.plan.processes.are_ending();
        }
    }

    /// Kills the tasks that have not ended in time. If the run was told to stop, the tasks that write its last
    /// checkpoint are spared at first.
    fn kill_overdue(&mut self) {
        let may_save = self.deadline.pass(Instant::now(), self.children.first().is_some_and(Child::is_suspended));
        let running = self.children.iter().filter(|child| child.is_running());
        let (saving, overdue): (Vec<&Child>, Vec<&Child>) =
            running.partition(|child| may_save && self.may_hold(child.task));
        overdue.iter().for_each(|child| child.kill());
        let (saving, overdue) = (tasks(saving), tasks(overdue));
        if !self.at_once && !overdue.is_subset(&self.overdue) {
            warn!("killed {}, which did not end in time", self.named(&overdue));
        }
        if !saving.is_subset(&self.saving) {
            warn!("waiting for {} to save the run; a second signal stops at once", self.named(&saving));
        }
        if !may_save && self.coordinator_runs() {
            self.overdue_coordinator = Some(format!("{NOT_SAVED}: {} did not end in time", self.children[0].name));
        }
        self.saving.extend(saving);
        self.overdue.extend(overdue);
    }

    fn named(&self, tasks: &BTreeSet<TaskId>) -> String {
        tasks.iter().map(|task| self.plan.name(*task)).collect::<Vec<_>>().join(", ")
    }

    /// Whether the coordinator is running: ps 0, or worker 0 if the workers hold the parameters. Without it the run is
    /// over.
    fn coordinator_runs(&self) -> bool {
        self.children.first().is_some_and(Child::is_running)
    }

    /// Handles a message. Returns how to end the run, if it is to end.
    fn handle(&mut self, message: Message) -> Option<End> {
        match message {
            Message::Event(event) => {
                // Every task reports that the run had already ended.
                let is_repeated = self.summarised && matches!(event, Event::AlreadyFinished { .. });
                self.summarised |= matches!(event, Event::Summary(_) | Event::AlreadyFinished { .. });
                if let Event::Stopped(stopped) = &event {
                    self.stopped.push(stopped.clone());
                }
                if let Event::Started(started) = &event {
                    let unused = (0..).zip(&started.transports).filter(|(_, transport)| *transport == UNUSED);
                    let idle = unused.map(|(server, _)| server).collect();
                    if self.idle != idle {
                        mention_idle(&idle);
                    }
                    self.idle = idle;
                }
                if let Event::Started(_) | Event::Step(_) | Event::Progress(_) = &event {
                    self.stuck = None;
                }
                if let Event::Notice { text } = &event {
                    self.stuck = self.stuck.take().or_else(|| text.starts_with(CANNOT_CONTINUE).then(|| text.clone()));
                    let is_due = |(shown, at): &(String, Instant)| shown != text || at.elapsed() >= SAME_NOTICE_EVERY;
                    if self.notice.as_ref().is_none_or(is_due) {
                        warn!("{text}");
                        self.notice = Some((text.clone(), Instant::now()));
                    }
                } else if !is_repeated {
                    self.progress.show(&event);
                }
                None
            }
            Message::Remark(text) => {
                info!("{text}");
                None
            }
            Message::Ended(task, ended) => self.task_ended(task, ended),
            Message::Signal(signal) => Some(self.signalled(signal)),
            Message::SignalAgain => Some(End::AtOnce),
        }
    }

    /// Tasks that were running have already been told to stop when the signal arrived.
    fn signalled(&mut self, signal: StopSignal) -> End {
        self.progress.stopping();
        self.progress.say(&format!("stopping on {}; a second signal stops at once", signal.name()));
        let stuck = self.stuck.take();
        self.unsaved = self.unsaved.take().or_else(|| stuck.map(|why| format!("{NOT_SAVED}: {why}")));
        self.cause.get_or_insert(Cause::Stopped(signal.exit_code(), Some((signal, unix_seconds()))));
        self.deadline.let_save(Instant::now());
        End::Within(DRAIN)
    }

    fn task_ended(&mut self, task: TaskId, ended: Ended) -> Option<End> {
        let position = self.children.iter().position(|child| child.task == task)?;
        self.children[position].ended();
        self.note_stop(task, ended);
        // A task that outlives a successful run has nothing left to contribute.
        let is_late = position > 0 && self.summarised && !self.coordinator_runs();
        if self.cause.is_none() && (self.overdue.contains(&task) || (is_late && matches!(ended, Ended::Killed(_)))) {
            return None;
        }
        if self.cause.is_none() && self.start_again(position, ended) {
            return None;
        }
        self.all_succeeded &= match ended {
            Ended::Exited(0) => true,
            // With the summary, a worker has nothing left to do but to wait for the coordinator.
            Ended::Exited(code) => is_stop(code) && position > 0 && self.summarised,
            Ended::Killed(_) => false,
        };
        match ended {
            Ended::Exited(0) => None,
            _ if self.cause.is_some() => {
                self.unsaved = self.unsaved.take().or_else(|| self.why_not_saved(position, ended));
                Some(End::Within(GRACE))
            }
            Ended::Exited(_) if self.signal_of(task).is_some() && self.why_not_saved(position, ended).is_some() => {
                self.unsaved = self.why_not_saved(position, ended);
                self.cause = Some(Cause::Stopped(exit_code::CHECKPOINT, None));
                Some(End::By(GRACE))
            }
            Ended::Killed(signal) if self.goes_on_without(task) => {
                self.leave_out(task, &format!("was killed by signal {signal}"));
                None
            }
            Ended::Exited(code) if is_stop(code) => match self.signal_of(task) {
                Some(signal) if self.goes_on_without(task) => {
                    self.leave_out(task, &format!("was told to stop by {signal}"));
                    None
                }
                _ => {
                    self.cause = Some(Cause::Stopped(code as u8, None));
                    // The coordinator ends the run, and the last checkpoint may have to be written; but a run that has
                    // not begun would wait for the missing task.
                    Some(if self.has_begun() { self.end_and_save(task) } else { End::Within(GRACE) })
                }
            },
            ended => {
                let failure = self.describe_failure(&self.children[position], ended);
                let is_killed = matches!(ended, Ended::Killed(_));
                self.cause = Some(if is_killed { Cause::Died(failure) } else { Cause::Failed(failure) });
                let is_whole = is_killed && !self.may_hold(task) && self.has_begun();
                Some(if is_whole { self.end_and_save(task) } else { End::Within(GRACE) })
            }
        }
    }

    /// Records that a joined worker was told to stop, since it does not report that itself.
    fn note_stop(&mut self, task: TaskId, ended: Ended) {
        let Ended::Exited(code) = ended else { return };
        if let Some(signal) = StopSignal::of_exit_code(code).filter(|_| self.plan.is_joined(task)) {
            let (task, signal) = (task.to_string(), signal.name().to_owned());
            self.stopped.push(Stopped { time: unix_seconds(), task, signal });
        }
    }

    /// Ends a run that has lost a task, but none of its parameters. If a worker is left, the coordinator ends the run.
    /// Otherwise it would wait for workers that nobody restarts, as a client would wait for its joined workers.
    fn end_and_save(&mut self, lost: TaskId) -> End {
        self.deadline.let_save(Instant::now());
        match self.has_worker() {
            true if self.plan.is_joined(lost) => {
                warn!("the run cannot go on without {lost}; the client saves the run and stops");
            }
            true => return End::By(DRAIN),
            false if self.coordinator_runs() => {
                let gone = if self.plan.is_client(lost) { "the client is gone" } else { "no worker is left" };
                warn!("{gone}; the ps save the run and stop");
            }
            false => {}
        }
        End::Within(DRAIN)
    }

    /// Whether a worker is running that takes part in the run by itself, unlike joined ones.
    fn has_worker(&self) -> bool {
        let takes_part = |task: TaskId| task.job == Job::Worker && !self.plan.is_joined(task);
        self.children.iter().any(|child| child.is_running() && takes_part(child.task))
    }

    /// Whether training continues without a task, as it would on several machines. It does not continue without a task
    /// that may hold parameters, and no run begins before all of its tasks are there.
    fn goes_on_without(&self, task: TaskId) -> bool {
        // Without its client, an in-graph run has neither data nor training loop.
        let is_whole = !self.plan.is_client(task) && !self.may_hold(task);
        is_whole && self.coordinator_runs() && self.is_computed_without(task) && self.has_begun()
    }

    /// Whether the remaining tasks can compute steps, or joined workers have nothing left to compute.
    fn is_computed_without(&self, task: TaskId) -> bool {
        if self.plan.client.is_none() {
            return self.has_worker();
        }
        let joined_runs = self.children.iter().any(|child| child.is_running() && self.plan.is_joined(child.task));
        self.summarised || (joined_runs && !self.plan.needed.contains(&task))
    }

    /// Whether a task holds parameters, or may hold some.
    fn may_hold(&self, task: TaskId) -> bool {
        let colocated = self.children.iter().all(|child| child.task.job == Job::Worker);
        if self.plan.client.is_some() && task.job == Job::Worker {
            return colocated && self.plan.is_client(task);
        }
        (task.job == Job::Ps || colocated) && !self.idle.contains(&task.index)
    }

    fn has_begun(&self) -> bool {
        self.progress.extent().with(|extent| extent.has_begun())
    }

    fn leave_out(&mut self, task: TaskId, why: &str) {
        warn!("{task} {why}; the others continue");
        self.stopped.retain(|stopped| stopped.task != task.to_string());
        if task.job == Job::Worker && self.plan.client.is_none() {
            self.progress.left(task.index, why);
        }
    }

    /// The signal by which a user or another program told a task to stop.
    fn signal_of(&self, task: TaskId) -> Option<&str> {
        let name = self.plan.name(task);
        self.stopped.iter().find(|stopped| stopped.task == name).map(|stopped| &*stopped.signal)
    }

    /// Restarts a task that was killed or crashed, if restarts are left. A task that ended for a reason inherent in the
    /// run would only fail again.
    fn start_again(&mut self, position: usize, ended: Ended) -> bool {
        let came_to_harm = match ended {
            Ended::Killed(_) => true,
            Ended::Exited(code) => !matches!(code, 0 | 2..=5) && !is_stop(code),
        };
        if !came_to_harm || self.restarts == 0 {
            return false;
        }
        self.restarts -= 1;
        self.has_restarted = true;
        let child = &mut self.children[position];
        match self.plan.start_again(child) {
            Ok(()) => {
                let left = count(self.restarts as usize, "restart");
                warn!("{} {}; restarted it ({left} left)", child.name, describe(ended));
                true
            }
            Err(error) => {
                warn!("cannot restart {}: {error}", child.name);
                false
            }
        }
    }
}

/// Names the servers that hold no parameters.
fn mention_idle(idle: &BTreeSet<u32>) {
    let names: Vec<String> = idle.iter().map(|server| TaskId::ps(*server).to_string()).collect();
    if !names.is_empty() {
        info!("no parameters are on {}: the model is too small for it (see --min-shard-bytes)", names.join(", "));
    }
}

fn tasks(children: Vec<&Child>) -> BTreeSet<TaskId> {
    children.into_iter().map(|child| child.task).collect()
}

impl Drop for Launcher {
    /// No task outlives the launcher, however it ends. (If the launcher is killed, the kernel ends its tasks; see
    /// `child`.)
    fn drop(&mut self) {
        self.children.iter().filter(|child| child.is_running()).for_each(Child::kill);
    }
}
