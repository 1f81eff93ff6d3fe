//! The hardware usage of this process and its host: processors, memory, network, GPUs.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sysinfo::{NetworkData, Networks, Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use crate::gpu::{GpuMeter, GpuUsage};

/// The interval between two measurements. Rates are means over it.
const EVERY: Duration = Duration::from_secs(1);

/// The usage of a process and its host at the last measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// The process's CPU time so far.
    pub cpu_seconds: f64,
    /// Processors that the process kept busy since the previous measurement.
    pub cpus: f64,
    /// Memory of the process in RAM.
    pub memory_bytes: u64,
    /// The process's memory that is swapped out.
    pub swapped_bytes: u64,
    /// Processors that the process may use.
    pub cores: usize,
    /// The host, or the container, that the process runs on.
    pub node: NodeUsage,
}

/// The resources of a host, and their usage by all its processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeUsage {
    /// The name of the host.
    pub name: String,
    /// The number of its processors.
    pub cores: usize,
    /// Processors that were busy since the previous measurement.
    pub cpus: f64,
    /// The total memory of the host.
    pub memory_bytes: u64,
    /// The available memory of the host.
    pub available_bytes: u64,
    /// Bytes received so far on interfaces to other hosts. When an interface disappears, its bytes stay counted.
    pub received_bytes: u64,
    /// Bytes sent so far by the same interfaces.
    pub sent_bytes: u64,
    /// Bytes received in a second.
    pub received_per_second: f64,
    /// Bytes sent in a second.
    pub sent_per_second: f64,
    /// The fraction of the last ten seconds in which some process was stalled on memory, where the kernel reports it.
    pub memory_stall: Option<f64>,
    /// The GPUs of the host.
    pub gpus: Vec<GpuUsage>,
}

/// Measures the usage of this process and its host. Clones share the last measurement.
#[derive(Debug, Clone, Default)]
pub struct UsageMeter(Arc<Mutex<Usage>>);

impl UsageMeter {
    /// One that has measured this.
    #[cfg(test)]
    pub(crate) fn of(usage: Usage) -> Self {
        Self(Arc::new(Mutex::new(usage)))
    }

    /// What was measured last.
    pub fn last(&self) -> Usage {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Measures once a second for as long as there is another clone, and passes the results to `tell`. Needs the async
    /// runtime; asking the kernel takes a millisecond, which no other task on it waits for.
    pub fn measure(&self, mut tell: impl FnMut(&Usage) + Send + 'static) {
        let meter = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let mut probe = None;
            let mut interval = tokio::time::interval(EVERY);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                interval.tick().await;
                let look = move || {
                    let mut probe = probe.take().unwrap_or_else(Probe::new);
                    let usage = probe.measure();
                    (probe, usage)
                };
                let Ok((looked, usage)) = tokio::task::spawn_blocking(look).await else { return };
                probe = Some(looked);
                let Some(meter) = meter.upgrade() else { return };
                tell(&usage);
                *meter.lock().unwrap_or_else(PoisonError::into_inner) = usage;
            }
        });
    }
}

/// The state that measuring needs.
struct Probe {
    system: System,
    networks: Networks,
    gpus: GpuMeter,
    pid: Option<Pid>,
    name: String,
    /// The time of the previous measurement, and the process's CPU time then.
    before: Option<(Instant, f64)>,
    /// Bytes received and sent so far.
    moved: Option<(u64, u64)>,
}

impl Probe {
    fn new() -> Self {
        Self {
            system: System::new(),
            networks: Networks::new(),
            gpus: GpuMeter::new(),
            pid: sysinfo::get_current_pid().ok(),
            name: System::host_name().unwrap_or_default(),
            before: None,
            moved: None,
        }
    }

    fn measure(&mut self) -> Usage {
        let kinds = ProcessRefreshKind::nothing().with_cpu().with_memory();
        let pids: Vec<Pid> = self.pid.into_iter().collect();
        self.system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, kinds);
        self.system.refresh_cpu_usage();
        self.system.refresh_memory();
        self.networks.refresh(true);
        let now = Instant::now();
        let process = self.pid.and_then(|pid| self.system.process(pid));
        let cpu_seconds = process.map_or(0.0, |process| process.accumulated_cpu_time() as f64 / 1e3);
        let elapsed = self.before.map(|(then, _)| (now - then).as_secs_f64()).filter(|elapsed| *elapsed > 0.0);
        let per_second = |amount: f64| elapsed.map_or(0.0, |elapsed| amount / elapsed);
        let cpus = self.before.map_or(0.0, |(_, before)| per_second((cpu_seconds - before).max(0.0)));
        self.before = Some((now, cpu_seconds));
        let names: Vec<&str> = self.networks.keys().map(String::as_str).collect();
        let counted = to_other_hosts(&names, has_device);
        let interfaces =
            || self.networks.iter().filter(|(name, _)| counted.contains(&name.as_str())).map(|(_, data)| data);
        let sums = |received: fn(&NetworkData) -> u64, sent: fn(&NetworkData) -> u64| {
            (interfaces().map(received).sum::<u64>(), interfaces().map(sent).sum::<u64>())
        };
        let (received, sent) = sums(NetworkData::received, NetworkData::transmitted);
        let moved = match self.moved {
            Some((before, sent_before)) => (before + received, sent_before + sent),
            None => sums(NetworkData::total_received, NetworkData::total_transmitted),
        };
        self.moved = Some(moved);
        let node = NodeUsage {
            name: self.name.clone(),
            cores: self.system.cpus().len(),
            cpus: f64::from(self.system.global_cpu_usage()) / 100.0 * self.system.cpus().len() as f64,
            memory_bytes: self.system.total_memory(),
            available_bytes: self.system.available_memory(),
            received_bytes: moved.0,
            sent_bytes: moved.1,
            received_per_second: per_second(received as f64),
            sent_per_second: per_second(sent as f64),
            memory_stall: memory_stall(),
            gpus: self.gpus.measure(),
        };
        let memory_bytes = process.map_or(0, sysinfo::Process::memory);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Usage { cpu_seconds, cpus, memory_bytes, swapped_bytes: swapped_bytes(), cores, node }
    }
}

