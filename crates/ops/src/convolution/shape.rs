//! The sizes of a convolution, and the matrix that an image is unrolled into.

use rayon::prelude::*;

use crate::buffer::Floats;

/// Images per piece of work. Gradients of weights are summed within a piece, then over the pieces in order, so that the
/// sum is the same for any number of threads.
pub(super) const IMAGES_PER_PIECE: usize = 4;

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) images: usize,
    channels: usize,
    height: usize,
    width: usize,
    pub(super) filters: usize,
    kernel_height: usize,
    kernel_width: usize,
    pub(super) out_height: usize,
    pub(super) out_width: usize,
    stride: usize,
    padding: usize,
}

impl Shape {
    pub(super) fn new(input: [usize; 4], weight: [usize; 4], stride: usize, padding: usize) -> Self {
        let [images, channels, height, width] = input;
        let [filters, weight_channels, kernel_height, kernel_width] = weight;
        assert_eq!(channels, weight_channels, "channels of the input and of the weight");
        assert!(stride > 0, "a stride of 0");
        let padded = [height, width].map(|size| size + 2 * padding);
        assert!(padded[0] >= kernel_height && padded[1] >= kernel_width, "a weight larger than the padded image");
        let out_height = (padded[0] - kernel_height) / stride + 1;
        let out_width = (padded[1] - kernel_width) / stride + 1;
        Self {
            images,
            channels,
            height,
            width,
            filters,
            kernel_height,
            kernel_width,
            out_height,
            out_width,
            stride,
            padding,
        }
    }

    /// The number of values in an input image.
    pub(super) fn input(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// The number of values in an output image.
    pub(super) fn output(&self) -> usize {
        self.filters * self.places()
    }

    /// The number of places in an image where a filter is applied.
    pub(super) fn places(&self) -> usize {
        self.out_height * self.out_width
    }

    /// The number of values that a filter sees in one place.
    pub(super) fn depth(&self) -> usize {
        self.channels * self.kernel_height * self.kernel_width
    }

    pub(super) fn columns(&self) -> usize {
        self.depth() * self.places()
    }

    pub(super) fn pieces<'a>(
        &self,
        output: &'a Floats,
        gradient: &'a Floats,
    ) -> impl IndexedParallelIterator<Item = (&'a [f32], &'a [f32])> {
        let size = IMAGES_PER_PIECE * self.output();
        output.values().par_chunks(size).zip(gradient.values().par_chunks(size))
    }

    pub(super) fn images<'a>(
        &self,
        (outputs, gradients): (&'a [f32], &'a [f32]),
    ) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
        outputs.chunks_exact(self.output()).zip(gradients.chunks_exact(self.output()))
    }

    /// Writes one row for every value that a filter sees, with one column for every place where the filter is applied.
    pub(super) fn unroll(&self, input: &[f32], columns: &mut [f32]) {
        let rows = columns.chunks_exact_mut(self.places());
        for (row, tap) in rows.zip(self.taps()) {
            for (y, line) in row.chunks_exact_mut(self.out_width).enumerate() {
                let Some(source) = self.source_line(&tap, y).map(|start| &input[start..start + self.width]) else {
                    line.fill(0.0);
                    continue;
                };
                line[..tap.from].fill(0.0);
                line[tap.to..].fill(0.0);
                let values = source[tap.first..].iter().step_by(self.stride);
                line[tap.from..tap.to].iter_mut().zip(values).for_each(|(value, source)| *value = *source);
            }
        }
    }

    /// The transpose of [`Self::unroll`]: adds every column value to the input value that it was copied from.
    pub(super) fn roll(&self, columns: &[f32], input: &mut [f32]) {
        for (row, tap) in columns.chunks_exact(self.places()).zip(self.taps()) {
            for (y, line) in row.chunks_exact(self.out_width).enumerate() {
                let Some(target) = self.source_line(&tap, y).map(|start| &mut input[start..start + self.width]) else {
                    continue;
                };
                let values = target[tap.first..].iter_mut().step_by(self.stride);
                values.zip(&line[tap.from..tap.to]).for_each(|(target, value)| *target += value);
            }
        }
    }

    /// The values that a filter sees, in the order of its weights.
    fn taps(&self) -> impl Iterator<Item = Tap> {
        let shape = *self;
        (0..self.depth()).map(move |index| {
            let (kernel_x, rest) = (index % shape.kernel_width, index / shape.kernel_width);
            // The first place whose tap is within the image, and the end of those places.
            let from = shape.padding.saturating_sub(kernel_x).div_ceil(shape.stride);
            let inside = (shape.width + shape.padding).saturating_sub(kernel_x).div_ceil(shape.stride);
            let (from, to) = (from.min(shape.out_width), inside.min(shape.out_width));
            let to = to.max(from);
            Tap {
                channel: rest / shape.kernel_height,
                kernel_y: rest % shape.kernel_height,
                from,
                to,
                first: (from * shape.stride + kernel_x).saturating_sub(shape.padding).min(shape.width),
            }
        })
    }

    /// Returns the start of the input line that a tap sees in a line of the output.
    fn source_line(&self, tap: &Tap, y: usize) -> Option<usize> {
        let source_y = (y * self.stride + tap.kernel_y).checked_sub(self.padding)?;
        (source_y < self.height).then_some((tap.channel * self.height + source_y) * self.width)
    }
}

/// One of the values that a filter sees.
struct Tap {
    channel: usize,
    kernel_y: usize,
    /// The places of an output line where the tap is within the image.
    from: usize,
    to: usize,
    /// The position in the input line at the first of those places.
    first: usize,
}
