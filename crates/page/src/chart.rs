//! The positions of a curve's points in a chart, and the numbers on its axes.
//!
//! Positions are in percent of the plot, so that one drawing fits every width. The script repeats the linear mapping
//! between two statuses, but scales and axes are chosen only here.

use std::fmt::Write;

use serde::Serialize;

use crate::curve::Curve;
use crate::figures::{count, value};

/// A curve whose values span more than this factor is drawn on a logarithmic scale.
const LOGARITHMIC: f64 = 30.0;
/// The approximate number of ticks on an axis.
const TICKS: f64 = 5.0;

/// A curve with its axes, ready to be drawn.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Chart {
    pub name: String,
    /// The last value.
    pub latest: String,
    /// The curve in words.
    pub caption: String,
    pub scale: Scale,
    pub x_ticks: Vec<Tick>,
    pub y_ticks: Vec<Tick>,
    pub points: Vec<(u64, Option<f64>)>,
    /// Whether values are shown as percentages.
    pub fraction: bool,
}

/// The values at the edges of a plot.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(crate) struct Scale {
    pub left: f64,
    pub right: f64,
    pub bottom: f64,
    pub top: f64,
    pub logarithmic: bool,
}

/// A labelled position on an axis.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Tick {
    /// The position in percent from the left or top, including the percent sign: an attribute of SVG.
    pub at: String,
    pub label: String,
}

impl Chart {
    pub(crate) fn new(curve: &Curve) -> Self {
        let mut points: Vec<(u64, Option<f64>)> =
            curve.points().iter().map(|(x, y)| (*x, y.map(five_digits))).collect();
        let name = crate::figures::plain(&curve.name);
        let Some(last) = curve.last() else {
            return Self { name, latest: "–".into(), caption: "no values yet".into(), ..Self::default() };
        };
        let last_value = last.1.is_finite().then_some(last.1);
        if points.is_empty() {
            points.push((last.0, last_value.map(five_digits)));
        }
        let finite: Vec<(u64, f64)> = points.iter().filter_map(|(x, y)| Some((*x, (*y)?))).collect();
        let (scale, y_values) = scale(&points, &finite);
        // Points are means, and the last value may be in none yet.
        let values = || finite.iter().map(|(_, y)| *y).chain(last_value);
        let extent = match (values().reduce(f64::min), values().reduce(f64::max)) {
            (Some(low), Some(high)) => format!("; between {} and {}", curve.shown(low), curve.shown(high)),
            _ => String::new(),
        };
        let caption = format!("{} at step {}{extent}", curve.shown(last.1), count(last.0));
        let x_ticks = round_values(scale.left, scale.right, TICKS).into_iter().filter(|x| x.fract() == 0.0);
        let x_tick = |x: f64| Tick { at: percent(scale.across(x)), label: count(x as u64) };
        let y_tick = |y: &f64| Tick { at: percent(scale.down(*y)), label: axis_label(*y, curve.is_fraction) };
        Self {
            name,
            latest: curve.shown(last.1),
            caption,
            x_ticks: x_ticks.map(x_tick).collect(),
            y_ticks: y_values.iter().map(y_tick).collect(),
            scale,
            points,
            fraction: curve.is_fraction,
        }
    }

    /// The curve as the commands of an SVG path, with gaps where values are missing.
    pub(crate) fn path(&self) -> String {
        path(self.points.iter().map(|(x, y)| (self.scale.across(*x as f64), y.map(|y| self.scale.down(y)))))
    }
}

impl Scale {
    /// The position from the left, in percent.
    pub(crate) fn across(&self, x: f64) -> f64 {
        if self.right > self.left { (x - self.left) / (self.right - self.left) * 100.0 } else { 50.0 }
    }

    /// The position from the top, in percent.
    pub(crate) fn down(&self, y: f64) -> f64 {
        let place = |y: f64| if self.logarithmic { y.max(f64::MIN_POSITIVE).ln() } else { y };
        let (bottom, top) = (place(self.bottom), place(self.top));
        if top > bottom { (top - place(y)) / (top - bottom) * 100.0 } else { 50.0 }
    }
}

/// The scale that holds all points, and the values of the ticks on its vertical axis.
fn scale(points: &[(u64, Option<f64>)], finite: &[(u64, f64)]) -> (Scale, Vec<f64>) {
    let (left, right) = (points[0].0 as f64, points[points.len() - 1].0 as f64);
    let low = finite.iter().map(|(_, y)| *y).reduce(f64::min).unwrap_or(0.0);
    let high = finite.iter().map(|(_, y)| *y).reduce(f64::max).unwrap_or(1.0);
    if low > 0.0 && high / low > LOGARITHMIC {
        let scale = Scale { left, right, bottom: low, top: high, logarithmic: true };
        return (scale, powers_of_ten(low, high));
    }
    // Leaves some room above and below a constant.
    let room = if high > low { 0.0 } else { (high.abs() * 0.1).max(1e-6) };
    let ticks = round_values(low - room, high + room, TICKS);
    let step = if ticks.len() > 1 { ticks[1] - ticks[0] } else { room.max(high - low) };
    let bottom = (low - room).min((low / step).floor() * step);
    let top = (high + room).max((high / step).ceil() * step);
    (Scale { left, right, bottom, top, logarithmic: false }, round_values(bottom, top, TICKS))
}

