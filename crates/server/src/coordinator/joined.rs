//! The tasks of a run with a client, as users know them: the client, which may be several workers to the servers, and
//! its joined workers, which only the client reports. This is for observers only; nothing is decided by it.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::cluster::{Job, TaskId};
use windlass_core::membership::Presence;
use windlass_wire::control::proto::{Heartbeat, JoinedSite, Site, Usage, WorkerTotals};

use super::observation::TaskObservation;

/// Limits on what a task may report: devices and joined workers, stages and GPUs of each, and the bytes of a name.
const MOST_SITES: usize = 1024;
const MOST_PARTS: usize = 64;
const LONGEST_NAME: usize = 200;
/// A client is shown as waiting once it has waited this many seconds for a worker.
const WAITS: f64 = 1.0;

/// Truncates a task's report of where its steps are computed to these limits.
pub(super) fn bound(sites: &mut Vec<Site>) {
    let shorten = |name: &mut String| name.truncate(name.floor_char_boundary(LONGEST_NAME));
    sites.truncate(MOST_SITES);
    for Site { name, joined, .. } in sites {
        shorten(name);
        let Some(JoinedSite { address, stages, usage, .. }) = joined else { continue };
        shorten(address);
        stages.truncate(MOST_PARTS);
        stages.iter_mut().for_each(shorten);
        if let Some(Usage { node, gpus, .. }) = usage {
            shorten(node);
            gpus.truncate(MOST_PARTS);
            gpus.iter_mut().for_each(|gpu| shorten(&mut gpu.name));
        }
    }
}

/// Returns the same tasks under the names that users know: servers, the client, and its joined workers. `here` lists
/// the joined workers of a client in this process, until its first heartbeat reports them.
pub(super) fn as_known(tasks: Vec<TaskObservation>, mut here: &[Site], at: Duration) -> Vec<TaskObservation> {
    let (clients, mut known): (Vec<_>, Vec<_>) =
        tasks.into_iter().partition(|observed| observed.task.job == Job::Worker);
    let mut client = client(&clients);
    if clients.iter().any(|client| !client.heartbeat.sites.is_empty()) {
        here = &[];
    }
    if client.heard.is_none() && !here.is_empty() {
        // The client is this process, and waits for its workers.
        (client.presence, client.heard) = (Some(Presence::Present), Some(at));
    }
    let told = clients.iter().flat_map(|client| &client.heartbeat.sites).chain(here);
    let mut joined: BTreeMap<u32, (&Site, &JoinedSite)> =
        told.filter_map(|site| site.joined.as_ref().map(|joined| (joined.index, (site, joined)))).collect();
    while joined.len() > MOST_SITES {
        joined.pop_last();
    }
    let awaited = joined.values().filter(|(_, joined)| joined.awaited >= WAITS);
    let awaited: Vec<String> = awaited.map(|(_, joined)| TaskId::worker(joined.index).to_string()).collect();
    // The client's own other workers are the client itself.
    client.heartbeat.awaited.retain(|name| TaskId::named(name).is_some_and(|task| task.job == Job::Ps));
    client.heartbeat.awaited.extend(awaited);
    let workers: Vec<_> = joined.values().map(|(site, joined)| worker(site, joined, &client)).collect();
    known.push(client);
    known.extend(workers);
    known
}

/// All workers of the client's process as one.
fn client(clients: &[TaskObservation]) -> TaskObservation {
    let chief = clients.iter().find(|client| client.task == TaskId::CHIEF).or(clients.first());
    let heartbeat = chief.map(|chief| chief.heartbeat.clone()).unwrap_or_default();
    let present = clients.iter().find(|client| client.presence == Some(Presence::Present));
    let totals = clients.iter().filter_map(|client| client.heartbeat.totals.as_deref());
    // After ps 0 is replaced, workers rejoin one by one. A sum of only some would jump by the whole past of the next.
    let is_counted = |client: &TaskObservation| {
        client.heartbeat.totals.is_some() || matches!(client.presence, Some(Presence::Dead | Presence::Finished))
    };
    let has_totals = clients.iter().all(is_counted) && clients.iter().any(|client| client.heartbeat.totals.is_some());
    TaskObservation {
        task: TaskId::CLIENT,
        presence: present.or(chief).and_then(|client| client.presence),
        heard: clients.iter().filter_map(|client| client.heard).max(),
        awaited_since: clients.iter().filter_map(|client| client.awaited_since).min(),
        heartbeat: Heartbeat {
            global_step: clients.iter().map(|client| client.heartbeat.global_step).max().unwrap_or_default(),
            local_step: clients.iter().fold(0, |sum, client| client.heartbeat.local_step.saturating_add(sum)),
            totals: has_totals.then(|| Box::new(totals.fold(WorkerTotals::default(), sum))),
            awaited: clients.iter().flat_map(|client| client.heartbeat.awaited.clone()).collect(),
            scoring: clients.iter().any(|client| client.heartbeat.scoring),
            sites: Vec::new(),
            ..heartbeat
        },
    }
}

