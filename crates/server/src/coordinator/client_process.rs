//! The client of joined workers as one process: to the servers it may be several workers, which come and go together.
//! Determines which events to announce to users, and nothing else.

use std::collections::BTreeMap;

use windlass_core::cluster::WorkerId;

/// The client's current or most recent process.
#[derive(Debug, Default)]
pub(super) struct ClientProcess {
    /// The number of client processes so far.
    number: u64,
    /// True while the client is present.
    is_here: bool,
    /// The client's workers, each with the number of the process that joined as it.
    workers: BTreeMap<WorkerId, u64>,
    /// The steps of those workers that have finished.
    finished: BTreeMap<WorkerId, u64>,
}

impl ClientProcess {
    /// Notes that the client joined as this worker. True if that is news.
    pub(super) fn joined(&mut self, worker: WorkerId) -> bool {
        // The client may be replaced before it is declared dead.
        self.is_here &= self.workers.get(&worker) != Some(&self.number);
        let is_news = !std::mem::replace(&mut self.is_here, true);
        self.number += u64::from(is_news);
        self.workers.insert(worker, self.number);
        self.finished.remove(&worker);
        is_news
    }

    /// Notes that the client is gone as this worker. True if that is news.
    pub(super) fn left(&mut self, worker: WorkerId) -> bool {
        self.finished.remove(&worker);
        // A worker of an earlier process may be declared dead after the next process has joined.
        let is_of_now = self.workers.remove(&worker) == Some(self.number);
        is_of_now && std::mem::replace(&mut self.is_here, false)
    }

    /// Notes that the client finished as this worker. Once it has finished as all of them, returns the sum of their
    /// steps.
    pub(super) fn finished(&mut self, worker: WorkerId, steps: u64) -> Option<u64> {
        self.finished.insert(worker, steps);
        let has_finished = self.workers.keys().all(|worker| self.finished.contains_key(worker));
        has_finished.then(|| self.finished.values().fold(0, |sum: u64, steps| sum.saturating_add(*steps)))
    }

