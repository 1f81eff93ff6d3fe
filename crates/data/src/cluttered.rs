//! Cluttered digits: a digit somewhere on a larger canvas, among pieces of other digits.
//!
//! A network has to find the digit before it can read it. Sample `i` of a part depends only on its digits, the seed,
//! the part and `i`. This module must not read the clock, files or thread-local randomness.

use rayon::prelude::*;

use crate::digits::Sizes;
use crate::images::{ImageSet, Images};
use crate::randomness::{Randomness, Split};

/// Height and width of the canvas in pixels.
pub const SIDE: usize = 40;

/// The number of pieces of other digits in an image.
pub const PIECES: usize = 5;

/// Height and width of a piece in pixels.
pub const PIECE_SIDE: usize = 5;

const CANVAS_SIZE: usize = SIDE * SIDE;

/// Makes these random numbers differ from those that drew the digits from the same seed.
const STREAM: u64 = 0x636c_7574_7465_7264;

/// A piece with less ink than this, summed over its pixels, is hardly visible, and another is cut out instead.
const LEAST_INK: u32 = 4 * 255;

/// After this many cuts without enough ink, the last one is used: external data sets may have empty images.
const MOST_CUTS: usize = 32;

/// The usual sizes for this task: 10,000 training images, and 1,000 each for validation and test.
pub const SIZES: Sizes = Sizes { train: 10_000, validation: 1_000, test: 1_000 };

/// Clutters digits. Each part is made from the same part of `digits`, image `i` from digit `i`; if there are fewer
/// digits than images, they are reused in order.
///
/// # Panics
/// Panics if the digits are larger than the canvas or smaller than a piece, or if a nonempty part has no digits to use.
pub fn set(digits: &ImageSet, seed: u64, sizes: Sizes) -> ImageSet {
    let part = |split, digits, count| Scatter { seed, split, digits }.draw(count);
    ImageSet::new(
        part(Split::Train, digits.train(), sizes.train),
        part(Split::Validation, digits.validation(), sizes.validation),
        part(Split::Test, digits.test(), sizes.test),
    )
}

/// A part of a data set under construction.
struct Scatter<'a> {
    seed: u64,
    split: Split,
    digits: &'a Images,
}

impl Scatter<'_> {
    fn draw(&self, count: usize) -> Images {
        let sizes = [self.digits.rows, self.digits.columns];
        assert!(sizes.iter().all(|size| (PIECE_SIDE..=SIDE).contains(size)), "digits of {sizes:?} pixels");
        let mut pixels = vec![0; count * CANVAS_SIZE];
        pixels.par_chunks_mut(CANVAS_SIZE).enumerate().for_each(|(index, canvas)| self.draw_one(index, canvas));
        let labels = (0..count).map(|index| self.digits.labels[index % self.digits.len()]).collect();
        Images::new(SIDE, SIDE, pixels, labels)
    }

    fn draw_one(&self, index: usize, canvas: &mut [u8]) {
        let mut randomness = Randomness::of_sample(self.seed ^ STREAM, self.split, index);
        let digit = index % self.digits.len();
        let Images { rows, columns, .. } = *self.digits;
        let at = (randomness.below(SIDE - rows + 1), randomness.below(SIDE - columns + 1));
        let whole = Patch { image: self.digits.image(digit), width: columns, from: (0, 0), size: (rows, columns) };
        whole.lay_on(canvas, at);
        for _ in 0..PIECES {
            let piece = self.cut_piece(digit, &mut randomness);
            piece.lay_on(canvas, (randomness.below(SIDE - PIECE_SIDE + 1), randomness.below(SIDE - PIECE_SIDE + 1)));
        }
    }

    /// A part of a random digit other than this one, if there is another.
    fn cut_piece(&self, digit: usize, randomness: &mut Randomness) -> Patch<'_> {
        let others = self.digits.len().max(2) - 1;
        let mut cut = || {
            let other = (digit + 1 + randomness.below(others)) % self.digits.len();
            let corner = |size: usize, randomness: &mut Randomness| randomness.below(size - PIECE_SIDE + 1);
            Patch {
                image: self.digits.image(other),
                width: self.digits.columns,
                from: (corner(self.digits.rows, randomness), corner(self.digits.columns, randomness)),
                size: (PIECE_SIDE, PIECE_SIDE),
            }
        };
        let mut piece = cut();
        for _ in 1..MOST_CUTS {
            if piece.is_seen() {
                break;
            }
            piece = cut();
        }
        piece
    }
}

/// A rectangle of an image: (row, column) and (height, width).
#[derive(Clone, Copy)]
struct Patch<'a> {
    image: &'a [u8],
    width: usize,
    from: (usize, usize),
    size: (usize, usize),
}

impl<'a> Patch<'a> {
    fn rows(self) -> impl Iterator<Item = &'a [u8]> {
        let starts = (0..self.size.0).map(move |row| (self.from.0 + row) * self.width + self.from.1);
        starts.map(move |start| &self.image[start..start + self.size.1])
    }

    fn is_seen(self) -> bool {
        self.rows().flatten().map(|&ink| u32::from(ink)).sum::<u32>() >= LEAST_INK
    }

    /// Ink does not add up: where two patches overlap, the stronger ink shows.
    fn lay_on(self, canvas: &mut [u8], at: (usize, usize)) {
        for (row, ink) in self.rows().enumerate() {
            let start = (at.0 + row) * SIDE + at.1;
            let under = &mut canvas[start..start + ink.len()];
            under.iter_mut().zip(ink).for_each(|(under, &ink)| *under = (*under).max(ink));
        }
    }
}
