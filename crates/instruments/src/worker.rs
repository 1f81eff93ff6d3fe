//! The metrics of a worker.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::local::LocalHistogram;
use prometheus::{GaugeVec, Histogram, HistogramOpts, Opts};

use crate::ps::buckets;
use crate::reading::{Readable, VALID, counter, gauge, seconds};
use crate::usage::Usage;

/// Measurements of one step.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepMeasurement {
    /// The whole step.
    pub step: Duration,
    /// Computing.
    pub compute: Duration,
    /// Waiting for parameter servers.
    pub wait: Duration,
    /// Waiting for data.
    pub data: Duration,
    /// Samples in its batch.
    pub samples: u64,
    /// Bytes sent to the parameter servers.
    pub sent: u64,
    /// Bytes received from them.
    pub received: u64,
    /// The loss of its batch; unknown to a task that computes only some stages of a model.
    pub loss: Option<f32>,
    /// The global step after it.
    pub global_step: u64,
}

/// A place where replicas of a worker's network compute: a device of its own, or of a worker that has joined it.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// The number of replicas that compute there.
    pub replicas: u32,
    /// Whether it can be reached now.
    pub reachable: bool,
    /// The client's view of the worker, if this is a worker that has joined.
    pub joined: Option<JoinedSite>,
}

/// A client's view of a worker that has joined it. Times count from the first time that it joined.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JoinedSite {
    /// Its index among the workers of the client.
    pub index: u32,
    /// The address on which it listens.
    pub address: String,
    /// The stages that it computes; none if it computes all of the model.
    pub stages: Vec<String>,
    /// Whether it has ever joined.
    pub has_joined: bool,
    /// The time since it was last heard from.
    pub silent: Duration,
    /// How long its client has been waiting for it; `None` if the client is not waiting.
    pub awaited: Option<Duration>,
    /// The steps that it took part in.
    pub steps: u64,
    /// Samples that it computed in those steps.
    pub samples: u64,
    /// Time in which it could have computed.
    pub present: Duration,
    /// Time in which a request of its client was pending.
    pub asked: Duration,
    /// The time in which it computed: measured by itself if it computes the whole model, and by its client, transfers
    /// included, if it computes stages.
    pub computed: Duration,
    /// Bytes that its client sent to it.
    pub sent: u64,
    /// Bytes that its client received from it.
    pub received: u64,
    /// Its hardware usage, as it reports it.
    pub usage: Option<Usage>,
}

impl Site {
    /// The devices of this process by their names, one for each replica.
    pub fn of_devices(names: &[String]) -> Vec<Self> {
        let mut sites: Vec<Self> = Vec::new();
        for name in names {
            match sites.iter_mut().find(|site| site.name == *name) {
                Some(site) => site.replicas += 1,
                None => sites.push(Self { name: name.clone(), replicas: 1, reachable: true, joined: None }),
            }
        }
        sites
    }
}

/// Returns where steps are currently computed.
pub type Sites = Arc<dyn Fn() -> Vec<Site> + Send + Sync>;

/// The metrics of a worker. Clones share their counts.
///
/// A step of the smallest network takes 16 µs, so a step is counted under one lock that only a reader contends for, and
/// becomes instruments when somebody reads.
#[derive(Clone, Default)]
pub struct WorkerInstruments(Arc<Mutex<Counted>>);

struct Counted {
    /// Where its steps are computed.
    sites: Option<Sites>,
    /// Sums over all steps; for the loss and the global step, the last value.
    total: StepMeasurement,
    /// Observations since `steps` was last read.
    unread: LocalHistogram,
    steps: Histogram,
}

impl Default for Counted {
    fn default() -> Self {
        // From 16 µs to 67 s.
        let options = HistogramOpts::new("windlass_worker_step_seconds", "Time of a step.");
        let steps = Histogram::with_opts(options.buckets(buckets(16e-6, 2.0, 23))).expect(VALID);
        Self { sites: None, total: StepMeasurement::default(), unread: steps.local(), steps }
    }
}

impl fmt::Debug for WorkerInstruments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WorkerInstruments").finish_non_exhaustive()
    }
}

