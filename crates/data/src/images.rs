//! Labelled grey images in memory, and the three parts of a data set.
//!
//! Holds bytes and converts selected images to `f32` batches. This module must not read files, draw batches or know how
//! the images were made.

use std::fmt;
use std::hint::black_box;
use std::sync::LazyLock;

/// Labelled images of the same size, stored contiguously.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Height of every image in pixels.
    pub rows: usize,
    /// Width of every image in pixels.
    pub columns: usize,
    /// The pixels of all images, row by row, 0 for background and 255 for full ink.
    pub pixels: Vec<u8>,
    /// The class of every image; its length is the number of images.
    pub labels: Vec<u8>,
}

impl Images {
    /// Combines pixels and labels.
    ///
    /// # Panics
    /// Panics unless there is exactly one label for every `rows × columns` pixels. Readers of external data check that
    /// first and return an error.
    pub fn new(rows: usize, columns: usize, pixels: Vec<u8>, labels: Vec<u8>) -> Self {
        assert_eq!(pixels.len(), rows * columns * labels.len(), "{} labels of {rows}×{columns} images", labels.len());
        Self { rows, columns, pixels, labels }
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The number of pixels of one image.
    pub fn image_size(&self) -> usize {
        self.rows * self.columns
    }

    /// The pixels of image `index`, row by row.
    ///
    /// # Panics
    /// Panics if `index` is not below [`len`](Self::len).
    pub fn image(&self, index: usize) -> &[u8] {
        let size = self.image_size();
        &self.pixels[index * size..(index + 1) * size]
    }

    /// Replaces the contents of `out` with the selected images, concatenated and scaled to 0..=1.
    ///
    /// If `out` still holds a batch of the same size, it is overwritten in place.
    ///
    /// # Panics
    /// Panics if an index is not below [`len`](Self::len).
    pub fn gather(&self, indices: &[usize], out: &mut Vec<f32>) {
        // TensorFlow's reader multiplies rather than divides; that is faster, too.
        const SCALE: f32 = 1.0 / 255.0;
        out.clear();
        out.reserve(indices.len() * self.image_size());
        for (place, &index) in indices.iter().enumerate() {
            if let Some(&next) = indices.get(place + 1) {
                self.fetch(next);
            }
            out.extend(self.image(index).iter().map(|&pixel| f32::from(pixel) * SCALE));
        }
    }

    /// Touches an image, so that it is loaded into the cache while another is processed: the images of a batch are
    /// scattered over memory.
    fn fetch(&self, index: usize) {
        const CACHE_LINE: usize = 64;
        self.image(index).iter().step_by(CACHE_LINE).for_each(|pixel| {
            black_box(*pixel);
        });
    }

    /// Removes the first `count` images and returns them; the others move up.
    ///
    /// # Panics
    /// Panics if there are fewer than `count` images.
    pub fn take_first(&mut self, count: usize) -> Images {
        let size = self.image_size();
        Images {
            rows: self.rows,
            columns: self.columns,
            pixels: self.pixels.drain(..count * size).collect(),
            labels: self.labels.drain(..count).collect(),
        }
    }
}

type Make = Box<dyn FnOnce() -> Images + Send>;

/// The training, validation and test images of one data set.
///
/// Training images are present from the start. The other two parts may be made when first requested, since most tasks
/// of a cluster never evaluate, and startup should not wait for them.
pub struct ImageSet {
    train: Images,
    validation: LazyLock<Images, Make>,
    test: LazyLock<Images, Make>,
}

impl ImageSet {
    /// A data set whose parts are all in memory.
    pub fn new(train: Images, validation: Images, test: Images) -> Self {
        Self::with_late_parts(train, move || validation, move || test)
    }

    /// A data set that makes its validation and test images on first use.
    ///
    /// The two functions run at most once, on the first thread that needs them, while others that need them wait. They
    /// must not wait for a thread pool whose threads may be among those.
    pub fn with_late_parts(
        train: Images,
        validation: impl FnOnce() -> Images + Send + 'static,
        test: impl FnOnce() -> Images + Send + 'static,
    ) -> Self {
        Self { train, validation: LazyLock::new(Box::new(validation)), test: LazyLock::new(Box::new(test)) }
    }

    /// The images to train on.
    pub fn train(&self) -> &Images {
        &self.train
    }

    /// The images to validate on, made by the first call if necessary.
    pub fn validation(&self) -> &Images {
        &self.validation
    }

    /// The images to test on, made by the first call if necessary.
    pub fn test(&self) -> &Images {
        &self.test
    }
}

impl fmt::Debug for ImageSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ImageSet").field("train", &self.train.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn three_images() -> Images {
        Images::new(1, 2, vec![0, 51, 102, 153, 204, 255], vec![7, 8, 9])
    }

    #[test]
    fn an_image_is_its_own_rows_of_pixels() {
        assert_eq!(three_images().image(1), [102, 153]);
    }

    #[test]
    fn gather_scales_the_chosen_images_in_the_order_asked() {
        let mut batch = vec![9.0; 1];
        three_images().gather(&[2, 0, 2], &mut batch);
        let expected = [0.8, 1.0, 0.0, 0.2, 0.8, 1.0];
        assert_eq!(batch.len(), expected.len());
        for (got, expected) in batch.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6, "{batch:?}");
        }
    }

    #[test]
    fn gather_shrinks_a_longer_batch() {
        let mut batch = vec![9.0; 100];
        three_images().gather(&[0], &mut batch);
        assert_eq!(batch.len(), 2);
    }

    #[test]
    fn gather_keeps_black_and_white_exact() {
        let mut batch = Vec::new();
        Images::new(1, 2, vec![0, 255], vec![0]).gather(&[0], &mut batch);
        assert_eq!(batch, [0.0, 1.0]);
    }

    #[test]
    fn taking_the_first_images_leaves_the_others() {
        let mut images = three_images();
        let first = images.take_first(1);
        assert_eq!(first, Images::new(1, 2, vec![0, 51], vec![7]));
        assert_eq!(images, Images::new(1, 2, vec![102, 153, 204, 255], vec![8, 9]));
    }

    #[test]
    fn late_parts_are_made_once_and_only_when_asked_for() {
        let made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&made);
        let set = ImageSet::with_late_parts(three_images(), three_images, move || {
            counter.fetch_add(1, Ordering::Relaxed);
            three_images()
        });
        assert_eq!((set.train().len(), set.validation().len()), (3, 3));
        assert_eq!(made.load(Ordering::Relaxed), 0);
        assert_eq!((set.test().len(), set.test().len()), (3, 3));
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }
}
