//! The sampler of a spatial transformer: an affine transform of each image with bilinear interpolation, with a
//! hand-written backward pass.
//!
//! Burn's grid sampler passes over memory dozens of times to compute its gradient; here a point's four neighbours are
//! looked up once, and its position is computed instead of read.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use crate::buffer::{Floats, tensor};
use crate::record::Saved;

/// The number of values in an affine transform, two rows of three.
const TRANSFORM: usize = 6;

/// Samples every image through its transform.
pub(crate) fn forward([images, transforms]: [FlexTensor; 2]) -> (FlexTensor, AffineSample) {
    let (images, transforms) = (Floats::new(images), Floats::new(transforms));
    let shape = Shape::new(&images, &transforms);
    let mut seen = vec![0.0; images.values().len()];
    let all = seen.par_chunks_mut(shape.image()).zip(images.values().par_chunks(shape.image()));
    all.zip(transforms.values().par_chunks(TRANSFORM)).for_each(|((seen, image), transform)| {
        let mut padded = vec![0.0; shape.padded()];
        for (seen, plane) in seen.chunks_exact_mut(shape.plane()).zip(image.chunks_exact(shape.plane())) {
            shape.pad(plane, &mut padded);
            shape.sample_points(transform, |at, point| {
                if let Some(point) = point {
                    seen[at] = point.value(point.neighbours(&padded, shape.stride()));
                }
            });
        }
    });
    (tensor(seen, images.shape::<4>()), AffineSample { shape, images, transforms })
}

#[derive(Clone, Debug)]
pub(crate) struct AffineSample {
    shape: Shape,
    images: Floats,
    transforms: Floats,
}

impl Saved<2> for AffineSample {
    fn gradients(self, gradient: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let gradient = Floats::new(gradient);
        [wanted[0].then(|| self.of_images(&gradient)), wanted[1].then(|| self.of_transforms(&gradient))]
    }
}

impl AffineSample {
    fn of_images(&self, gradient: &Floats) -> FlexTensor {
        let shape = &self.shape;
        let mut result = vec![0.0; self.images.values().len()];
        let all = result.par_chunks_mut(shape.image()).zip(gradient.values().par_chunks(shape.image()));
        all.zip(self.transforms.values().par_chunks(TRANSFORM)).for_each(|((result, gradient), transform)| {
            let mut padded = vec![0.0; shape.padded()];
            let planes = result.chunks_exact_mut(shape.plane()).zip(gradient.chunks_exact(shape.plane()));
            for (result, gradient) in planes {
                padded.fill(0.0);
                shape.sample_points(transform, |at, point| {
                    if let Some(point) = point {
                        point.give_back(&mut padded, shape.stride(), gradient[at]);
                    }
                });
                shape.unpad(&padded, result);
            }
        });
        tensor(result, self.images.shape::<4>())
    }

    fn of_transforms(&self, gradient: &Floats) -> FlexTensor {
        let shape = &self.shape;
        let mut result = vec![0.0; self.transforms.values().len()];
        let all = result.par_chunks_mut(TRANSFORM).zip(self.transforms.values().par_chunks(TRANSFORM));
        let pictures = self.images.values().par_chunks(shape.image()).zip(gradient.values().par_chunks(shape.image()));
        all.zip(pictures).for_each(|((result, transform), (image, gradient))| {
            let mut padded = vec![0.0; shape.padded()];
            let planes = image.chunks_exact(shape.plane()).zip(gradient.chunks_exact(shape.plane()));
            for (plane, gradient) in planes {
                shape.pad(plane, &mut padded);
                shape.sample_points(transform, |at, point| {
                    if let Some(point) = point {
                        let (across, down) = point.slopes(point.neighbours(&padded, shape.stride()));
                        let (x, y) = (point.x, point.y);
                        let (across, down) = (gradient[at] * across, gradient[at] * down);
                        let terms = [across * x, across * y, across, down * x, down * y, down];
                        result.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
                    }
                });
            }
            // Converts from pixels to coordinates.
            let (across, down) = shape.half_steps();
            result[..3].iter_mut().for_each(|sum| *sum *= across);
            result[3..].iter_mut().for_each(|sum| *sum *= down);
        });
        tensor(result, self.transforms.shape::<2>())
    }
}

/// The sizes of the images.
#[derive(Clone, Copy, Debug)]
struct Shape {
    channels: usize,
    height: usize,
    width: usize,
}

