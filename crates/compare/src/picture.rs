//! The picture of a comparison: loss against time and loss against samples, one line per layout.
//!
//! It is drawn by `plotters`, as SVG and, with [`bitmap`], as PNG. System fonts are not needed: SVG viewers bring their
//! own, and the bitmap has a built-in one.

mod bitmap;
mod curve;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use thiserror::Error;

use crate::comparison::Comparison;
use bitmap::Bitmap;
use curve::{Axis, Curve};

/// The size of the picture, in SVG units.
const SIZE: (u32, u32) = (1000, 400);
const LEGEND_LINE: u32 = 24;
/// PNG pixels per SVG unit.
const PIXELS: u32 = 2;
/// A range of losses wider than this is drawn on a logarithmic scale.
const WIDE: f64 = 20.0;

/// Colours that people with any kind of colour vision can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(150, 140, 20),
];
const TEXT: RGBColor = RGBColor(50, 50, 60);
const GRID: RGBColor = RGBColor(225, 225, 230);

/// A picture that could not be drawn.
#[derive(Debug, Error)]
#[error("cannot draw the picture: {0}")]
pub struct PictureError(String);

/// Draws the picture as SVG; `None` if no run has a curve.
///
/// # Errors
/// Fails if the picture cannot be drawn.
pub fn svg(comparison: &Comparison) -> Result<Option<String>, PictureError> {
    let Some(picture) = Picture::of(comparison, 1) else { return Ok(None) };
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, picture.size()).into_drawing_area();
    picture.draw(&area)?;
    drop(area);
    Ok(Some(text))
}

/// Draws the picture as PNG; `None` if no run has a curve.
///
/// # Errors
/// Fails if the picture cannot be drawn.
pub fn png(comparison: &Comparison) -> Result<Option<Vec<u8>>, PictureError> {
    let Some(picture) = Picture::of(comparison, PIXELS) else { return Ok(None) };
    let mut bitmap = Bitmap::new(picture.size());
    let area = bitmap.by_ref().into_drawing_area();
    picture.draw(&area)?;
    drop(area);
    bitmap.encode().map(Some).map_err(|error| PictureError(error.to_string()))
}

/// Whether any run has a curve to draw.
pub fn has_picture(comparison: &Comparison) -> bool {
    Picture::of(comparison, 1).is_some()
}

/// The contents of the picture and its scale.
struct Picture {
    title: String,
    lines: Vec<Line>,
    /// The factor for all lengths.
    scale: u32,
}

struct Line {
    name: String,
    style: LineStyle,
    by_time: Curve,
    by_samples: Curve,
}

#[derive(Clone, Copy)]
struct LineStyle {
    colour: RGBColor,
    is_dashed: bool,
}

type Area<'a, B> = DrawingArea<B, plotters::coord::Shift>;

impl Picture {
    fn of(comparison: &Comparison, scale: u32) -> Option<Self> {
        let mut lines = Vec::new();
        for (index, row) in comparison.rows.iter().enumerate() {
            let style =
                LineStyle { colour: COLOURS[index % COLOURS.len()], is_dashed: (index / COLOURS.len()) % 2 == 1 };
            let curve = |axis| Curve::of(row.finished().map(|run| &run.history), axis);
            if let (Some(by_time), Some(by_samples)) = (curve(Axis::Time), curve(Axis::Samples)) {
                lines.push(Line { name: row.name.clone(), style, by_time, by_samples });
            }
        }
        (!lines.is_empty()).then(|| Self { title: comparison.title.clone(), lines, scale })
    }

    fn size(&self) -> (u32, u32) {
        let (width, height) = SIZE;
        let legend = self.legend_lines() as u32 * LEGEND_LINE + LEGEND_LINE / 2;
        (width * self.scale, (height + legend) * self.scale)
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<'_, B>) -> Result<(), PictureError> {
        self.try_draw(area).map_err(|error| PictureError(error.to_string()))
    }

