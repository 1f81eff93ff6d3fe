//! Guarantees of the built-in digits: the same images for the same seed, and the right difficulty.

#[path = "support/classifier.rs"]
mod classifier;

use classifier::{Classifier, Training};
use sha2::{Digest, Sha256};
use windlass_data::Images;
use windlass_data::digits::{self, SIDE, Sizes};

fn on_threads(threads: usize, work: impl FnOnce() -> Images + Send) -> Images {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

#[test]
fn any_number_of_threads_draws_the_same_images() {
    let one = on_threads(1, || digits::training(5, 1500));
    let three = on_threads(3, || digits::training(5, 1500));
    assert!(one == three);
}

#[test]
fn a_smaller_set_is_the_beginning_of_a_larger_one() {
    let large = digits::training(1, 600);
    let small = digits::training(1, 10);
    assert_eq!(small.pixels, large.pixels[..small.pixels.len()]);
    assert_eq!(small.labels, large.labels[..10]);
}

#[test]
fn seeds_and_splits_have_no_image_in_common() {
    let sets = [digits::training(1, 50), digits::training(2, 50), digits::validation(1, 50), digits::test(1, 50)];
    let mut images: Vec<&[u8]> = sets.iter().flat_map(|set| (0..set.len()).map(|index| set.image(index))).collect();
    images.sort_unstable();
    assert!(images.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn parts_made_late_are_those_made_at_once() {
    let set = digits::set(3, Sizes { train: 20, validation: 300, test: 400 });
    assert!(*set.train() == digits::training(3, 20));
    assert!(*set.validation() == digits::validation(3, 300));
    assert!(*set.test() == digits::test(3, 400));
}

/// If this fails, every result published for a seed must be measured again.
#[test]
fn the_images_of_a_seed_never_change() {
    let images = digits::training(1, 100);
    let mut digest = Sha256::new();
    digest.update(&images.pixels);
    digest.update(&images.labels);
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, "5b7d7a06b49a72b9085417e253f18a0931b0e137a89f2143356ad6cd6c073b0f");
}

#[test]
fn all_classes_are_as_frequent() {
    let mut counts = [0; 10];
    digits::training(1, 5000).labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
    assert!(counts.iter().all(|count| (400..600).contains(count)), "{counts:?}");
}

#[test]
fn every_image_has_ink_and_more_paper() {
    let images = digits::training(1, 2000);
    for index in 0..images.len() {
        let ink = images.image(index).iter().filter(|&&pixel| pixel > 128).count();
        assert!((15..350).contains(&ink), "image {index} has {ink} dark pixels");
    }
}

#[test]
fn the_corners_stay_free() {
    let images = digits::training(1, 2000);
    let corners = [0, SIDE - 1, SIDE * (SIDE - 1), SIDE * SIDE - 1];
    let brightest = (0..images.len()).flat_map(|index| corners.map(|corner| images.image(index)[corner])).max();
    assert!(brightest < Some(100), "{brightest:?}");
}

/// Full size: `cargo run --release -p windlass-data --example difficulty`.
#[test]
fn a_hidden_layer_is_worth_several_percent() {
    let train = digits::training(1, 4000);
    let test = digits::test(1, 1000);
    let mut linear = Classifier::linear(train.image_size());
    linear.train(&train, Training { epochs: 6, rate: 0.02 });
    let mut hidden = Classifier::with_hidden(train.image_size(), 50);
    hidden.train(&train, Training { epochs: 6, rate: 0.03 });
    let (linear, hidden) = (linear.accuracy(&test), hidden.accuracy(&test));
    println!("linear {linear}, hidden {hidden}");
    assert!(linear > 0.75, "too hard: the linear classifier gets {linear}");
    assert!(linear < 0.93, "too easy: the linear classifier gets {linear}");
    assert!(hidden > linear + 0.04, "linear {linear}, with a hidden layer {hidden}");
}
