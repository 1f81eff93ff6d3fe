//! How much memory this process may still take: what the machine has left, and what its control group, as of a
//! container, allows.

use sysinfo::{CGroupLimits, ProcessRefreshKind, ProcessesToUpdate, System};

/// Bytes of memory that can still be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvailableMemory {
    /// By this process, within its control group.
    pub process: u64,
    /// By all processes of this machine together.
    pub machine: u64,
}

/// What can still be taken; `None` if the system does not tell.
pub fn available_memory() -> Option<AvailableMemory> {
    let mut system = System::new();
    system.refresh_memory();
    let machine = system.available_memory().saturating_add(system.free_swap());
    let pid = sysinfo::get_current_pid().ok()?;
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, ProcessRefreshKind::nothing());
    // In a container the path of the group may be that of the host, and the group itself be mounted at the root.
    let groups = [system.process(pid).and_then(|process| process.cgroup_limits()), system.cgroup_limits()];
    let process = room(machine, groups.into_iter().flatten());
    (machine > 0).then_some(AvailableMemory { process, machine })
}

/// All memory that this process could have if nobody else took any: the machine's, or what its control group allows.
pub fn total_memory() -> Option<u64> {
    let mut system = System::new();
    system.refresh_memory();
    let limit = system.cgroup_limits().map_or(u64::MAX, |group| group.total_memory);
    Some(system.total_memory().min(limit)).filter(|bytes| *bytes > 0)
}

/// What a machine with that much memory left grants to a process in these groups. The group's own account of what is free
/// counts files that it has read as taken; they make room for whoever needs it.
fn room(machine: u64, groups: impl Iterator<Item = CGroupLimits>) -> u64 {
    groups.fold(machine, |room, group| room.min(group.total_memory.saturating_sub(group.rss)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(total_memory: u64, rss: u64) -> CGroupLimits {
        CGroupLimits { total_memory, free_memory: 0, free_swap: 0, rss }
    }

    #[test]
    fn the_narrowest_limit_counts() {
        assert_eq!(room(100, [].into_iter()), 100);
        assert_eq!(room(100, [group(60, 20)].into_iter()), 40);
        assert_eq!(room(30, [group(60, 20)].into_iter()), 30);
        assert_eq!(room(100, [group(1000, 20), group(50, 5)].into_iter()), 45);
        assert_eq!(room(100, [group(50, 70)].into_iter()), 0);
    }

    #[test]
    fn this_machine_tells_what_it_has() {
        let AvailableMemory { process, machine } = available_memory().unwrap();
        assert!((1 << 20..1 << 50).contains(&process) && process <= machine, "{process} of {machine}");
        assert!((1 << 20..1 << 50).contains(&total_memory().unwrap()));
    }
}