impl Shape {
    fn new(images: &Floats, transforms: &Floats) -> Self {
        let [count, channels, height, width] = images.shape();
        assert_eq!(transforms.shape(), [count, TRANSFORM], "six numbers for each of {count} images");
        Self { channels, height, width }
    }

    fn image(&self) -> usize {
        self.channels * self.plane()
    }

    fn plane(&self) -> usize {
        self.height * self.width
    }

    /// The size of a plane with a frame of zeros: with the frame, all neighbours of a visible point exist.
    fn padded(&self) -> usize {
        (self.height + 2) * self.stride()
    }

    fn stride(&self) -> usize {
        self.width + 2
    }

    fn pad(&self, plane: &[f32], padded: &mut [f32]) {
        let lines = padded.chunks_exact_mut(self.stride()).skip(1);
        for (line, source) in lines.zip(plane.chunks_exact(self.width)) {
            line[1..=self.width].copy_from_slice(source);
        }
    }

    fn unpad(&self, padded: &[f32], plane: &mut [f32]) {
        let lines = padded.chunks_exact(self.stride()).skip(1);
        for (line, target) in lines.zip(plane.chunks_exact_mut(self.width)) {
            target.copy_from_slice(&line[1..=self.width]);
        }
    }

    /// Pixels per unit of a coordinate.
    fn half_steps(&self) -> (f32, f32) {
        ((self.width - 1) as f32 / 2.0, (self.height - 1) as f32 / 2.0)
    }

    /// Reports where each pixel looks: `None` for pixels that see nothing of the image.
    #[inline(always)]
    fn sample_points(&self, transform: &[f32], mut tell: impl FnMut(usize, Option<Point>)) {
        let (across, down) = self.half_steps();
        let coordinate = |index: usize, size: usize| {
            if size > 1 { 2.0 * index as f32 / (size - 1) as f32 - 1.0 } else { 0.0 }
        };
        for row in 0..self.height {
            let y = coordinate(row, self.height);
            for column in 0..self.width {
                let x = coordinate(column, self.width);
                let left = (transform[0] * x + transform[1] * y + transform[2] + 1.0) * across;
                let top = (transform[3] * x + transform[4] * y + transform[5] + 1.0) * down;
                let is_seen = left > -1.0 && left < self.width as f32 && top > -1.0 && top < self.height as f32;
                // Relative to the frame, both are above zero, so truncation rounds down.
                let (left, top) = (left + 1.0, top + 1.0);
                let point = is_seen.then(|| {
                    let (column, row) = ((left as usize).min(self.width), (top as usize).min(self.height));
                    let corner = row * self.stride() + column;
                    Point { x, y, corner, right: left - column as f32, below: top - row as f32 }
                });
                tell(row * self.width + column, point);
            }
        }
    }
}

/// Where a pixel looks.
#[derive(Clone, Copy)]
struct Point {
    /// The coordinates of the pixel that looks.
    x: f32,
    y: f32,
    /// The element above and to the left of the point that it looks at.
    corner: usize,
    /// The offset of the point from that element.
    right: f32,
    below: f32,
}

impl Point {
    /// The values at the top left, top right, bottom left and bottom right.
    #[inline(always)]
    fn neighbours(&self, padded: &[f32], stride: usize) -> [f32; 4] {
        let (top, bottom) = (&padded[self.corner..self.corner + 2], &padded[self.corner + stride..][..2]);
        [top[0], top[1], bottom[0], bottom[1]]
    }

    #[inline(always)]
    fn value(&self, [top_left, top_right, bottom_left, bottom_right]: [f32; 4]) -> f32 {
        let top = top_left + self.right * (top_right - top_left);
        let bottom = bottom_left + self.right * (bottom_right - bottom_left);
        top + self.below * (bottom - top)
    }

    /// The change of the value per pixel to the right and downwards.
    #[inline(always)]
    fn slopes(&self, [top_left, top_right, bottom_left, bottom_right]: [f32; 4]) -> (f32, f32) {
        let (top, bottom) = (top_right - top_left, bottom_right - bottom_left);
        let (left, right) = (bottom_left - top_left, bottom_right - top_right);
        (top + self.below * (bottom - top), left + self.right * (right - left))
    }

    #[inline(always)]
    fn give_back(&self, padded: &mut [f32], stride: usize, gradient: f32) {
        let (top, bottom) = (gradient * (1.0 - self.below), gradient * self.below);
        for (start, gradient) in [(self.corner, top), (self.corner + stride, bottom)] {
            padded[start] += gradient * (1.0 - self.right);
            padded[start + 1] += gradient * self.right;
        }
    }
}
