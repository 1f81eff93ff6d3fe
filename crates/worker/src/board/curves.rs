//! Which curve each score belongs to.

use windlass_tensorboard::tag;

use crate::event::Report;
use crate::metrics::{MetricKind, Metrics};

/// The scores of an evaluation, by the tags of their curves, grouped by kind. The first loss shares the chart of the
/// training loss.
pub fn of_scores(metrics: &Metrics) -> Vec<(String, f64)> {
    let first = metrics.iter().position(|metric| metric.kind == MetricKind::Loss);
    let curve = |(index, metric): (usize, &crate::metrics::Metric)| {
        let tag = if Some(index) == first { tag::LOSS.to_owned() } else { in_group(metric.kind, &metric.name) };
        (tag, metric.value)
    };
    metrics.iter().enumerate().map(curve).collect()
}

/// The held-out scores of a report. They use the training loss, so their mean shares its chart.
pub(crate) fn of_report(report: &Report) -> Vec<(String, f64)> {
    let losses: Vec<f64> = report.held_out.iter().filter_map(|part| part.loss).collect();
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    let all = (!losses.is_empty()).then(|| (tag::LOSS.to_owned(), mean));
    let scores = report.scores();
    let parts = scores.iter().map(|metric| (in_group(metric.kind, &metric.name), metric.value));
    all.into_iter().chain(parts).collect()
}

fn in_group(kind: MetricKind, name: &str) -> String {
    let group = match kind {
        MetricKind::Loss => "loss",
        MetricKind::Perplexity => "perplexity",
        MetricKind::Fraction | MetricKind::Number => "score",
    };
    format!("{group}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::HeldOut;

    #[test]
    fn the_first_loss_shares_the_chart_of_the_training_loss_and_others_are_grouped_by_kind() {
        let metrics = Metrics::new()
            .fraction("test_accuracy", 0.5)
            .loss("test_loss", 2.0)
            .loss("loss_of_clean_images", 1.0)
            .perplexity("dev_perplexity", 3.0)
            .number("bleu", 30.0);
        let curves = of_scores(&metrics);
        let tags: Vec<&str> = curves.iter().map(|(tag, _)| tag.as_str()).collect();
        let expected = [
            "score/test_accuracy",
            "loss/loss",
            "loss/loss_of_clean_images",
            "perplexity/dev_perplexity",
            "score/bleu",
        ];
        assert_eq!(tags, expected);
        assert_eq!(curves[1].1, 2.0);
    }

    #[test]
    fn a_report_has_the_mean_loss_of_the_parts_that_are_there() {
        let held_out = [("bucket 0", Some(1.0)), ("bucket 1", None), ("bucket 2", Some(3.0))];
        let held_out = held_out.map(|(name, loss)| HeldOut { name: name.into(), loss });
        let mut report = Report {
            worker: 0,
            local_step: 1,
            global_step: 1,
            learning_rate: 0.1,
            step_ms: None,
            samples_per_second: None,
            loss: 2.0,
            score: "perplexity".into(),
            kind: MetricKind::Perplexity,
            held_out: held_out.to_vec(),
            warning: None,
        };
        let curves = of_report(&report);
        assert_eq!(curves[0], ("loss/loss".to_owned(), 2.0));
        assert_eq!(curves[1], ("perplexity/held_out_bucket_0_perplexity".to_owned(), 1.0_f64.exp()));
        assert_eq!(curves.len(), 3);
        report.held_out.clear();
        assert_eq!(of_report(&report), []);
    }
}
