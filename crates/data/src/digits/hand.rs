//! The hand: picks a way to write a digit, varies it as a person would, and draws it.
//!
//! All of a sample's geometry is decided here, from the given `Randomness` alone. It must not change what a template
//! represents: every variation keeps the strokes and their order.

use super::SIDE;
use super::raster::{Dot, Finish, StrokeRaster};
use super::templates::{CLASSES, MOST_POINTS, Point, Stroke, Template};
use crate::randomness::Randomness;

/// The maximum length of a straight piece. The bounding boxes of longer pieces would be mostly empty.
const LONGEST_PIECE: f32 = 5.0;

/// The length of the straight pieces that approximate a curve.
const PIECE_OF_CURVE: f32 = 2.0;

/// The maximum number of pieces per span of a curve.
const MOST_PIECES: usize = 4;

/// Pixels kept free between the ink's centre line and the border of the image.
const MARGIN: f32 = 2.0;

/// Writes one digit into `image`.
pub(super) fn write(digit: u8, randomness: &mut Randomness, raster: &mut StrokeRaster, image: &mut [u8]) {
    let ways = CLASSES[usize::from(digit)];
    let template = ways[randomness.below(ways.len())];
    let hand = Hand { bend: Bend::draw(randomness), pen: Pen::draw(randomness) };
    let mut dots = [Dot::default(); MOST_POINTS];
    let dots = hand.follow(template, randomness, &mut dots);
    settle(dots, randomness);
    raster.clear();
    let mut rest = &dots[..];
    for stroke in template {
        let (dots, after) = rest.split_at(stroke.points().len());
        match stroke {
            Stroke::Curve(_) => draw_curve(dots, hand.pen.softness, raster),
            Stroke::Lines(_) => draw_lines(dots, hand.pen.softness, raster),
        }
        rest = after;
    }
    raster.develop(hand.pen.finish(randomness), randomness, image);
}

/// The handwriting of one person on one day.
struct Hand {
    bend: Bend,
    pen: Pen,
}

impl Hand {
    /// Applies the bend to the points of a template, and adds tremor.
    fn follow<'a>(
        &self,
        template: Template,
        randomness: &mut Randomness,
        dots: &'a mut [Dot; MOST_POINTS],
    ) -> &'a mut [Dot] {
        let points = template.iter().flat_map(|stroke| stroke.points());
        let mut count = 0;
        let mut last = (Point::default(), Dot::default());
        for (&point, dot) in points.zip(dots.iter_mut()) {
            // A stroke that continues another must stay joined to it.
            if count == 0 || last.0 != point {
                let (x, y) = self.bend.apply(point);
                let placed = Dot {
                    x: x + randomness.normal(self.pen.unsteadiness),
                    y: y + randomness.normal(self.pen.unsteadiness),
                    radius: self.pen.radius * (1.0 + randomness.normal(self.pen.pressure)),
                };
                last = (point, placed);
            }
            *dot = last.1;
            count += 1;
        }
        &mut dots[..count]
    }
}

/// The smooth part of the variation: an affine map after a low-order polynomial one. It enlarges heads relative to
/// feet, rounds bows and makes stems crooked.
struct Bend {
    across: [f32; 5],
    down: [f32; 5],
    affine: [f32; 4],
}

impl Bend {
    fn draw(randomness: &mut Randomness) -> Self {
        let across = [0.9, 0.9, 0.7, 0.6, 0.6].map(|size| randomness.normal(size));
        let down = [0.8, 0.8, 0.8, 0.6, 0.6].map(|size| randomness.normal(size));
        // The tangent of half the angle gives its sine and cosine without a platform's `sin`.
        let half = randomness.normal(0.075);
        let (cosine, sine) = ((1.0 - half * half) / (1.0 + half * half), 2.0 * half / (1.0 + half * half));
        let slant = randomness.normal(0.22) - 0.12;
        let width = randomness.between(0.72, 1.2);
        let height = randomness.between(0.82, 1.06);
        Self {
            across,
            down,
            affine: [cosine * width, (cosine * slant - sine) * height, sine * width, (sine * slant + cosine) * height],
        }
    }

    fn apply(&self, (x, y): Point) -> (f32, f32) {
        let (u, v) = (x / 7.0, y / 10.0);
        let terms = [v * v, u * v, u * u, v * v * v, u * v * v];
        let sum = |weights: &[f32; 5]| -> f32 { weights.iter().zip(terms).map(|(weight, term)| weight * term).sum() };
        let (x, y) = (x + sum(&self.across), y + sum(&self.down));
        let [xx, xy, yx, yy] = self.affine;
        (xx * x + xy * y, yx * x + yy * y)
    }
}