    fn try_draw<B: DrawingBackend>(&self, area: &Area<'_, B>) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let (panels, legend) = area.split_vertically(SIZE.1 * self.scale);
        let title = self.font(15).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Top));
        panels.draw(&Text::new(self.title.clone(), (self.units(SIZE.0 / 2), self.units(10)), title))?;
        let panels = panels.margin(self.units(30), 0, 0, 0);
        let (left, right) = panels.split_horizontally(SIZE.0 * self.scale / 2);
        self.panel(&left, Axis::Time, |line| &line.by_time)?;
        self.panel(&right, Axis::Samples, |line| &line.by_samples)?;
        self.legend(&legend)?;
        area.present()
    }

    fn panel<B: DrawingBackend>(
        &self,
        area: &Area<'_, B>,
        axis: Axis,
        curve: fn(&Line) -> &Curve,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let curves = || self.lines.iter().map(|line| (line.style, curve(line)));
        let last = curves().map(|(_, curve)| curve.end()).fold(0.0, f64::max);
        let unit = axis.unit(last);
        let (low, high) = curves()
            .map(|(_, curve)| curve.range())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (own_low, own_high)| {
                (low.min(own_low), high.max(own_high))
            });
        let x = 0.0..(last / unit.size).max(f64::MIN_POSITIVE);
        let curves: Vec<(LineStyle, Curve)> = curves().map(|(style, curve)| (style, curve.scaled(unit.size))).collect();
        if low > 0.0 && high / low > WIDE {
            let y = (low / 1.1..high * 1.1).log_scale();
            return self.chart(area, &curves, &unit.label, x, y);
        }
        let margin = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-12);
        let bottom = if low >= 0.0 && low < high / 3.0 { 0.0 } else { low - margin };
        self.chart(area, &curves, &unit.label, x, bottom..high + margin)
    }

    fn chart<B, Y, R>(
        &self,
        area: &Area<'_, B>,
        curves: &[(LineStyle, Curve)],
        label: &str,
        x: std::ops::Range<f64>,
        y: Y,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>
    where
        B: DrawingBackend,
        Y: plotters::coord::ranged1d::AsRangedCoord<CoordDescType = R, Value = f64>,
        R: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .margin_left(self.units(8))
            .margin_right(self.units(24))
            .margin_top(self.units(6))
            .x_label_area_size(self.units(48))
            .y_label_area_size(self.units(62))
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(label)
            .y_desc("training loss")
            .x_labels(6)
            .y_labels(7)
            .x_label_formatter(&|value| tick(*value))
            .y_label_formatter(&|value| tick(*value))
            .label_style(self.font(12))
            .axis_desc_style(self.font(13))
            .axis_style(TEXT.stroke_width(self.scale))
            .bold_line_style(GRID.stroke_width(self.scale))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (style, curve) in curves {
            if let Some(band) = curve.band() {
                chart.draw_series(std::iter::once(Polygon::new(band, style.colour.mix(0.15).filled())))?;
            }
        }
        for (style, curve) in curves {
            let stroke = style.colour.stroke_width(2 * self.scale);
            let points = curve.points();
            if style.is_dashed {
                let (dash, gap) = (self.units(6), self.units(4));
                chart.draw_series(DashedLineSeries::new(points, dash as u32, gap as u32, stroke))?;
            } else {
                chart.draw_series(LineSeries::new(points, stroke))?;
            }
        }
        Ok(())
    }

    fn legend<B: DrawingBackend>(&self, area: &Area<'_, B>) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let text = self.font(13).into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
        for (line, (column, row)) in self.lines.iter().zip(self.legend_places()) {
            let (left, middle) = (self.units(column), self.units(row * LEGEND_LINE + LEGEND_LINE / 2));
            let stroke = line.style.colour.stroke_width(3 * self.scale);
            let (from, to) = ((left, middle), (left + self.units(28), middle));
            if line.style.is_dashed {
                let halves = [(from.0, from.0 + self.units(11)), (to.0 - self.units(11), to.0)];
                for (from, to) in halves {
                    area.draw(&PathElement::new([(from, middle), (to, middle)], stroke))?;
                }
            } else {
                area.draw(&PathElement::new([from, to], stroke))?;
            }
            area.draw(&Text::new(line.name.clone(), (left + self.units(36), middle), text.clone()))?;
        }
        Ok(())
    }

    /// The position of each legend entry: its left edge and its row.
    fn legend_places(&self) -> Vec<(u32, u32)> {
        const LEFT: u32 = 70;
        // An upper bound for the width of a letter in any font of this size.
        let widths = self.lines.iter().map(|line| 36 + 8 * line.name.chars().count() as u32 + 28);
        let (mut left, mut row) = (LEFT, 0);
        widths
            .map(|width| {
                if left > LEFT && left + width > SIZE.0 {
                    (left, row) = (LEFT, row + 1);
                }
                let place = (left, row);
                left += width;
                place
            })
            .collect()
    }

    fn legend_lines(&self) -> usize {
        self.legend_places().last().map_or(0, |(_, row)| *row as usize + 1)
    }

    fn units(&self, units: u32) -> i32 {
        (units * self.scale) as i32
    }

    fn font(&self, size: u32) -> TextStyle<'static> {
        // `plotters` takes the em size to be the height of a whole line.
        ("sans-serif", f64::from(size * self.scale) * 1.24).into_font().color(&TEXT)
    }
}

/// Formats a number for an axis, with no more digits than necessary.
fn tick(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    if rounded == 0.0 { "0".to_owned() } else { rounded.to_string() }
}
