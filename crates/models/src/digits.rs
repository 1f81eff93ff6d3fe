//! Handwritten digits for every model that reads or reconstructs them: built in, or the user's own.

use anyhow::Context;
use tracing::info;
use windlass_data::digits::{self, Sizes};
use windlass_data::{ImageSet, Images, mnist};
use windlass_worker::model::{Fingerprint, Setup};

/// The digits of the run, in the customary number.
pub(crate) fn load(setup: &Setup) -> anyhow::Result<ImageSet> {
    load_or_draw(setup, Sizes::default())
}

/// Loads all digits of `--data-dir`, or draws this many built-in ones.
pub(crate) fn load_or_draw(setup: &Setup, sizes: Sizes) -> anyhow::Result<ImageSet> {
    match &setup.data_dir {
        Some(directory) => {
            // The error's text already includes that of its cause.
            let images = mnist::load(directory).map_err(anyhow::Error::msg).context("read the images")?;
            info!("{} training images from {}", images.train().len(), directory.display());
            Ok(images)
        }
        None => {
            info!("no --data-dir: using built-in digits, drawn from seed {}", setup.seed);
            Ok(digits::set(setup.seed, sizes))
        }
    }
}

/// An empty set, for a process that computes on another's images.
pub(crate) fn none(side: usize) -> ImageSet {
    let none = || Images::new(side, side, Vec::new(), Vec::new());
    ImageSet::new(none(), none(), none())
}

/// The fingerprint of all images and their labels.
pub(crate) fn fingerprint(images: &Images) -> Fingerprint {
    Fingerprint::of_all([&images.pixels[..], &images.labels[..]])
}

/// Picks at most this many images to show: the first of each class in the order of classes, then the second of each,
/// and so on.
pub(crate) fn one_of_each(labels: &[u8], count: usize) -> Vec<usize> {
    let mut seen = [0usize; mnist::CLASSES as usize];
    let mut ranked: Vec<(usize, u8, usize)> = Vec::with_capacity(labels.len());
    for (index, label) in labels.iter().enumerate() {
        let rank = &mut seen[usize::from(*label)];
        ranked.push((*rank, *label, index));
        *rank += 1;
    }
    ranked.sort_unstable();
    ranked.into_iter().take(count).map(|(_, _, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_to_show_go_through_the_classes_in_order() {
        assert_eq!(one_of_each(&[3, 1, 1, 0, 3, 2], 5), [3, 1, 5, 0, 2]);
        assert_eq!(one_of_each(&[3, 1], 5), [1, 0]);
    }
}
