//! The columns of the table: which value of a run each holds, and how it is formatted.

use crate::file::Reference;
use crate::measured::Measured;

/// A column of the table.
pub struct Column {
    /// Its name in CSV and JSON, with the unit.
    pub key: &'static str,
    /// The heading in tables, one string per line; the first column is headed by the score's name instead.
    pub heading: &'static [&'static str],
    /// Digits after the point.
    pub decimals: usize,
    /// The factor that a value is multiplied by for display.
    pub scale: f64,
    /// The column's value for a run.
    value: fn(&Sample<'_>) -> Option<f64>,
    /// The reference value that it is compared with.
    pub reference: fn(&Reference) -> Option<f64>,
}

/// A run, and the run that it is compared with.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    /// The run.
    pub run: &'a Measured,
    /// The single-process run of the same repetition.
    pub single: Option<&'a Measured>,
    /// The name of the score.
    pub score: Option<&'a str>,
}

const fn column(
    key: &'static str,
    heading: &'static [&'static str],
    decimals: usize,
    value: fn(&Sample<'_>) -> Option<f64>,
) -> Column {
    Column { key, heading, decimals, scale: 1.0, value, reference: |_| None }
}

const fn scaled(scale: f64, column: Column) -> Column {
    Column { scale, ..column }
}

const fn beside(reference: fn(&Reference) -> Option<f64>, column: Column) -> Column {
    Column { reference, ..column }
}

/// All columns, in their order.
pub static COLUMNS: &[Column] = &[
    beside(|of| of.score, column("score", &["score"], 4, |of| of.run.score(of.score?))),
    column("loss", &["loss"], 4, |of| of.run.summary.loss),
    beside(|of| of.step_ms, column("step_ms", &["step", "ms"], 2, |of| Some(of.run.summary.step_ms.p50))),
    column("step_vs_single", &["step ×", "single"], 2, |of| {
        ratio(of.run.summary.step_ms.p50, of.single?.summary.step_ms.p50)
    }),
    beside(
        |of| of.samples_per_second,
        column("samples_per_second", &["samples", "/s"], 0, |of| Some(of.run.samples_per_second())),
    ),
    column("samples_per_second_vs_single", &["samples/s", "× single"], 2, |of| {
        ratio(of.run.samples_per_second(), of.single?.samples_per_second())
    }),
    column("first_step_seconds", &["first", "step s"], 2, |of| Some(of.run.first_step_seconds())),
    beside(|of| of.epoch_seconds, column("epoch_seconds", &["epoch", "s"], 2, |of| of.run.epoch_seconds())),
    column("total_seconds", &["total", "s"], 1, |of| Some(of.run.total_seconds())),
    column("ps_cpus", &["ps", "CPUs"], 2, |of| of.run.utilization.as_ref()?.ps_cpus),
    column("worker_cpus", &["worker", "CPUs"], 2, |of| of.run.utilization.as_ref()?.worker_cpus),
    scaled(100.0, column("node_cpu_share", &["node", "CPU %"], 0, node_cpu_share)),
    scaled(100.0, column("wait_share", &["wait", "%"], 0, |of| of.run.wait_share())),
    scaled(1e-3, column("bytes_per_step", &["kB per", "step"], 1, |of| of.run.bytes_per_step())),
    scaled(1e-6, column("bytes_per_second", &["MB/s", "moved"], 1, |of| of.run.bytes_per_second())),
    scaled(1e-6, column("ps_memory_bytes", &["ps", "MB"], 0, |of| of.run.utilization.as_ref()?.ps_memory_bytes)),
    scaled(
        1e-6,
        column("worker_memory_bytes", &["worker", "MB"], 0, |of| of.run.utilization.as_ref()?.worker_memory_bytes),
    ),
];

/// The share of all hosts' processors that was busy, with this run or with anything else.
fn node_cpu_share(of: &Sample<'_>) -> Option<f64> {
    let nodes = &of.run.utilization.as_ref()?.nodes;
    let cores: u32 = nodes.iter().map(|node| node.cores).sum();
    (cores > 0).then(|| nodes.iter().map(|node| node.busy_cpus).sum::<f64>() / f64::from(cores))
}

fn ratio(value: f64, single: f64) -> Option<f64> {
    (single > 0.0).then_some(value / single)
}

/// A value aggregated over several runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The median: the middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The number of runs that had the value.
    pub count: usize,
}

impl Figure {
    /// Aggregates these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Self { median, min, max, count: values.len() })
    }

    /// Half the distance between the smallest and the largest value; `None` if there is only one.
    pub fn spread(&self) -> Option<f64> {
        (self.count > 1).then_some((self.max - self.min) / 2.0)
    }
}

impl Column {
    /// Aggregates the column's value over several runs.
    pub fn figure<'a>(&self, samples: impl Iterator<Item = Sample<'a>>) -> Option<Figure> {
        Figure::of(samples.filter_map(|sample| (self.value)(&sample)))
    }

    /// Formats a value for display.
    pub fn show(&self, value: f64) -> String {
        number(value * self.scale, self.decimals)
    }
}

/// Formats a number with `decimals` digits after the point and commas between thousands.
pub fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (sign, digits) = text.strip_prefix('-').map_or(("", &*text), |digits| ("-", digits));
    let (whole, rest) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && digit.is_ascii_digit() {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_and_what_is_no_number_is_left_out() {
        let odd = Figure::of([3.0, f64::NAN, 1.0, 10.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.spread()), (3.0, 1.0, 10.0, Some(4.5)));
        assert_eq!(Figure::of([1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Figure::of([1.0]).unwrap().spread(), None);
        assert_eq!(Figure::of([f64::NAN]), None);
    }

    #[test]
    fn thousands_are_apart() {
        let numbers = [0.0, 999.4, 999.6, 204_922.4, 1e6, -1234.5].map(|value| number(value, 0));
        assert_eq!(numbers, ["0", "999", "1,000", "204,922", "1,000,000", "-1,234"]);
        assert_eq!(number(1234.567, 2), "1,234.57");
    }

    #[test]
    fn no_two_columns_have_the_same_key() {
        let mut keys: Vec<&str> = COLUMNS.iter().map(|column| column.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), COLUMNS.len());
    }
}
