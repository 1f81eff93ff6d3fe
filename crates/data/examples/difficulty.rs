//! The difficulty of the built-in digits: test accuracy of a linear and of a small classifier.
//!
//! `cargo run --release -p windlass-data --example difficulty [seed]`
//!
//! The linear classifier should stay between 85% and 92%, the one with 100 hidden units between 96% and 99%, as on
//! MNIST: then the scores of a run reveal whether it uses its hidden layer.

#[path = "../tests/support/classifier.rs"]
mod classifier;

use std::time::Instant;

use classifier::{Classifier, Training};
use windlass_data::digits::{self, Sizes};

fn main() {
    let seed = std::env::args().nth(1).map_or(1, |text| text.parse().expect("the seed is a whole number"));
    let start = Instant::now();
    let set = digits::set(seed, Sizes::default());
    let (count, seconds) = (set.train().len(), start.elapsed().as_secs_f64());
    let threads = rayon::current_num_threads();
    println!("{count} images drawn in {seconds:.3} s by {threads} threads");
    let size = set.train().image_size();
    let epochs = 10;
    let mut linear = Classifier::linear(size);
    let mut small = Classifier::with_hidden(size, 100);
    for (name, classifier, rate) in [("linear", &mut linear, 0.01), ("784-100-10", &mut small, 0.02)] {
        let start = Instant::now();
        classifier.train(set.train(), Training { epochs, rate });
        println!(
            "{name}: test accuracy {:.4}, training accuracy {:.4}, {epochs} epochs in {:.1} s",
            classifier.accuracy(set.test()),
            classifier.accuracy(set.train()),
            start.elapsed().as_secs_f64()
        );
    }
}