/// Describes a joined worker as its client last reported it. While the client is silent, so are its workers; once the
/// client is gone, nothing is known of them.
fn worker(site: &Site, joined: &JoinedSite, client: &TaskObservation) -> TaskObservation {
    let presence = match (client.presence, site.reachable) {
        (None | Some(Presence::Dead), _) => None,
        _ if !joined.has_joined => None,
        (Some(Presence::Present | Presence::Finished), false) => Some(Presence::Dead),
        // When the client has finished, so have its workers.
        (as_client, true) => as_client,
    };
    let silent = Duration::try_from_secs_f64(joined.silent).unwrap_or_default();
    let network = (joined.asked - joined.computed).max(0.0);
    let totals = WorkerTotals {
        steps: joined.steps,
        samples: joined.samples,
        compute_seconds: joined.computed,
        wait_seconds: (joined.present - joined.computed).max(0.0),
        // When it was not asked for anything, it waited for the client or for other workers.
        held_back_seconds: (joined.present - joined.computed - network).max(0.0),
        bytes_sent: joined.received,
        bytes_received: joined.sent,
        ..WorkerTotals::default()
    };
    TaskObservation {
        task: TaskId::worker(joined.index),
        presence,
        heard: client.heard.filter(|_| presence.is_some()).map(|heard| heard.saturating_sub(silent)),
        awaited_since: None,
        heartbeat: Heartbeat {
            local_step: joined.steps,
            totals: Some(Box::new(totals)),
            usage: joined.usage.clone().filter(|_| presence.is_some()).map(Box::new),
            sites: vec![site.clone()],
            ..Heartbeat::default()
        },
    }
}

