//! A timeline of what each device did in the first steps, for Chrome's tracing page or Perfetto, and the load of each
//! device over all steps.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_core::executor::Graph;

use super::lanes::Ran;
use super::step::locked;

/// The number of traced steps: enough to see the schedule, and few enough for any number of stages.
pub const TRACED_STEPS: usize = 20;

/// What has been traced so far, to be written to a file by the owner.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Traced>>);

#[derive(Default)]
struct Traced {
    began: Option<Instant>,
    steps: usize,
    /// The names of the lanes, in order.
    lanes: Vec<String>,
    events: Vec<Value>,
}

impl Trace {
    /// Returns the trace as a JSON object of the trace event format; `None` if there has been no step.
    pub fn to_json(&self) -> Option<String> {
        let traced = locked(&self.0);
        traced.began?;
        let thread = |(lane, name): (usize, &String)| json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": lane, "args": {"name": name}});
        let events: Vec<Value> =
            traced.lanes.iter().enumerate().map(thread).chain(traced.events.iter().cloned()).collect();
        Some(json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string())
    }

    pub(super) fn name_lanes(&self, names: Vec<String>) {
        locked(&self.0).lanes = names;
    }

    pub(super) fn add(&self, graph: &Graph, ran: &[Ran]) {
        let mut traced = locked(&self.0);
        if traced.steps == TRACED_STEPS {
            return;
        }
        traced.steps += 1;
        let step = traced.steps;
        let zero = ran.iter().map(|ran| ran.began).min();
        let zero = *traced.began.get_or_insert(zero.unwrap_or_else(Instant::now));
        let microseconds = |duration: Duration| duration.as_nanos() as f64 / 1e3;
        for Ran { node, began, ended } in ran {
            let node = &graph.nodes()[node.0];
            let kind = node.name.split(' ').next().unwrap_or_default();
            traced.events.push(json!({
                "name": node.name, "cat": kind, "ph": "X", "pid": 0, "tid": node.lane.0,
                "ts": microseconds(began.saturating_duration_since(zero)),
                "dur": microseconds(ended.saturating_duration_since(*began)),
                "args": {"step": step},
            }));
        }
    }
}

/// The busy time of each lane, and the total time of the steps.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    busy: Vec<Duration>,
    steps: Duration,
}

impl Usage {
    pub(super) fn of(lanes: usize) -> Self {
        Self { busy: vec![Duration::ZERO; lanes], steps: Duration::ZERO }
    }

    pub(super) fn add(&mut self, graph: &Graph, ran: &[Ran], took: Duration) {
        for Ran { node, began, ended } in ran {
            self.busy[graph.nodes()[node.0].lane.0] += ended.saturating_duration_since(*began);
        }
        self.steps += took;
    }

    /// Returns the fraction of the step time in which a lane was busy.
    pub(super) fn busy(&self, lane: usize) -> f64 {
        let steps = self.steps.as_secs_f64();
        if steps > 0.0 { (self.busy[lane].as_secs_f64() / steps).min(1.0) } else { 0.0 }
    }
}