/// The powers of ten between two numbers: thinned out if there are many, with their multiples by 2 and 5 if there are
/// few.
fn powers_of_ten(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().floor() as i32);
    let every = (f64::from(last - first) / TICKS).ceil().max(1.0) as usize;
    let digits: &[f64] = if last - first <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = (first..=last).step_by(every).map(|power| 10f64.powi(power));
    let marks = powers.flat_map(|power| digits.iter().map(move |digit| digit * power));
    marks.filter(|mark| (low..=high).contains(mark)).collect()
}

/// About `many` round numbers between `low` and `high`.
fn round_values(low: f64, high: f64, many: f64) -> Vec<f64> {
    let rough = (high - low) / many;
    if !rough.is_finite() || rough <= 0.0 {
        return vec![low];
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step - 1e-6).ceil();
    let last = (high / step + 1e-6).floor();
    (0..=(last - first).clamp(0.0, 20.0) as u32).map(|index| (first + f64::from(index)) * step).collect()
}

/// A small path of recent values, on a scale from 0 to `top`.
pub(crate) fn spark_path(values: &[f32], top: f64) -> String {
    let last = values.len().saturating_sub(1).max(1) as f64;
    let down = |value: f32| if top > 0.0 { 100.0 - f64::from(value).clamp(0.0, top) / top * 100.0 } else { 100.0 };
    path(values.iter().enumerate().map(|(index, value)| (index as f64 / last * 100.0, Some(down(*value)))))
}

fn path(points: impl Iterator<Item = (f64, Option<f64>)>) -> String {
    let (mut commands, mut pen_down) = (String::new(), false);
    for (x, y) in points {
        if let Some(y) = y {
            let command = if pen_down { 'L' } else { 'M' };
            let _ = write!(commands, "{command}{} {}", tenths(x), tenths(y));
        }
        pen_down = y.is_some();
    }
    commands
}

fn percent(number: f64) -> String {
    format!("{}%", tenths(number))
}

/// Rounds to tenths, which is precise enough for a screen.
fn tenths(number: f64) -> f64 {
    // Adding zero turns -0 into 0.
    (number * 10.0).round() / 10.0 + 0.0
}

/// A value on the vertical axis.
fn axis_label(number: f64, is_fraction: bool) -> String {
    if is_fraction { format!("{}%", axis_value(number * 100.0)) } else { axis_value(number) }
}

/// A number on an axis, without superfluous digits.
fn axis_value(number: f64) -> String {
    let text = value(number);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

fn five_digits(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let scale = 10f64.powi(4 - number.abs().log10().floor() as i32);
    if scale.is_finite() && scale > 0.0 { (number * scale).round() / scale } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[f64]) -> Chart {
        let mut curve = Curve::new("loss");
        values.iter().enumerate().for_each(|(step, value)| curve.push(step as u64 * 10, *value));
        Chart::new(&curve)
    }

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn axes_show_round_numbers() {
        let chart = chart(&[0.93, 0.5, 0.25, 0.11]);
        assert_eq!(labels(&chart.y_ticks), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(&chart.x_ticks), ["0", "10", "20", "30"]);
        assert_eq!(chart.caption, "0.1100 at step 30; between 0.1100 and 0.9300");
    }

    #[test]
    fn a_caption_tells_the_latest_measurement_although_points_are_means() {
        let mut values = vec![0.5; 500];
        values.push(0.25);
        assert_eq!(chart(&values).caption, "0.2500 at step 5,000; between 0.2500 and 0.5000");
        assert_eq!(chart(&values).latest, "0.2500");
    }

    #[test]
    fn a_curve_over_orders_of_magnitude_is_logarithmic() {
        let chart = chart(&[200.0, 10.0, 0.5]);
        assert!(chart.scale.logarithmic);
        assert_eq!(labels(&chart.y_ticks), ["1", "10", "100"]);
        assert_eq!(labels(&super::tests::chart(&[1.7, 0.3, 0.04]).y_ticks), ["0.05", "0.1", "0.2", "0.5", "1"]);
        assert!(chart.path().starts_with("M0 0L50 50"), "{}", chart.path());
    }

    #[test]
    fn what_is_not_a_number_leaves_a_gap() {
        let chart = chart(&[1.0, f64::NAN, 0.0]);
        assert_eq!(chart.path(), "M0 0M100 100");
    }

    #[test]
    fn no_points_one_point_and_a_constant_can_be_drawn() {
        assert_eq!((chart(&[]).path().as_str(), chart(&[]).caption.as_str()), ("", "no values yet"));
        assert_eq!(chart(&[3.0]).path(), "M50 50");
        assert!(chart(&[3.0, 3.0]).path().starts_with("M0 "), "{:?}", chart(&[3.0, 3.0]));
        assert_eq!(chart(&[f64::NAN]).path(), "");
        assert_eq!(chart(&[0.0, 0.0]).path(), "M0 50L100 50");
    }

    proptest::proptest! {
        #[test]
        fn every_point_lies_in_the_plot(values in proptest::collection::vec(-1e30f64..1e30, 1..50)) {
            let chart = chart(&values);
            for (x, y) in &chart.points {
                proptest::prop_assert!((-0.01..=100.01).contains(&chart.scale.across(*x as f64)));
                let down = chart.scale.down(y.unwrap());
                proptest::prop_assert!((-0.01..=100.01).contains(&down), "{down} {:?}", chart.scale);
            }
            proptest::prop_assert!(chart.y_ticks.len() <= 12);
        }
    }
}
