//! Standardises pixels: each gets mean 0 and deviation 1 over the training images.

use windlass_data::Images;

/// The mean and deviation of each pixel, for standardising and undoing it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Standard {
    means: Vec<f32>,
    deviations: Vec<f32>,
}

impl Standard {
    /// Computes them from the training images. A pixel that is the same in all of them is only shifted.
    pub(super) fn of(images: &Images) -> Self {
        let size = images.image_size();
        let (mut sums, mut squares) = (vec![0u64; size], vec![0u64; size]);
        for image in images.pixels.chunks_exact(size.max(1)) {
            for ((sum, square), pixel) in sums.iter_mut().zip(&mut squares).zip(image) {
                let pixel = u64::from(*pixel);
                *sum += pixel;
                *square += pixel * pixel;
            }
        }
        let count = images.len().max(1) as u64;
        let deviation = |(sum, square): (&u64, &u64)| {
            // Integer arithmetic is exact: a constant pixel has a variance of exactly zero.
            let spread = u128::from(count) * u128::from(*square) - u128::from(*sum) * u128::from(*sum);
            if spread == 0 { 1.0 } else { ((spread as f64).sqrt() / count as f64 / 255.0) as f32 }
        };
        Self {
            means: sums.iter().map(|sum| (*sum as f64 / count as f64 / 255.0) as f32).collect(),
            deviations: sums.iter().zip(&squares).map(deviation).collect(),
        }
    }

    /// Replaces the contents of `out` with the chosen images, standardised.
    pub(super) fn gather(&self, images: &Images, samples: &[usize], out: &mut Vec<f32>) {
        images.gather(samples, out);
        for image in out.chunks_exact_mut(self.means.len()) {
            for ((value, mean), deviation) in image.iter_mut().zip(&self.means).zip(&self.deviations) {
                *value = (*value - mean) / deviation;
            }
        }
    }

    /// Converts standardised images back in place.
    pub(super) fn undo(&self, values: &mut [f32]) {
        for image in values.chunks_exact_mut(self.means.len()) {
            for ((value, mean), deviation) in image.iter_mut().zip(&self.means).zip(&self.deviations) {
                *value = *value * deviation + mean;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_get_mean_zero_and_deviation_one_and_constant_ones_zero() {
        let images = Images::new(1, 3, vec![0, 7, 255, 100, 7, 0, 200, 7, 255, 60, 7, 255], vec![0; 4]);
        let standard = Standard::of(&images);
        let mut values = Vec::new();
        standard.gather(&images, &[0, 1, 2, 3], &mut values);
        for pixel in 0..3 {
            let column: Vec<f32> = values.iter().skip(pixel).step_by(3).copied().collect();
            let mean = column.iter().sum::<f32>() / 4.0;
            let variance = column.iter().map(|value| value * value).sum::<f32>() / 4.0;
            assert!(mean.abs() < 1e-6, "{mean}");
            assert!((variance - if pixel == 1 { 0.0 } else { 1.0 }).abs() < 1e-5, "{variance}");
        }
        standard.undo(&mut values);
        let restored: Vec<u8> = values.iter().map(|value| (value * 255.0).round() as u8).collect();
        assert_eq!(restored, images.pixels);
    }
}
