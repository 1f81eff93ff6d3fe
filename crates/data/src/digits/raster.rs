//! Converts strokes to pixels: segments are merged into a field of depths inside the ink.
//!
//! Only pixels near a segment are touched, eight at a time. This module must not know what is drawn, and draws no
//! random numbers other than those of the paper's grain.

use super::{IMAGE_SIZE, SIDE};
use crate::randomness::Randomness;

/// Pixels processed at once: a whole number of vector registers on every machine.
const LANES: usize = 8;

/// The columns of a block, counted from its first.
const COLUMNS: [f32; LANES] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

/// A row of the field, wide enough for a block of lanes to start in the last column.
const STRIDE: usize = SIDE + LANES;

/// A depth farther outside than any pen reaches.
const OUTSIDE: f32 = -100.0;

/// A position on the canvas in pixels, and the radius of the pen there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Dot {
    pub(super) x: f32,
    pub(super) y: f32,
    pub(super) radius: f32,
}

/// The appearance of ink and paper.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    /// Pixels to either side of a stroke's edge over which it fades.
    pub(super) softness: f32,
    /// Brightness of full ink, 0 to 1.
    pub(super) ink: f32,
    /// The largest share of the ink that grain takes away.
    pub(super) grain: f32,
    /// Brightest speck on the paper, 0 to 1.
    pub(super) specks: f32,
}

/// The image being drawn; cleared and reused for every image.
pub(super) struct StrokeRaster {
    /// For every pixel, its depth inside the edge of the nearest stroke; negative outside.
    depth: [f32; STRIDE * SIDE],
}

impl StrokeRaster {
    pub(super) fn new() -> Self {
        Self { depth: [OUTSIDE; STRIDE * SIDE] }
    }

    pub(super) fn clear(&mut self) {
        self.depth.fill(OUTSIDE);
    }

    /// Draws a straight stroke with round ends. Its radius changes from one dot's to the other's.
    pub(super) fn segment(&mut self, from: Dot, to: Dot, softness: f32) {
        let reach = larger(from.radius, to.radius) + softness;
        let Some((top, bottom)) = pixels_between(from.y, to.y, reach) else {
            return;
        };
        let Some((left, right)) = pixels_between(from.x, to.x, reach) else {
            return;
        };
        let (dx, dy) = (to.x - from.x, to.y - from.y);
        let widening = to.radius - from.radius;
        // A segment of zero length is a dot: `along` stays 0.
        let per_square = 1.0 / larger(dx * dx + dy * dy, 1e-6);
        let blocks = (right - left) / LANES + 1;
        for row in top..=bottom {
            let y = row as f32 - from.y;
            let start = row * STRIDE + left;
            let near = &mut self.depth[start..start + blocks * LANES];
            let mut block_x = left as f32 - from.x;
            for block in near.as_chunks_mut::<LANES>().0 {
                for (depth, column) in block.iter_mut().zip(COLUMNS) {
                    let x = block_x + column;
                    let along = smaller(larger((x * dx + y * dy) * per_square, 0.0), 1.0);
                    let (off_x, off_y) = (x - along * dx, y - along * dy);
                    let distance = (off_x * off_x + off_y * off_y).sqrt();
                    *depth = larger(*depth, from.radius + along * widening - distance);
                }
                block_x += LANES as f32;
            }
        }
    }

    /// Converts the strokes to bytes.
    pub(super) fn develop(&self, finish: Finish, randomness: &mut Randomness, image: &mut [u8]) {
        let mut grain = [0u8; IMAGE_SIZE];
        for bytes in grain.chunks_exact_mut(8) {
            bytes.copy_from_slice(&randomness.bits().to_le_bytes());
        }
        let sharpness = 0.5 / finish.softness;
        let rows = image.as_chunks_mut::<SIDE>().0.iter_mut();
        let rows = rows.zip(grain.as_chunks::<SIDE>().0);
        for ((image, grain), depth) in rows.zip(self.depth.chunks_exact(STRIDE)) {
            for ((pixel, &grain), &depth) in image.iter_mut().zip(grain).zip(depth) {
                let edge = smaller(larger(depth * sharpness + 0.5, 0.0), 1.0);
                let cover = edge * edge * (3.0 - 2.0 * edge);
                let grain = f32::from(grain) * (1.0 / 255.0);
                let ink = cover * finish.ink * (1.0 - finish.grain * grain);
                // The cube makes most of the paper clean and a few specks bright.
                let paper = (1.0 - cover) * finish.specks * grain * grain * grain;
                *pixel = to_byte(ink + paper);
            }
        }
    }
}

