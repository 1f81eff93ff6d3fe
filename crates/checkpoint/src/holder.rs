//! The process that holds a store: its identity, so that others can name it, and whether it is still alive, as far as
//! this process can tell.

use std::fs;
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A coordinator's process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Holder {
    /// The name of its host, for display.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
    /// Identifies the boot of the machine and the process table that `pid` belongs to; empty if unknown.
    pub process_table: String,
    /// When the process began, in the machine's ticks. This tells it apart from a later process with the same id.
    pub began: u64,
    /// Where ps 0 listens; empty for a run in one process.
    pub address: String,
    /// Since when it holds the store, in seconds since 1970 by its own clock.
    pub since: u64,
}

/// What this process can tell about a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// The holder is alive.
    Alive,
    /// It is dead, or the same task of the same run as this process, so that this one replaces it.
    Replaced,
    /// The holder is on another machine: only its renewals can tell.
    Unknown,
}

impl Holder {
    /// Describes this process, whose ps 0 listens at `address`; an empty address for a run in one process.
    pub fn this_process(address: &str) -> Self {
        let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
        let pid = process::id();
        let host = read("/proc/sys/kernel/hostname").or_else(|| std::env::var("HOSTNAME").ok());
        let table = read("/proc/sys/kernel/random/boot_id").zip(fs::read_link("/proc/self/ns/pid").ok());
        Self {
            host: host.unwrap_or_else(|| "an unnamed host".to_owned()),
            pid,
            process_table: table.map(|(boot, table)| format!("{boot} {}", table.display())).unwrap_or_default(),
            began: began(pid).unwrap_or_default(),
            address: address.to_owned(),
            since: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        }
    }

    /// What this process, as `other`, knows of the life of the holder.
    pub(crate) fn life_seen_by(&self, other: &Self) -> Life {
        let here = !self.process_table.is_empty() && self.process_table == other.process_table;
        // An address such as localhost identifies a task only within its machine.
        let same_task =
            !self.address.is_empty() && self.address == other.address && (here || !is_of_one_machine(&self.address));
        match here {
            _ if same_task => Life::Replaced,
            false => Life::Unknown,
            // A process that claims a store again has given up its earlier run.
            true if self.pid == other.pid => Life::Replaced,
            true if began(self.pid) == Some(self.began) => Life::Alive,
            true => Life::Replaced,
        }
    }

    /// Describes the holder in words.
    pub fn describe(&self) -> String {
        let at = if self.address.is_empty() { String::new() } else { format!(" (ps 0 at {})", self.address) };
        format!("process {} on {}{at}", self.pid, self.host)
    }
}

fn is_of_one_machine(address: &str) -> bool {
    ["127.", "localhost", "[::1]", "0.0.0.0"].iter().any(|prefix| address.starts_with(prefix))
}

/// When a living process of this machine began, in ticks.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    // A zombie only waits for its parent to notice.
    (!matches!(state, "Z" | "X")).then_some(())?;
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elsewhere(address: &str) -> Holder {
        Holder { process_table: "another machine".into(), ..Holder::this_process(address) }
    }

    #[test]
    fn a_living_process_of_this_machine_is_told_from_a_dead_one() {
        let this = Holder::this_process("");
        let parent = std::os::unix::process::parent_id();
        let living = Holder { pid: parent, began: began(parent).unwrap_or_default(), ..this.clone() };
        assert_eq!(living.life_seen_by(&this), Life::Alive);
        let reused = Holder { began: living.began + 1, ..living.clone() };
        assert_eq!(reused.life_seen_by(&this), Life::Replaced, "its number was given to another");
        assert_eq!(this.life_seen_by(&this), Life::Replaced);
    }

    #[test]
    fn a_process_of_another_machine_is_not_judged_by_its_number() {
        assert_eq!(elsewhere("").life_seen_by(&Holder::this_process("")), Life::Unknown);
    }

    #[test]
    fn a_ps_that_is_started_again_at_its_address_replaces_the_one_before() {
        assert_eq!(elsewhere("ps-0:2222").life_seen_by(&Holder::this_process("ps-0:2222")), Life::Replaced);
        assert_eq!(elsewhere("ps-0:2222").life_seen_by(&Holder::this_process("ps-0:2223")), Life::Unknown);
        assert_eq!(elsewhere("127.0.0.1:2222").life_seen_by(&Holder::this_process("127.0.0.1:2222")), Life::Unknown);
    }
}
