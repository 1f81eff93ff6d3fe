//! Instruments that are made when somebody reads them, from what is known then.

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntCounter};

/// What an instrument is expected to have.
pub const VALID: &str = "the names and the labels are valid";

/// What can be read at any moment. The names that there are at first are reserved; more may come later.
pub trait Readable: Send + Sync {
    /// The instruments as of now.
    fn instruments(&self) -> Vec<Box<dyn Collector>>;
}

/// Reads a source whenever it is asked.
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

/// A number that goes up and down.
pub fn gauge(name: &str, help: &str, value: f64) -> Box<dyn Collector> {
    let gauge = Gauge::new(name, help).expect(VALID);
    gauge.set(value);
    Box::new(gauge)
}

/// A number that only grows.
pub fn counter(name: &str, help: &str, value: u64) -> Box<dyn Collector> {
    let counter = IntCounter::new(name, help).expect(VALID);
    counter.inc_by(value);
    Box::new(counter)
}

/// Time that only grows.
pub fn seconds(name: &str, help: &str, value: Duration) -> Box<dyn Collector> {
    let counter = Counter::new(name, help).expect(VALID);
    counter.inc_by(value.as_secs_f64());
    Box::new(counter)
}