/// Scales 0..=1 to a byte, rounding to the nearest.
///
/// Above 2²³ a float has no room for fractions, so adding it rounds, and the last byte is the number. Unlike the
/// checked `as u8`, this runs in vector registers.
fn to_byte(brightness: f32) -> u8 {
    const NO_FRACTIONS: f32 = (1u32 << 23) as f32;
    debug_assert!((0.0..1.001).contains(&brightness), "{brightness}");
    (brightness * 255.0 + NO_FRACTIONS).to_bits() as u8
}

/// The pixels from `reach` before the smaller coordinate to `reach` after the larger, clipped to the raster.
fn pixels_between(one: f32, other: f32, reach: f32) -> Option<(usize, usize)> {
    let first = larger(smaller(one, other) - reach, 0.0);
    let last = smaller(larger(one, other) + reach, (SIDE - 1) as f32);
    (first <= last).then_some((first as usize, last as usize))
}

// Unlike `f32::max` and `f32::min` these are one vector instruction; no coordinate is NaN.
fn larger(one: f32, other: f32) -> f32 {
    if one > other { one } else { other }
}

fn smaller(one: f32, other: f32) -> f32 {
    if one < other { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::super::Split;
    use super::*;

    const PLAIN: Finish = Finish { softness: 0.5, ink: 1.0, grain: 0.0, specks: 0.0 };

    fn drawn(from: (f32, f32), to: (f32, f32)) -> Vec<u8> {
        let dot = |(x, y)| Dot { x, y, radius: 1.5 };
        let mut raster = StrokeRaster::new();
        raster.segment(dot(from), dot(to), PLAIN.softness);
        let mut image = vec![7; IMAGE_SIZE];
        raster.develop(PLAIN, &mut Randomness::of_sample(1, Split::Train, 0), &mut image);
        image
    }

    #[test]
    fn ink_is_within_the_radius_of_the_segment_and_nowhere_else() {
        let (from, to) = ((5.0, 10.0), (20.0, 10.0));
        let image = drawn(from, to);
        for (index, &pixel) in image.iter().enumerate() {
            let (x, y) = ((index % SIDE) as f32, (index / SIDE) as f32);
            let distance = (x - x.clamp(from.0, to.0)).hypot(y - from.1);
            match pixel {
                255 => assert!(distance <= 1.5, "({x}, {y}) is {distance} away"),
                0 => assert!(distance >= 1.5, "({x}, {y}) is {distance} away"),
                _ => assert!((1.0..=2.0).contains(&distance), "({x}, {y}) is {distance} away"),
            }
        }
    }

    #[test]
    fn a_segment_of_no_length_is_a_dot() {
        let image = drawn((9.0, 9.0), (9.0, 9.0));
        assert_eq!(image[9 * SIDE + 9], 255);
        assert_eq!(image.iter().filter(|&&pixel| pixel > 0).count(), 9);
    }

    #[test]
    fn what_leaves_the_canvas_is_cut_off() {
        assert_eq!(drawn((-9.0, -9.0), (-5.0, -9.0)), [0; IMAGE_SIZE]);
        assert_eq!(drawn((40.0, 5.0), (40.0, 50.0)), [0; IMAGE_SIZE]);
        assert_eq!(drawn((5.0, 27.0), (90.0, 27.0))[IMAGE_SIZE - 1], 255);
    }

    #[test]
    fn brightness_is_rounded_to_the_nearest_byte() {
        let bytes = [0.0, 0.4 / 255.0, 0.6 / 255.0, 0.5, 1.0].map(to_byte);
        assert_eq!(bytes, [0, 0, 1, 128, 255]);
    }
}
