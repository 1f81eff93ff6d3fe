//! The built-in data set: handwritten-looking digits, drawn from a seed.
//!
//! With it, every model can train without a download. Sample `i` of a split depends only on the seed, the split and
//! `i`, and on arithmetic that is the same on every machine, so any number of threads or workers draw the same images.
//! This module must not read the clock, files or thread-local randomness.

mod hand;
mod raster;
mod templates;

use rayon::prelude::*;

use self::raster::StrokeRaster;
use crate::images::{ImageSet, Images};
use crate::randomness::{Randomness, Split};

/// Height and width of a digit in pixels, as in MNIST.
pub const SIDE: usize = 28;

const IMAGE_SIZE: usize = SIDE * SIDE;

/// Large enough to make handing over a chunk cheap, small enough to keep all threads busy.
const IMAGES_PER_CHUNK: usize = 256;

/// How many images each part of a data set has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of training images.
    pub train: usize,
    /// Number of validation images.
    pub validation: usize,
    /// Number of test images.
    pub test: usize,
}

impl Default for Sizes {
    /// The sizes of MNIST as TensorFlow's tutorials split it.
    fn default() -> Self {
        Self { train: 55_000, validation: 5_000, test: 10_000 }
    }
}

/// A whole data set. Training images are drawn now, the others when first requested.
pub fn set(seed: u64, sizes: Sizes) -> ImageSet {
    let late = move |split, count| Samples { seed, split }.draw_on_this_thread(count);
    ImageSet::with_late_parts(
        training(seed, sizes.train),
        move || late(Split::Validation, sizes.validation),
        move || late(Split::Test, sizes.test),
    )
}

/// The first `count` training images, drawn on the current rayon pool.
pub fn training(seed: u64, count: usize) -> Images {
    let split = Split::Train;
    Samples { seed, split }.draw(count)
}

/// The first `count` validation images, drawn on the current rayon pool.
pub fn validation(seed: u64, count: usize) -> Images {
    let split = Split::Validation;
    Samples { seed, split }.draw(count)
}

/// The first `count` test images, drawn on the current rayon pool.
pub fn test(seed: u64, count: usize) -> Images {
    let split = Split::Test;
    Samples { seed, split }.draw(count)
}

/// One endless stream of samples.
struct Samples {
    seed: u64,
    split: Split,
}

impl Samples {
    fn draw(&self, count: usize) -> Images {
        let mut images = blank(count);
        let pixels = images.pixels.par_chunks_mut(IMAGES_PER_CHUNK * IMAGE_SIZE);
        let labels = images.labels.par_chunks_mut(IMAGES_PER_CHUNK);
        let chunks = pixels.zip(labels).enumerate();
        chunks.for_each(|(chunk, (pixels, labels))| {
            self.draw_from(chunk * IMAGES_PER_CHUNK, pixels, labels);
        });
        images
    }

    /// Draws late parts on the calling thread only: a thread pool might be waiting for them, see
    /// [`ImageSet::with_late_parts`].
    fn draw_on_this_thread(&self, count: usize) -> Images {
        let mut images = blank(count);
        self.draw_from(0, &mut images.pixels, &mut images.labels);
        images
    }

    fn draw_from(&self, first: usize, pixels: &mut [u8], labels: &mut [u8]) {
        let mut raster = StrokeRaster::new();
        let images = pixels.chunks_exact_mut(IMAGE_SIZE).zip(labels);
        for (index, (image, label)) in (first..).zip(images) {
            let mut randomness = Randomness::of_sample(self.seed, self.split, index);
            *label = randomness.below(templates::CLASSES.len()) as u8;
            hand::write(*label, &mut randomness, &mut raster, image);
        }
    }
}

fn blank(count: usize) -> Images {
    Images::new(SIDE, SIDE, vec![0; count * IMAGE_SIZE], vec![0; count])
}
