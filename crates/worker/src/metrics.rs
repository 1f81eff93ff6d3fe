//! The scores of a network. Each has a name and a kind, so that nobody has to guess from the name how to show it.

use std::collections::BTreeMap;
use std::fmt;

use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

/// Returns the fraction of rows whose highest score is that of their class.
pub fn accuracy(scores: Tensor<2>, classes: Tensor<1, Int>) -> f64 {
    let rows = scores.dims()[0].max(1) as f64;
    let right = scores.argmax(1).squeeze_dim::<1>(1).equal(classes).int().sum();
    right.into_data().iter::<f64>().sum::<f64>() / rows
}

/// The kind of a score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// A fraction from 0 to 1, such as an accuracy; shown as a percentage.
    Fraction,
    /// A mean loss.
    Loss,
    /// The exponential of a mean cross-entropy.
    Perplexity,
    /// Any other number.
    #[default]
    Number,
}

impl MetricKind {
    /// Returns the score that a mean loss is shown as.
    pub fn of_loss(self, loss: f64) -> f64 {
        if self == Self::Perplexity { loss.exp() } else { loss }
    }
}

/// A score.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// The name, in lower case with underscores.
    pub name: String,
    /// The kind.
    pub kind: MetricKind,
    /// The value.
    pub value: f64,
}

/// The form that users read: `test accuracy 97.51%`.
impl fmt::Display for Metric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.replace('_', " ");
        match self.kind {
            MetricKind::Fraction => write!(formatter, "{name} {:.2}%", self.value * 100.0),
            _ => write!(formatter, "{name} {:.4}", self.value),
        }
    }
}

/// Scores, in the order they should be shown.
///
/// In JSON they are two maps, so that a reader finds a score by its name: `metrics` with the values, and `metric_kinds`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "Maps", from = "Maps")]
pub struct Metrics(Vec<Metric>);

impl Metrics {
    /// Makes an empty list of scores.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fraction, such as an accuracy.
    #[must_use]
    pub fn fraction(self, name: &str, value: f64) -> Self {
        self.with(name, MetricKind::Fraction, value)
    }

    /// Adds a mean loss. The first is assumed to be comparable with the training loss: TensorBoard shows both in one
    /// chart.
    #[must_use]
    pub fn loss(self, name: &str, value: f64) -> Self {
        self.with(name, MetricKind::Loss, value)
    }

    /// Adds a perplexity: the exponential of a mean cross-entropy.
    #[must_use]
    pub fn perplexity(self, name: &str, value: f64) -> Self {
        self.with(name, MetricKind::Perplexity, value)
    }

    /// Adds any other number.
    #[must_use]
    pub fn number(self, name: &str, value: f64) -> Self {
        self.with(name, MetricKind::Number, value)
    }

    /// Adds a score of any kind.
    #[must_use]
    pub fn with(mut self, name: &str, kind: MetricKind, value: f64) -> Self {
        self.0.push(Metric { name: name.to_owned(), kind, value });
        self
    }

    /// Returns the value of a score by its name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|metric| metric.name == name).map(|metric| metric.value)
    }

    /// Iterates over all scores in order.
    pub fn iter(&self) -> impl Iterator<Item = &Metric> {
        self.0.iter()
    }
}

/// The form that users read, separated by commas.
impl fmt::Display for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.iter().map(ToString::to_string).collect();
        formatter.write_str(&texts.join(", "))
    }
}

/// The serialised form of scores.
#[derive(Serialize, Deserialize)]
struct Maps {
    metrics: Values,
    #[serde(default)]
    metric_kinds: BTreeMap<String, MetricKind>,
}

impl From<Metrics> for Maps {
    fn from(metrics: Metrics) -> Self {
        let metric_kinds = metrics.iter().map(|metric| (metric.name.clone(), metric.kind)).collect();
        Self {
            metrics: Values(metrics.0.into_iter().map(|metric| (metric.name, metric.value)).collect()),
            metric_kinds,
        }
    }
}

impl From<Maps> for Metrics {
    fn from(Maps { metrics, metric_kinds }: Maps) -> Self {
        let kind = |name: &str| metric_kinds.get(name).copied().unwrap_or_default();
        let metric = |(name, value): (String, f64)| Metric { kind: kind(&name), name, value };
        Self(metrics.0.into_iter().map(metric).collect())
    }
}

/// A map that keeps its order. A value that is not finite is `null` in JSON.
struct Values(Vec<(String, f64)>);

impl Serialize for Values {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Values;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map of scores")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Option<f64>>()? {
                    values.push((name, value.unwrap_or(f64::NAN)));
                }
                Ok(Values(values))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::new()
            .fraction("test_accuracy", 0.975)
            .perplexity("dev_perplexity", 3.25)
            .number("w", -2.0)
            .loss("a", 0.5)
    }

    #[test]
    fn scores_are_shown_by_their_kind_and_not_by_their_name() {
        assert_eq!(metrics().to_string(), "test accuracy 97.50%, dev perplexity 3.2500, w -2.0000, a 0.5000");
        assert_eq!(
            Metrics::new().fraction("recall", 0.5).number("accuracy", 0.5).to_string(),
            "recall 50.00%, accuracy 0.5000"
        );
    }

    #[test]
    fn an_accuracy_is_the_fraction_of_rows_that_are_right() {
        let device = burn::tensor::Device::flex();
        let scores =
            Tensor::<2>::from_data([[0.1, 0.9, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0], [3.0, 1.0, 2.0]], &device);
        assert_eq!(accuracy(scores, Tensor::from_data([1, 0, 1, 0], &device)), 0.75);
    }

    #[test]
    fn json_has_the_values_by_name_and_keeps_order_and_kinds() {
        #[derive(Serialize, Deserialize, PartialEq, Debug)]
        struct Outer {
            step: u64,
            #[serde(flatten)]
            metrics: Metrics,
        }
        let outer = Outer { step: 3, metrics: metrics() };
        let text = serde_json::to_string(&outer).unwrap();
        assert!(
            text.starts_with(r#"{"step":3,"metrics":{"test_accuracy":0.975,"dev_perplexity":3.25,"w":-2.0"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Outer>(&text).unwrap(), outer);
    }

    #[test]
    fn scores_without_kinds_and_scores_that_are_no_numbers_can_be_read() {
        let read: Metrics = serde_json::from_str(r#"{"metrics":{"x":1.5,"y":null}}"#).unwrap();
        assert_eq!(read.iter().next(), Some(&Metric { name: "x".into(), kind: MetricKind::Number, value: 1.5 }));
        assert!(read.get("y").unwrap().is_nan());
    }
}
