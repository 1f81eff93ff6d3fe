//! Whether the servers have enough memory for a run. This is checked first, because the first worker to join brings the
//! run and may bring anything.

use std::collections::BTreeMap;

use windlass_core::footprint::{in_words, server_bytes};
use windlass_core::run::RunSpec;
use windlass_wire::control::proto::Memory;

use super::checkpoint::Checkpoints;
use super::interface::OwnShard;
use super::machine::Coordinator;

impl<S: OwnShard> Coordinator<S> {
    /// Explains why the servers cannot hold a run, if they cannot. A run that they hold or have held is not checked
    /// again: they may have to restore it while some of its memory is still in use.
    pub(super) fn shortage(&self, run: &RunSpec) -> Option<String> {
        let held = self.run.as_ref().filter(|_| self.prepare.number > 0).map(|(_, held)| held);
        let saved = self.checkpoints.as_ref().and_then(Checkpoints::found).map(|(manifest, _)| &manifest.run);
        let is_same = |other: &RunSpec| {
            other.parameters == run.parameters && other.optimizer == run.optimizer && other.mode == run.mode
        };
        if held.into_iter().chain(saved).any(is_same) {
            return None;
        }
        let workers = self.config.workers.unwrap_or(1) as usize;
        let needed = server_bytes(run, self.config.servers as usize, workers, self.checkpoints.is_some());
        shortage(&needed, &self.memory, |server| self.host(server))
    }

    /// Returns the host of a server, if the server has joined.
    fn host(&self, server: u32) -> Option<&str> {
        let address = self.endpoints.get(&server)?.address.as_str();
        Some(address.rsplit_once(':').map_or(address, |(host, _)| host))
    }
}

/// Finds the first server that needs more than its process may take, or the first host whose servers together need more
/// than it has. A server that has not joined yet is assumed to run on a host like that of ps 0.
fn shortage<'a>(
    needed: &[u64],
    memory: &BTreeMap<u32, Memory>,
    host: impl Fn(u32) -> Option<&'a str>,
) -> Option<String> {
    let mut hosts: BTreeMap<&str, (Vec<u32>, u64, u64)> = BTreeMap::new();
    for (server, needed) in (0..).zip(needed.iter().copied()) {
        let Some(memory) = memory.get(&server).or(memory.get(&0)) else { continue };
        if needed > memory.process {
            return Some(describe(&[server], needed, memory.process));
        }
        let Some(host) = host(server) else { continue };
        let (servers, total, available) = hosts.entry(host).or_default();
        servers.push(server);
        // A server that started later may have seen memory that the others had already taken.
        (*total, *available) = (total.saturating_add(needed), memory.machine.max(*available));
    }
    let (servers, needed, available) = hosts.into_values().find(|(_, needed, available)| needed > available)?;
    Some(describe(&servers, needed, available))
}

fn describe(servers: &[u32], needed: u64, available: u64) -> String {
    let names: Vec<String> = servers.iter().map(|server| format!("ps {server}")).collect();
    let (names, needed, available) = (names.join(" and "), in_words(needed), in_words(available));
    format!(
        "the model is too large: {names} would need {needed} for parameters, optimizer state and copies of them, and \
         {available} is available there"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [&str; 3] = ["a", "a", "b"];

    /// Checks servers with this memory for each process and machine; those beyond the list have not joined.
    fn told(needed: &[u64], memory: &[(u64, u64)]) -> Option<String> {
        let memory = (0..).zip(memory.iter().map(|(process, machine)| Memory { process: *process, machine: *machine }));
        let memory: BTreeMap<u32, Memory> = memory.collect();
        shortage(needed, &memory, |server| memory.contains_key(&server).then_some(HOSTS[server as usize]))
    }

    #[test]
    fn what_fits_is_not_refused() {
        assert_eq!(told(&[50, 50, 100], &[(100, 100), (90, 90), (100, 100)]), None);
        assert_eq!(told(&[u64::MAX], &[]), None, "nobody knows");
    }

    #[test]
    fn a_server_is_held_to_what_its_container_allows() {
        let expected = "the model is too large: ps 0 would need 51 B for parameters, optimizer state and copies of them, and \
                        50 B is available there";
        assert_eq!(told(&[51, 1], &[(50, 200), (50, 200)]).as_deref(), Some(expected));
        assert_eq!(told(&[50, 50], &[(50, 200), (50, 200)]), None, "each has its own");
    }

    #[test]
    fn servers_on_one_host_share_its_memory() {
        let told = told(&[50, 51, 1], &[(100, 100), (90, 90), (100, 100)]).unwrap();
        assert!(told.contains("ps 0 and ps 1 would need 101 B") && told.contains("100 B is available"), "{told}");
    }

    #[test]
    fn a_server_that_has_not_come_is_supposed_to_be_like_the_first() {
        assert_eq!(told(&[1, 1, 100], &[(100, 100)]), None);
        assert!(told(&[1, 1, 101], &[(100, 100)]).unwrap().contains("ps 2 would need 101 B"));
    }

    #[test]
    fn the_sum_of_what_servers_need_does_not_overflow() {
        let all = (u64::MAX, u64::MAX - 1);
        assert!(told(&[u64::MAX, u64::MAX, 0], &[all, all]).is_some());
    }
}