    /// Handles a rollback, after which the client will rejoin.
    pub(super) fn is_to_rejoin(&mut self) {
        self.is_here = false;
        self.workers.clear();
        self.finished.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use windlass_core::cluster::{Job, RunLayout, TaskId};
    use windlass_core::ledger::Incarnation;
    use windlass_core::lifecycle::Decision;
    use windlass_core::membership::Patience;
    use windlass_wire::PROTOCOL;
    use windlass_wire::control::proto::task_message::Kind;
    use windlass_wire::control::proto::{Heartbeat, Hello, JoinedSite, Site, TaskMessage, Usage, WorkerReport};

    use super::*;
    use crate::coordinator::interface::{CoordinatorConfig, Event};
    use crate::coordinator::machine::Coordinator;
    use crate::fixtures::{self, NoShard};

    /// A coordinator that waits for its ps and for a client which is two workers to servers.
    fn coordinator() -> Coordinator<NoShard> {
        let config = CoordinatorConfig {
            servers: 1,
            workers: Some(2),
            layout: RunLayout::Client { holds_parameters: false },
            patience: Patience::new(Duration::from_secs(10)),
            peer_timeout: Duration::from_secs(60),
            memory: None,
            before: Incarnation(0),
        };
        Coordinator::new(config, NoShard, None)
    }

    /// Makes the client join as this worker, from the process of this number.
    fn join(machine: &mut Coordinator<NoShard>, worker: u32, process: u64) {
        let session = 10 * process + u64::from(worker);
        let run = serde_json::to_string(&fixtures::run(Vec::new())).unwrap();
        let hello = Hello { protocol: PROTOCOL, job: "worker".into(), index: worker, process, run, ..Hello::default() };
        machine.handle(Event::Opened(session), Duration::ZERO);
        let message = TaskMessage { kind: Some(Kind::Hello(hello)), ..TaskMessage::default() };
        machine.handle(Event::Message(session, message), Duration::ZERO);
    }

    fn incarnation(machine: &Coordinator<NoShard>, worker: u32) -> Incarnation {
        machine.lifecycle.incarnation(TaskId::worker(worker)).unwrap()
    }

    #[test]
    fn a_client_that_is_two_workers_to_servers_comes_finishes_and_goes_once() {
        let mut machine = coordinator();
        [0, 1].into_iter().for_each(|worker| join(&mut machine, worker, 1));
        for (worker, steps) in [(0, 300), (1, 200)] {
            let incarnation = incarnation(&machine, worker);
            let report = WorkerReport { worker, steps, incarnation: incarnation.0, ..WorkerReport::default() };
            machine.message(TaskId::worker(worker), incarnation, Kind::Finished(report));
        }
        for worker in [0, 1] {
            let left = Decision::Left(WorkerId(worker), incarnation(&machine, worker), "no sign of life".into());
            machine.carry_out(vec![left]);
        }
        let events: Vec<&str> = machine.history.events.iter().map(|event| event.text.as_str()).collect();
        assert_eq!(
            events,
            ["the client joined", "the client finished after 500 steps", "the client is gone: no sign of life"]
        );
        let processes = &machine.history.processes;
        assert_eq!((processes[&TaskId::worker(0)], processes[&TaskId::worker(1)]), (1, 1));
    }

    #[test]
    fn of_what_a_client_tells_of_its_workers_there_is_a_limit_to_what_is_kept() {
        let mut machine = coordinator();
        let name = "é".repeat(1000);
        let site = |index| {
            let usage = Some(Usage { node: name.clone(), ..Usage::default() });
            let stages = vec![name.clone(); 100];
            let joined = JoinedSite { index, address: name.clone(), stages, usage, ..JoinedSite::default() };
            Site { name: name.clone(), replicas: 1, reachable: true, joined: Some(joined) }
        };
        for worker in [0, 1] {
            join(&mut machine, worker, 1);
            let sites = (0..1500).map(|index| site(1500 * worker + index)).collect();
            let heartbeat = Heartbeat { sites, ..Heartbeat::default() };
            let incarnation = incarnation(&machine, worker);
            machine.message(TaskId::worker(worker), incarnation, Kind::Heartbeat(heartbeat));
        }
        let observed = machine.observe().with_client(&[]);
        let workers: Vec<_> = observed.tasks.iter().filter(|observed| observed.task.job == Job::Worker).collect();
        assert_eq!(workers.len(), 1024);
        let site = &workers[0].heartbeat.sites[0];
        let joined = site.joined.as_ref().unwrap();
        assert_eq!((site.name.len(), joined.address.len(), joined.stages.len()), (200, 200, 64));
        assert_eq!((joined.stages[0].len(), joined.usage.as_ref().unwrap().node.len()), (200, 200));
    }

    #[test]
    fn a_process_that_takes_the_place_of_another_is_news_and_what_is_left_of_that_is_not() {
        let (mut client, [first, second]) = (ClientProcess::default(), [WorkerId(0), WorkerId(1)]);
        assert_eq!([client.joined(first), client.joined(second)], [true, false]);
        assert!(client.joined(first), "the earlier one was not found dead");
        assert!(!client.left(second), "the next one is there");
        assert_eq!([client.joined(second), client.left(first)], [false, true]);
    }

    #[test]
    fn what_is_left_of_an_earlier_process_is_no_news_of_the_next() {
        let (mut client, [first, second]) = (ClientProcess::default(), [WorkerId(0), WorkerId(1)]);
        assert_eq!([client.joined(first), client.joined(second)], [true, false]);
        assert!(client.left(first));
        assert!(client.joined(first));
        assert_eq!([client.left(second), client.joined(second)], [false, false]);
        assert_eq!([client.left(second), client.left(first)], [true, false]);
    }

    #[test]
    fn a_client_rejoins_after_a_rollback_and_has_not_finished_any_more() {
        let (mut client, [first, second]) = (ClientProcess::default(), [WorkerId(0), WorkerId(1)]);
        assert_eq!([client.joined(first), client.joined(second)], [true, false]);
        assert_eq!((client.finished(first, 3), client.finished(second, 4)), (None, Some(7)));
        client.is_to_rejoin();
        assert_eq!([client.joined(second), client.joined(first)], [true, false]);
        assert_eq!((client.finished(second, 4), client.finished(first, 4)), (None, Some(8)));
    }
}
