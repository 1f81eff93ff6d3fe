//! The metrics of a task in Prometheus's text format.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::core::Collector;
use prometheus::{IntGauge, Opts, Registry, TEXT_FORMAT, TextEncoder};

use crate::probes::Probes;
use crate::ps::PsInstruments;
use crate::reading::{Readable, Reading, gauge};
use crate::usage::UsageMeter;
use crate::worker::WorkerInstruments;

/// Identifies the build of this program.
#[derive(Debug, Clone, Default)]
pub struct Build {
    /// Its version.
    pub version: String,
    /// The commit that it was built from.
    pub commit: String,
}

/// Everything about a task that can be asked from outside.
#[derive(Debug, Clone, Default)]
pub struct Instruments {
    registry: Registry,
    probes: Probes,
    usage: UsageMeter,
}

impl Instruments {
    /// The instruments of a task, such as task 0 of `ps`.
    pub fn new(build: &Build, role: &str, task: u32) -> Self {
        let instruments = Self::default();
        let information = |name: &str, help: &str, labels: &[(&str, &str)]| {
            let options = labels
                .iter()
                .fold(Opts::new(name, help), |options, (label, value)| options.const_label(*label, *value));
            let gauge = IntGauge::with_opts(options).expect("the name and the labels are valid");
            gauge.set(1);
            Box::new(gauge)
        };
        instruments.add(information(
            "windlass_build_info",
            "The version and the commit of this program; always 1.",
            &[("version", &build.version), ("commit", &build.commit)],
        ));
        instruments.add(information(
            "windlass_task_info",
            "The role and the number of this task; always 1.",
            &[("role", role), ("task", &task.to_string())],
        ));
        // Read only once: a value that the clock could shift would look like a restart.
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let help = "When this process began to be observed, in seconds since 1970; it changes only with the process.";
        instruments.add(gauge("windlass_process_start_time_seconds", help, started.as_secs_f64()));
        instruments.read_from(instruments.usage.clone());
        instruments
    }

    /// Returns the probes for this task's supervisor.
    pub fn probes(&self) -> &Probes {
        &self.probes
    }

    /// Returns the hardware usage of this process and its host.
    pub fn usage(&self) -> &UsageMeter {
        &self.usage
    }

    /// Creates the metrics of this task as a parameter server.
    pub fn ps(&self) -> PsInstruments {
        let instruments = PsInstruments::default();
        instruments.collectors().into_iter().for_each(|collector| self.add(collector));
        instruments
    }

    /// Creates the metrics of this task as a worker.
    pub fn worker(&self) -> WorkerInstruments {
        let instruments = WorkerInstruments::default();
        self.read_from(instruments.clone());
        instruments
    }

    /// Adds the metrics of another source.
    pub fn read_from(&self, source: impl Readable + 'static) {
        self.add(Box::new(Reading::new(source)));
    }

    fn add(&self, collector: Box<dyn Collector>) {
        self.registry.register(collector).expect("every instrument has a name of its own");
    }

    /// The routes of the probes and `/metrics`.
    pub fn router(&self) -> Router {
        let registry = self.registry.clone();
        self.probes.router().route("/metrics", get(move || async move { exposition(&registry) }))
    }
}

fn exposition(registry: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PushFate, StepMeasurement};

    #[test]
    fn a_process_has_one_start_time() {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let before = seconds(SystemTime::now());
        let instruments = Instruments::new(&Build::default(), "ps", 0);
        let after = seconds(SystemTime::now());
        let read = || {
            let families = instruments.registry.gather();
            let family = families.iter().find(|family| family.name() == "windlass_process_start_time_seconds");
            family.expect("the family").get_metric()[0].get_gauge().get_value()
        };
        assert!((before..=after).contains(&read()), "{} is not between {before} and {after}", read());
        assert_eq!(read(), read());
    }

    #[test]
    fn a_task_exposes_what_it_has_counted() {
        let build = Build { version: "1.2.3".to_owned(), commit: "abc".to_owned() };
        let instruments = Instruments::new(&build, "worker", 3);
        instruments.ps().pushed(PushFate::Stale);
        instruments.worker().stepped(&StepMeasurement { samples: 100, ..StepMeasurement::default() });
        let text = TextEncoder::new().encode_to_string(&instruments.registry.gather()).unwrap();
        for line in [
            "windlass_build_info{commit=\"abc\",version=\"1.2.3\"} 1",
            "windlass_task_info{role=\"worker\",task=\"3\"} 1",
            "windlass_ps_pushes_total{fate=\"stale\"} 1",
            "windlass_ps_pushes_total{fate=\"applied\"} 0",
            "windlass_worker_samples_total 100",
            "windlass_worker_step_seconds_count 1",
        ] {
            assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
        }
    }
}
