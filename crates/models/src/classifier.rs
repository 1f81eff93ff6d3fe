//! The accuracy and loss of a classifier over all images of a set.

use burn::tensor::{Device, Int, Tensor};
use windlass_data::{ImageSet, Images};
use windlass_ops::cross_entropy;
use windlass_worker::metrics::{Metrics, accuracy};

/// Evaluates the scores that `classify` gives the test and validation images, `together` at a time.
pub(crate) fn evaluate<B>(
    images: &ImageSet,
    together: usize,
    gather: impl Fn(&Images, &[usize], &Device) -> (B, Tensor<1, Int>),
    classify: impl Fn(B) -> Tensor<2>,
    device: &Device,
) -> Metrics {
    let score = |images: &Images| {
        let (mut right, mut losses) = (0.0, 0.0);
        let all: Vec<usize> = (0..images.len()).collect();
        for samples in all.chunks(together) {
            let (batch, labels) = gather(images, samples, device);
            let scores = classify(batch);
            right += accuracy(scores.clone(), labels.clone()) * samples.len() as f64;
            losses += cross_entropy(scores, labels).into_data().iter::<f64>().sum::<f64>();
        }
        let count = images.len().max(1) as f64;
        (right / count, losses / count)
    };
    let (test_accuracy, _) = score(images.test());
    let (validation_accuracy, validation_loss) = score(images.validation());
    Metrics::new()
        .fraction("test_accuracy", test_accuracy)
        .fraction("validation_accuracy", validation_accuracy)
        .loss("validation_cross_entropy", validation_loss)
}