/// Of all interfaces those by which bytes come from or go to other hosts, each byte once: those with a device. Where none
/// is known to have one, as in a container, names tell. A container may have none but a virtual one, which then counts.
fn to_other_hosts<'a>(interfaces: &[&'a str], has_device: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let of = |is_counted: &dyn Fn(&str) -> bool| -> Vec<&'a str> {
        interfaces.iter().copied().filter(|name| is_counted(name)).collect()
    };
    let ways: [&dyn Fn(&str) -> bool; 3] = [&has_device, &|name| !is_virtual(name), &|name| !name.starts_with("lo")];
    ways.into_iter().map(of).find(|counted| !counted.is_empty()).unwrap_or_default()
}

/// Whether Linux knows a device behind this interface; false on other systems.
fn has_device(interface: &str) -> bool {
    Path::new("/sys/class/net").join(interface).join("device").exists()
}

/// Guesses by the name. What passes such an interface passes another one too, or never leaves the host: bridges,
/// tunnels, VLANs (`eth0.100`), and the ends of those that containers and virtual machines have.
fn is_virtual(interface: &str) -> bool {
    const PREFIXES: [&str; 21] = [
        "lo", "veth", "docker", "br", "virbr", "cni", "flannel", "cali", "bond", "team", "lxc", "cilium", "vnet",
        "tap", "tun", "wg", "vxlan", "geneve", "kube-", "dummy", "ifb",
    ];
    PREFIXES.iter().any(|prefix| interface.starts_with(prefix)) || interface.contains('.')
}

fn memory_stall() -> Option<f64> {
    let pressure = std::fs::read_to_string("/proc/pressure/memory").ok()?;
    let some = pressure.lines().find_map(|line| line.strip_prefix("some avg10="))?;
    some.split_whitespace().next()?.parse::<f64>().ok().map(|percent| percent / 100.0)
}

/// Returns zero where the kernel does not report it.
fn swapped_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmSwap:")?.trim().strip_suffix(" kB"));
    kilobytes.and_then(|kilobytes| kilobytes.parse().ok()).map_or(0, |kilobytes: u64| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_is_seen_to_be_busy() {
        let mut probe = Probe::new();
        let first = probe.measure();
        assert_eq!(first.cpus, 0.0, "there is nothing to compare with yet");
        assert!(first.memory_bytes > 1 << 20 && first.memory_bytes < first.node.memory_bytes, "{first:?}");
        assert!(first.cores > 0 && first.node.cores >= first.cores && first.node.available_bytes > 0, "{first:?}");
        let mut second = probe.measure();
        while second.cpu_seconds < first.cpu_seconds + 0.1 {
            std::hint::black_box((0..1_000_000_u64).fold(0, u64::wrapping_add));
            second = probe.measure();
        }
        assert!(second.cpu_seconds > first.cpu_seconds, "{second:?}");
    }

    #[test]
    fn bytes_are_counted_where_they_leave_the_host_and_once() {
        let of_a_node = ["lo", "eth0", "eth0.100", "br0", "docker0", "lxc8a1", "wg0", "veth12"];
        let by_name = |interfaces| to_other_hosts(interfaces, |_| false);
        assert_eq!(by_name(&of_a_node), ["eth0"]);
        assert_eq!(by_name(&["lo", "tap0"]), ["tap0"], "a container of a user");
        assert_eq!(by_name(&["lo"]), [""; 0]);
    }

    #[test]
    fn interfaces_are_told_by_their_devices_where_there_are_any() {
        let of_a_node = ["lo", "bright0", "team-nic", "azv3f2", "gke81", "ovs-system"];
        let devices = ["bright0", "team-nic"];
        assert_eq!(to_other_hosts(&of_a_node, |name| devices.contains(&name)), devices);
        assert!(!has_device("lo"));
    }

    #[test]
    fn bytes_that_were_counted_stay_so_when_an_interface_goes_away() {
        let mut probe = Probe::new();
        probe.measure();
        let before = (1 << 50, 1 << 50);
        // The counters exceed those of all current interfaces, as if some had disappeared.
        probe.moved = Some(before);
        let node = probe.measure().node;
        assert!(node.received_bytes >= before.0 && node.sent_bytes >= before.1, "{node:?}");
    }

    #[tokio::test]
    async fn whoever_asks_gets_what_was_measured_last() {
        let meter = UsageMeter::default();
        let (told, mut measured) = tokio::sync::mpsc::channel(1);
        meter.measure(move |usage| drop(told.try_send(usage.clone())));
        let usage = measured.recv().await.unwrap();
        assert!(usage.memory_bytes > 0);
    }
}
