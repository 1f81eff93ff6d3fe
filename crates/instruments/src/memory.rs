//! How much more memory this process may use: what the machine has available, and what its control group, such as a
//! container's, allows.

use sysinfo::{CGroupLimits, ProcessRefreshKind, ProcessesToUpdate, System};

/// Bytes of memory that are still available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvailableMemory {
    /// Available to this process, within its control group.
    pub process: u64,
    /// Available to all processes of this machine together.
    pub machine: u64,
}

/// Returns the available memory; `None` if the system does not report it.
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

/// Returns the memory that this process could have if no other process used any: the machine's, or the limit of its
/// control group.
pub fn total_memory() -> Option<u64> {
    let mut system = System::new();
    system.refresh_memory();
    let limit = system.cgroup_limits().map_or(u64::MAX, |group| group.total_memory);
    Some(system.total_memory().min(limit)).filter(|bytes| *bytes > 0)
}

/// Returns how much of the machine's available memory is open to a process in these groups. The group's own account
/// counts cached files as used; the kernel drops those when memory is needed.
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
