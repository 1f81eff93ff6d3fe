//! `summary.json`: the numbers of a run that this crate needs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::files;
use crate::names::SUMMARY_FILE;
use crate::run::Score;

/// The run in numbers. The file has more; its writer documents each number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Summary {
    pub model: String,
    pub mode: String,
    #[serde(default)]
    pub ps: u32,
    #[serde(default)]
    pub workers: u32,
    #[serde(default)]
    pub colocated: bool,
    #[serde(default)]
    pub optimizer: String,
    #[serde(default)]
    pub batch_size: u64,
    pub global_step: u64,
    #[serde(default)]
    pub steps_this_run: u64,
    pub wall_seconds: f64,
    #[serde(default)]
    pub first_step_seconds: f64,
    #[serde(default)]
    pub steps_per_second: f64,
    #[serde(default)]
    pub samples_per_second: f64,
    #[serde(default)]
    pub step_ms: StepTime,
    #[serde(default)]
    pub bytes_per_step: Bytes,
    #[serde(default)]
    pub loss: Option<f64>,
    #[serde(default)]
    pub dropped_gradients: u64,
    #[serde(default)]
    pub mean_staleness: f64,
    #[serde(default)]
    pub warning: Option<Warning>,
    #[serde(default)]
    pub joined: Vec<Joined>,
    #[serde(default)]
    pub(crate) metrics: Values,
    #[serde(default)]
    pub(crate) metric_kinds: BTreeMap<String, String>,
}

/// The time of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct StepTime {
    pub p50: f64,
    pub p95: f64,
}

/// The traffic of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Bytes {
    pub sent: f64,
    pub received: f64,
    #[serde(default)]
    pub in_process: f64,
}

/// A worker that had joined the run's client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Joined {
    pub worker: String,
    pub steps: u64,
    pub joined: u64,
}

/// A problem with how the run learned.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Warning {
    pub message: String,
}

impl Summary {
    /// Reads the summary of a run directory; `None` if it has none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, String> {
        let text = files::read_if_there(&directory.join(SUMMARY_FILE))?;
        text.map(|text| serde_json::from_slice(&text).map_err(|error| error.to_string())).transpose()
    }

    /// The traffic between processes per step of a worker; `None` if joined workers computed it, since the traffic to
    /// them is not counted.
    pub fn traffic_per_step(&self) -> Option<f64> {
        let Bytes { sent, received, in_process } = self.bytes_per_step;
        self.joined.is_empty().then(|| if self.ps == 0 { 0.0 } else { (sent + received - in_process).max(0.0) })
    }

    /// The final scores, in the order of the file.
    pub fn scores(&self) -> Vec<Score> {
        let scores = self.metrics.0.iter().map(|(name, value)| Score {
            name: name.replace('_', " "),
            value: *value,
            is_fraction: self.metric_kinds.get(name).is_some_and(|kind| kind == "fraction"),
        });
        scores.collect()
    }
}

/// A map that keeps its order. Values that are not finite are `null` in JSON.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Values(Vec<(String, f64)>);

impl Serialize for Values {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Values;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map of scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Option<f64>>()? {
                    values.push((name, value.unwrap_or(f64::NAN)));
                }
                Ok(Values(values))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_keep_their_order_and_their_kind() {
        let text = r#"{"model": "m", "mode": "async", "global_step": 3, "wall_seconds": 1.5, "more": {},
            "metrics": {"test_accuracy": 0.5, "cross_entropy": null}, "metric_kinds": {"test_accuracy": "fraction"}}"#;
        let summary: Summary = serde_json::from_str(text).unwrap();
        let scores = summary.scores();
        assert_eq!((scores[0].name.as_str(), scores[0].is_fraction), ("test accuracy", true));
        assert!(scores[1].value.is_nan() && !scores[1].is_fraction);
    }
}
