//! Instruments that are created on demand, from the values at that time.

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntCounter};

/// The message of an `expect` on creating an instrument.
pub const VALID: &str = "the names and the labels are valid";

/// A source of instruments that can be read at any time. Its initial names are reserved; more may appear later.
pub trait Readable: Send + Sync {
    /// Returns the current instruments.
    fn instruments(&self) -> Vec<Box<dyn Collector>>;
}

/// A collector that reads its source on every request.
pub(crate) struct Reading<R> {
    source: R,
    descriptions: Vec<Desc>,
}

impl<R: Readable> Reading<R> {
    pub(crate) fn new(source: R) -> Self {
        let descriptions = source.instruments().iter().flat_map(|instrument| instrument.desc()).cloned().collect();
        Self { source, descriptions }
    }
}

impl<R: Readable> Collector for Reading<R> {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.source.instruments().iter().flat_map(|instrument| instrument.collect()).collect()
    }
}

/// Creates a gauge.
pub fn gauge(name: &str, help: &str, value: f64) -> Box<dyn Collector> {
    let gauge = Gauge::new(name, help).expect(VALID);
    gauge.set(value);
    Box::new(gauge)
}

/// Creates a counter.
pub fn counter(name: &str, help: &str, value: u64) -> Box<dyn Collector> {
    let counter = IntCounter::new(name, help).expect(VALID);
    counter.inc_by(value);
    Box::new(counter)
}

/// Creates a counter of seconds.
pub fn seconds(name: &str, help: &str, value: Duration) -> Box<dyn Collector> {
    let counter = Counter::new(name, help).expect(VALID);
    counter.inc_by(value.as_secs_f64());
    Box::new(counter)
}
