//! Cluttered digits: the digit is complete, the clutter is there, and a seed determines the images.

use windlass_data::digits::{self, Sizes};
use windlass_data::{ImageSet, Images, cluttered};

const FEW: Sizes = Sizes { train: 60, validation: 20, test: 20 };

fn few(seed: u64) -> ImageSet {
    cluttered::set(&digits::set(seed, FEW), seed, FEW)
}

/// The possible positions of the digit, where all of its ink is present or covered by stronger ink.
fn places_of(digit: &[u8], canvas: &[u8]) -> Vec<(usize, usize)> {
    let room = cluttered::SIDE - digits::SIDE + 1;
    let lies_at = |top: usize, left: usize| {
        digit.chunks_exact(digits::SIDE).enumerate().all(|(row, ink)| {
            let start = (top + row) * cluttered::SIDE + left;
            ink.iter().zip(&canvas[start..]).all(|(ink, seen)| seen >= ink)
        })
    };
    (0..room).flat_map(|top| (0..room).map(move |left| (top, left))).filter(|at| lies_at(at.0, at.1)).collect()
}

fn ink(pixels: &[u8]) -> u64 {
    pixels.iter().map(|pixel| u64::from(*pixel)).sum()
}

#[test]
fn the_parts_have_the_sizes_asked_for() {
    let set = few(1);
    assert_eq!((set.train().len(), set.validation().len(), set.test().len()), (60, 20, 20));
    assert_eq!((set.train().rows, set.train().columns), (40, 40));
}

#[test]
fn every_canvas_has_its_digit_whole_and_clutter_beside_it() {
    let (digits, set) = (digits::set(1, FEW), few(1));
    let parts: [(&Images, &Images); 3] =
        [(digits.train(), set.train()), (digits.validation(), set.validation()), (digits.test(), set.test())];
    for (digits, canvases) in parts {
        assert_eq!(digits.labels, canvases.labels);
        let mut more = 0;
        for index in 0..canvases.len() {
            assert!(!places_of(digits.image(index), canvases.image(index)).is_empty(), "image {index}");
            let added = ink(canvases.image(index)) - ink(digits.image(index));
            // Five pieces of 25 pixels are the maximum; most lie beside the digit.
            assert!(added <= 5 * 25 * 255, "image {index}: {added}");
            more += usize::from(added >= 2 * 4 * 255);
        }
        assert!(more >= canvases.len() * 9 / 10, "{more} of {}", canvases.len());
    }
}

#[test]
fn digits_lie_all_over_the_canvas() {
    let (digits, set) = (digits::set(1, FEW), few(1));
    let places: Vec<_> = (0..FEW.train)
        .filter_map(|index| match places_of(digits.train().image(index), set.train().image(index))[..] {
            [only] => Some(only),
            _ => None,
        })
        .collect();
    assert!(places.len() > FEW.train / 2, "{}", places.len());
    for axis in [|at: &(usize, usize)| at.0, |at: &(usize, usize)| at.1] {
        assert!(places.iter().map(axis).min() <= Some(2) && places.iter().map(axis).max() >= Some(10), "{places:?}");
    }
}

#[test]
fn a_seed_gives_the_same_images_and_another_seed_gives_others() {
    assert_eq!(few(1).train(), few(1).train());
    let digits = digits::set(1, FEW);
    let (one, two) = (cluttered::set(&digits, 1, FEW), cluttered::set(&digits, 2, FEW));
    assert_eq!(one.test().labels, two.test().labels);
    assert_ne!(one.test().pixels, two.test().pixels);
}

#[test]
fn fewer_digits_than_images_are_used_again_in_other_places() {
    let digits = digits::set(1, Sizes { train: 3, validation: 1, test: 1 });
    let set = cluttered::set(&digits, 1, FEW);
    assert_eq!(set.train().labels[..3], set.train().labels[3..6]);
    assert_ne!(set.train().image(0), set.train().image(3));
}

#[test]
fn blank_images_end_in_canvases_without_clutter() {
    let blank = || Images::new(28, 28, vec![0; 2 * 28 * 28], vec![1, 2]);
    let set = cluttered::set(&ImageSet::new(blank(), blank(), blank()), 1, FEW);
    assert!(set.train().pixels.iter().all(|&pixel| pixel == 0));
}