/// The pen, and how steadily it is held.
struct Pen {
    radius: f32,
    softness: f32,
    /// Standard deviation of each point of a template from its proper place, in pixels.
    unsteadiness: f32,
    /// Standard deviation of the radius from point to point, relative to it.
    pressure: f32,
}

impl Pen {
    fn draw(randomness: &mut Randomness) -> Self {
        Self {
            radius: randomness.between(0.75, 1.8),
            softness: randomness.between(0.6, 1.1),
            unsteadiness: randomness.between(0.15, 0.9),
            pressure: randomness.between(0.03, 0.15),
        }
    }

    fn finish(&self, randomness: &mut Randomness) -> Finish {
        Finish {
            softness: self.softness,
            ink: randomness.between(0.8, 1.0),
            grain: randomness.between(0.0, 0.15),
            specks: if randomness.chance(0.35) { randomness.between(0.0, 0.15) } else { 0.0 },
        }
    }
}

/// Moves the digit to about the middle of the image, and shrinks it if it would not fit.
fn settle(dots: &mut [Dot], randomness: &mut Randomness) {
    const MIDDLE: f32 = (SIDE - 1) as f32 / 2.0;
    const ROOM: f32 = SIDE as f32 - 1.0 - 2.0 * MARGIN;
    let (left, right) = range(dots.iter().map(|dot| dot.x));
    let (top, bottom) = range(dots.iter().map(|dot| dot.y));
    let (width, height) = (right - left, bottom - top);
    let scale = (ROOM / width.max(height)).min(1.0);
    let mut offset = |size: f32| {
        let free = ((ROOM - size * scale) / 2.0).max(0.0);
        MIDDLE + randomness.normal(1.1).clamp(-free, free)
    };
    let (x, y) = (offset(width), offset(height));
    for dot in dots {
        dot.x = (dot.x - (left + right) / 2.0) * scale + x;
        dot.y = (dot.y - (top + bottom) / 2.0) * scale + y;
    }
}

fn range(values: impl Iterator<Item = f32>) -> (f32, f32) {
    values.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

fn draw_lines(dots: &[Dot], softness: f32, raster: &mut StrokeRaster) {
    for ends in dots.windows(2) {
        let (from, to) = (ends[0], ends[1]);
        let pieces = (distance(from, to) / LONGEST_PIECE) as usize + 1;
        let mut last = from;
        for piece in 1..=pieces {
            let part = piece as f32 / pieces as f32;
            let next = mix([from, to], [1.0 - part, part]);
            raster.segment(last, next, softness);
            last = next;
        }
    }
}

/// Draws a Catmull-Rom spline, which passes through all of the dots.
fn draw_curve(dots: &[Dot], softness: f32, raster: &mut StrokeRaster) {
    let beyond = |end: Dot, inner: Dot| mix([end, inner], [2.0, -1.0]);
    for span in 0..dots.len() - 1 {
        let (from, to) = (dots[span], dots[span + 1]);
        let before = if span == 0 { beyond(from, to) } else { dots[span - 1] };
        let after = dots.get(span + 2).copied().unwrap_or_else(|| beyond(to, from));
        let pieces = ((distance(from, to) / PIECE_OF_CURVE) as usize + 1).min(MOST_PIECES);
        let mut last = from;
        for piece in 1..=pieces {
            let t = piece as f32 / pieces as f32;
            let (t2, t3) = (t * t, t * t * t);
            let weights = [
                0.5 * (2.0 * t2 - t3 - t),
                0.5 * (2.0 - 5.0 * t2 + 3.0 * t3),
                0.5 * (t + 4.0 * t2 - 3.0 * t3),
                0.5 * (t3 - t2),
            ];
            let next = mix([before, from, to, after], weights);
            raster.segment(last, next, softness);
            last = next;
        }
    }
}

fn distance(from: Dot, to: Dot) -> f32 {
    let (x, y) = (to.x - from.x, to.y - from.y);
    (x * x + y * y).sqrt()
}

/// The weighted sum of some dots.
fn mix<const N: usize>(dots: [Dot; N], weights: [f32; N]) -> Dot {
    let mut sum = Dot::default();
    for (dot, weight) in dots.into_iter().zip(weights) {
        sum.x += dot.x * weight;
        sum.y += dot.y * weight;
        sum.radius += dot.radius * weight;
    }
    sum
}
