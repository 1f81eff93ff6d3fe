//! The hardware usage that a task reports in its heartbeats.

use std::sync::PoisonError;

use windlass_instruments::{AvailableMemory, GpuUsage, JoinedSite, Site, Usage, UsageMeter};

use super::proto::{self, Heartbeat};
use super::session::Progress;

/// Measures the usage of this process and its host every second, and reports it in the heartbeats, together with what
/// `tell` adds. Needs the async runtime.
pub fn report(meter: &UsageMeter, progress: &Progress, tell: impl Fn(&mut Heartbeat) + Send + 'static) {
    let progress = progress.clone();
    meter.measure(move |usage| {
        let mut heartbeat = progress.lock().unwrap_or_else(PoisonError::into_inner);
        heartbeat.usage = Some(Box::new(message(usage)));
        tell(&mut heartbeat);
    });
}

fn message(usage: &Usage) -> proto::Usage {
    let node = &usage.node;
    let gpu = |gpu: &GpuUsage| proto::Gpu {
        name: gpu.name.clone(),
        utilization: gpu.utilization,
        memory_used_bytes: gpu.memory_used_bytes,
        memory_bytes: gpu.memory_bytes,
    };
    proto::Usage {
        cpus: usage.cpus,
        memory_bytes: usage.memory_bytes,
        swapped_bytes: usage.swapped_bytes,
        node: node.name.clone(),
        node_cores: node.cores as u32,
        node_cpus: node.cpus,
        node_memory_bytes: node.memory_bytes,
        node_available_bytes: node.available_bytes,
        received_per_second: node.received_per_second,
        sent_per_second: node.sent_per_second,
        gpus: node.gpus.iter().map(gpu).collect(),
        memory_stall: node.memory_stall.unwrap_or(-1.0),
    }
}

impl From<Site> for proto::Site {
    fn from(Site { name, replicas, reachable, joined }: Site) -> Self {
        Self { name, replicas, reachable, joined: joined.map(Into::into) }
    }
}

impl From<JoinedSite> for proto::JoinedSite {
    fn from(joined: JoinedSite) -> Self {
        Self {
            index: joined.index,
            address: joined.address,
            stages: joined.stages,
            has_joined: joined.has_joined,
            silent: joined.silent.as_secs_f64(),
            awaited: joined.awaited.map_or(-1.0, |awaited| awaited.as_secs_f64()),
            steps: joined.steps,
            samples: joined.samples,
            present: joined.present.as_secs_f64(),
            asked: joined.asked.as_secs_f64(),
            computed: joined.computed.as_secs_f64(),
            sent: joined.sent,
            received: joined.received,
            usage: joined.usage.as_ref().map(message),
        }
    }
}

impl From<AvailableMemory> for proto::Memory {
    fn from(AvailableMemory { process, machine }: AvailableMemory) -> Self {
        Self { process, machine }
    }
}