impl WorkerInstruments {
    /// Counts a step.
    pub fn stepped(&self, done: &StepMeasurement) {
        let mut counted = self.lock();
        counted.unread.observe(done.step.as_secs_f64());
        let before = counted.total;
        counted.total = StepMeasurement {
            step: before.step + done.step,
            compute: before.compute + done.compute,
            wait: before.wait + done.wait,
            data: before.data + done.data,
            samples: before.samples + done.samples,
            sent: before.sent + done.sent,
            received: before.received + done.received,
            loss: done.loss,
            global_step: done.global_step,
        };
    }

    /// Sets where steps are computed.
    pub fn computes_on(&self, sites: Sites) {
        self.lock().sites = Some(sites);
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readable for WorkerInstruments {
    fn instruments(&self) -> Vec<Box<dyn Collector>> {
        let counted = self.lock();
        counted.unread.flush();
        let (total, steps, sites) = (counted.total, counted.steps.clone(), counted.sites.clone());
        drop(counted);
        let mut instruments: Vec<Box<dyn Collector>> = vec![
            Box::new(steps.clone()),
            seconds("windlass_worker_compute_seconds_total", "Time spent computing steps.", total.compute),
            seconds("windlass_worker_wait_seconds_total", "Time spent waiting for parameter servers.", total.wait),
            seconds("windlass_worker_data_seconds_total", "Time spent waiting for data.", total.data),
            counter("windlass_worker_samples_total", "Samples trained on.", total.samples),
            counter("windlass_worker_sent_bytes_total", "Bytes sent to parameter servers.", total.sent),
            counter("windlass_worker_received_bytes_total", "Bytes received from parameter servers.", total.received),
            gauge("windlass_worker_global_step", "The global step after the last step.", total.global_step as f64),
        ];
        if let Some(sites) = sites {
            instruments.push(replicas(&sites()));
        }
        if let Some(loss) = total.loss {
            instruments.push(gauge("windlass_worker_loss", "The loss of the last batch.", f64::from(loss)));
        }
        instruments
    }
}

/// How many replicas compute at each site.
fn replicas(sites: &[Site]) -> Box<dyn Collector> {
    let options =
        Opts::new("windlass_worker_replicas", "Replicas of the network by where they compute; 0 out of reach.");
    let gauges = GaugeVec::new(options, &["device"]).expect(VALID);
    for site in sites {
        let replicas = if site.reachable { f64::from(site.replicas) } else { 0.0 };
        gauges.with_label_values(&[&site.name]).set(replicas);
    }
    Box::new(gauges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_counted_by_device_and_not_where_they_are_out_of_reach() {
        let names = ["gpu:0", "gpu:1", "gpu:0"].map(str::to_owned);
        let mut sites = Site::of_devices(&names);
        sites[1].reachable = false;
        let worker = WorkerInstruments::default();
        worker.computes_on(Arc::new(move || sites.clone()));
        let families = worker.instruments().into_iter().flat_map(|instrument| instrument.collect());
        let family = families.into_iter().find(|family| family.name() == "windlass_worker_replicas").unwrap();
        let counted = |metric: &prometheus::proto::Metric| {
            (metric.get_label()[0].value().to_owned(), metric.get_gauge().get_value())
        };
        let mut counted: Vec<(String, f64)> = family.get_metric().iter().map(counted).collect();
        counted.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(counted, [("gpu:0".to_owned(), 2.0), ("gpu:1".to_owned(), 0.0)]);
    }

    #[test]
    fn there_is_no_loss_before_the_first_step_nor_where_it_is_not_known() {
        let worker = WorkerInstruments::default();
        let names = || -> Vec<String> {
            let families = worker.instruments().into_iter().flat_map(|instrument| instrument.collect());
            families.map(|family| family.name().to_owned()).collect()
        };
        assert!(!names().contains(&"windlass_worker_loss".to_owned()), "{:?}", names());
        worker.stepped(&StepMeasurement::default());
        assert!(!names().contains(&"windlass_worker_loss".to_owned()), "{:?}", names());
        worker.stepped(&StepMeasurement { loss: Some(0.5), ..StepMeasurement::default() });
        assert!(names().contains(&"windlass_worker_loss".to_owned()), "{:?}", names());
    }
}