fn sum(one: WorkerTotals, other: &WorkerTotals) -> WorkerTotals {
    WorkerTotals {
        steps: one.steps.saturating_add(other.steps),
        samples: one.samples.saturating_add(other.samples),
        compute_seconds: one.compute_seconds + other.compute_seconds,
        wait_seconds: one.wait_seconds + other.wait_seconds,
        data_seconds: one.data_seconds + other.data_seconds,
        bytes_sent: one.bytes_sent.saturating_add(other.bytes_sent),
        bytes_received: one.bytes_received.saturating_add(other.bytes_received),
        held_back_seconds: one.held_back_seconds + other.held_back_seconds,
        staleness: one.staleness.saturating_add(other.staleness),
        dropped: one.dropped.saturating_add(other.dropped),
        loss: one.loss + other.loss,
        scoring_seconds: one.scoring_seconds + other.scoring_seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn observed(task: TaskId, heartbeat: Heartbeat) -> TaskObservation {
        let presence = Some(Presence::Present);
        TaskObservation { task, presence, heard: Some(Duration::from_secs(99)), awaited_since: None, heartbeat }
    }

    fn site(index: u32, awaited: f64, reachable: bool) -> Site {
        let joined = JoinedSite {
            index,
            awaited,
            has_joined: true,
            silent: 2.0,
            steps: 7,
            samples: 70,
            present: 60.0,
            asked: 20.0,
            computed: 15.0,
            ..JoinedSite::default()
        };
        Site { name: format!("worker {index} at b:1"), replicas: 1, reachable, joined: Some(joined) }
    }

    fn client_of(sites: Vec<Site>, steps: u64) -> Heartbeat {
        let totals = Some(Box::new(WorkerTotals { steps, loss: steps as f64, ..WorkerTotals::default() }));
        Heartbeat { local_step: steps, totals, sites, ..Heartbeat::default() }
    }

    #[test]
    fn the_client_is_one_task_and_its_workers_are_the_workers() {
        let mut second = client_of(vec![site(1, 30.0, false)], 4);
        second.awaited = vec!["ps 0".to_owned(), "worker 0".to_owned()];
        let tasks = vec![
            observed(TaskId::ps(0), Heartbeat::default()),
            observed(TaskId::worker(0), client_of(vec![site(0, 0.2, true)], 3)),
            observed(TaskId::worker(1), second),
        ];
        let known = as_known(tasks, &[], NOW);
        let tasks: Vec<TaskId> = known.iter().map(|observed| observed.task).collect();
        assert_eq!(tasks, [TaskId::ps(0), TaskId::CLIENT, TaskId::worker(0), TaskId::worker(1)]);
        let client = &known[1].heartbeat;
        assert_eq!((client.local_step, client.totals.as_ref().unwrap().loss), (7, 7.0));
        assert_eq!(client.awaited, ["ps 0", "worker 1"], "its own workers are itself, and an instant is no wait");
        let presence: Vec<_> = known[2..].iter().map(|worker| worker.presence).collect();
        assert_eq!(presence, [Some(Presence::Present), Some(Presence::Dead)]);
        let heard = Some(Duration::from_secs(97));
        assert_eq!(known[2].heard, heard, "it had been silent for two seconds when its client spoke a second ago");
        let totals = known[2].heartbeat.totals.as_deref().unwrap();
        assert_eq!((totals.steps, totals.samples, totals.compute_seconds), (7, 70, 15.0));
        assert_eq!((totals.wait_seconds, totals.held_back_seconds), (45.0, 40.0), "of that, 5 s went into the network");
    }

    #[test]
    fn what_a_client_has_done_is_known_once_all_that_it_is_to_servers_have_told() {
        let silent = |presence| TaskObservation { presence, ..observed(TaskId::worker(1), Heartbeat::default()) };
        let steps = |second| {
            let known = as_known(vec![observed(TaskId::worker(0), client_of(Vec::new(), 3)), second], &[], NOW);
            known[0].heartbeat.totals.as_ref().map(|totals| totals.steps)
        };
        assert_eq!(steps(observed(TaskId::worker(1), client_of(Vec::new(), 4))), Some(7));
        assert_eq!(steps(silent(Some(Presence::Present))), None);
        assert_eq!(steps(silent(None)), None, "it has not come yet");
        assert_eq!(steps(silent(Some(Presence::Dead))), Some(3), "it never will");
    }

    #[test]
    fn the_workers_of_a_client_that_is_gone_are_not_there_and_those_of_one_that_has_finished_have_finished() {
        let with_usage = || {
            let mut site = site(0, -1.0, true);
            site.joined.as_mut().unwrap().usage = Some(Usage { cpus: 1.5, ..Usage::default() });
            site
        };
        let worker = |presence| {
            let sites = client_of(vec![with_usage(), site(1, -1.0, false)], 3);
            let client = TaskObservation { presence, ..observed(TaskId::worker(0), sites) };
            let known = as_known(vec![client], &[], NOW);
            let is_used = known[1].heartbeat.usage.is_some();
            (known[1].presence, known[1].heard.is_some(), is_used, known[2].presence)
        };
        let (present, finished, dead) = (Presence::Present, Presence::Finished, Presence::Dead);
        assert_eq!(worker(Some(present)), (Some(present), true, true, Some(dead)));
        assert_eq!(worker(Some(finished)), (Some(finished), true, true, Some(dead)));
        assert_eq!(worker(Some(dead)), (None, false, false, None));
        assert_eq!(worker(None), (None, false, false, None));
    }

    #[test]
    fn before_the_client_has_come_its_process_tells_of_those_that_are_missing() {
        let mut missing = site(0, 12.0, false);
        missing.joined.as_mut().unwrap().has_joined = false;
        let here = [missing, site(1, -1.0, true)];
        let absent =
            TaskObservation { presence: None, heard: None, ..observed(TaskId::worker(0), Heartbeat::default()) };
        let known = as_known(vec![absent], &here, NOW);
        assert_eq!(known[0].heartbeat.awaited, ["worker 0"]);
        let presence: Vec<_> = known.iter().map(|observed| observed.presence).collect();
        assert_eq!(presence, [Some(Presence::Present), None, Some(Presence::Present)]);
    }
}
