//! The hardware usage that Prometheus reads.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{GaugeVec, Opts};

use crate::reading::{Readable, VALID, counter, gauge, seconds};
use crate::usage::UsageMeter;

impl Readable for UsageMeter {
    fn instruments(&self) -> Vec<Box<dyn Collector>> {
        let usage = self.last();
        let node = &usage.node;
        let bytes = |name, help, value: u64| gauge(name, help, value as f64);
        let cpu = Duration::from_secs_f64(usage.cpu_seconds.max(0.0));
        let mut instruments = vec![
            seconds("windlass_process_cpu_seconds_total", "Processor time of this process.", cpu),
            bytes("windlass_process_resident_memory_bytes", "Memory of this process in RAM.", usage.memory_bytes),
            bytes("windlass_process_swapped_bytes", "Memory of this process swapped out.", usage.swapped_bytes),
            gauge("windlass_node_busy_cpus", "Processors of the host that were busy in the last second.", node.cpus),
            gauge("windlass_node_cpus", "Processors of the host.", node.cores as f64),
            gauge("windlass_process_cpus", "Processors that this process may use.", usage.cores as f64),
            bytes("windlass_node_memory_bytes", "Memory of the host.", node.memory_bytes),
            bytes("windlass_node_memory_available_bytes", "Memory of the host still available.", node.available_bytes),
            counter("windlass_node_received_bytes_total", "Bytes received by the host.", node.received_bytes),
            counter("windlass_node_sent_bytes_total", "Bytes sent by the host.", node.sent_bytes),
        ];
        let by_gpu = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &["gpu", "name"]).expect(VALID);
        let busy = by_gpu("windlass_gpu_utilization_ratio", "Share of the time in which the GPU was busy.");
        let used = by_gpu("windlass_gpu_memory_used_bytes", "Memory of the GPU in use.");
        let memory = by_gpu("windlass_gpu_memory_bytes", "Memory of the GPU.");
        for gpu in &node.gpus {
            let labels = [&gpu.index.to_string(), &gpu.name];
            gpu.utilization.iter().for_each(|share| busy.with_label_values(&labels).set(*share));
            used.with_label_values(&labels).set(gpu.memory_used_bytes as f64);
            memory.with_label_values(&labels).set(gpu.memory_bytes as f64);
        }
        instruments.extend([busy, used, memory].map(|gauges| Box::new(gauges) as Box<dyn Collector>));
        instruments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuUsage;
    use crate::usage::Usage;

    #[test]
    fn a_gpu_that_does_not_tell_how_busy_it_is_tells_of_its_memory() {
        let mut usage = Usage::default();
        for (index, utilization) in [(0, Some(0.5)), (1, None)] {
            let gpu = GpuUsage { index, utilization, memory_used_bytes: 1, memory_bytes: 2, ..GpuUsage::default() };
            usage.node.gpus.push(gpu);
        }
        let read = UsageMeter::of(usage).instruments();
        let families: Vec<_> = read.iter().flat_map(|instrument| instrument.collect()).collect();
        let count = |name: &str| families.iter().find(|family| family.name() == name).map(|it| it.get_metric().len());
        assert_eq!(count("windlass_gpu_utilization_ratio"), Some(1));
        assert_eq!(count("windlass_gpu_memory_used_bytes"), Some(2));
        assert_eq!(count("windlass_gpu_memory_bytes"), Some(2));
    }
}
