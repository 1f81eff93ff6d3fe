//! The answers to a supervisor's three questions: has the task started, is it alive, is it ready?
//!
//! *Alive* means that the event loop answers, whatever training does: a task that waits for its peers is alive, and
//! killing it would help nobody. *Started* means that it has loaded what it needs, which may take long. *Ready* means
//! that it takes part in the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

/// The state that the probes of a task report.
#[derive(Debug, Clone, Default)]
pub struct Probes(Arc<Answers>);

#[derive(Debug, Default)]
struct Answers {
    started: AtomicBool,
    ready: AtomicBool,
}

impl Probes {
    /// Notes that the task has loaded what it needs.
    pub fn started(&self) {
        self.0.started.store(true, Ordering::Relaxed);
    }

    /// Sets whether the task takes part in the run.
    pub fn set_ready(&self, ready: bool) {
        self.0.ready.store(ready, Ordering::Relaxed);
    }

    /// `/livez`, `/startupz`, `/readyz`, and `/healthz` as another name for the first.
    pub fn router(&self) -> Router {
        let (starting, joining) = (self.clone(), self.clone());
        let started = move || async move { answer(&starting.0.started, "loading the model and its data\n") };
        let ready = move || async move { answer(&joining.0.ready, "not taking part in the run yet\n") };
        Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/startupz", get(started))
            .route("/readyz", get(ready))
    }
}

fn answer(is_so: &AtomicBool, otherwise: &'static str) -> (StatusCode, &'static str) {
    match is_so.load(Ordering::Relaxed) {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, otherwise),
    }
}
