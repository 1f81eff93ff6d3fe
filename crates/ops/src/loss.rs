//! Softmax cross-entropy on the CPU.

use burn::backend::flex::FlexTensor;
use burn::tensor::TensorData;

use crate::exponential::exp;

/// The cross-entropy of every row, and the softmax.
pub(crate) fn forward(scores: FlexTensor, classes: FlexTensor) -> (FlexTensor, FlexTensor) {
    let mut softmax = scores.into_data().convert::<f32>();
    let classes = into_indices(classes);
    let shape = softmax.shape().clone();
    let width = shape[1];
    let rows = softmax.as_mut_slice::<f32>().expect("converted to f32");
    let mut losses = Vec::with_capacity(classes.len());
    for (row, class) in rows.chunks_exact_mut(width).zip(&classes) {
        let largest =
            row.iter().fold(f32::NEG_INFINITY, |largest, score| if *score > largest { *score } else { largest });
        let chosen = row[*class] - largest;
        let mut sum = 0.0;
        for score in row.iter_mut() {
            *score = exp(*score - largest);
            sum += *score;
        }
        let scale = 1.0 / sum;
        row.iter_mut().for_each(|share| *share *= scale);
        losses.push(sum.ln() - chosen);
    }
    let losses = TensorData::new(losses, [shape[0]]);
    (FlexTensor::from_data(losses), FlexTensor::from_data(softmax))
}

/// (softmax − one-hot) × the gradient of the row.
pub(crate) fn backward(softmax: FlexTensor, classes: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    let mut scores = softmax.into_data().convert::<f32>();
    let classes = into_indices(classes);
    let gradient = gradient.into_data().convert::<f32>();
    let gradient = gradient.as_slice::<f32>().expect("converted to f32");
    let width = scores.shape()[1];
    let rows = scores.as_mut_slice::<f32>().expect("converted to f32");
    for ((row, class), gradient) in rows.chunks_exact_mut(width).zip(&classes).zip(gradient) {
        row[*class] -= 1.0;
        row.iter_mut().for_each(|score| *score *= gradient);
    }
    FlexTensor::from_data(scores)
}

fn into_indices(classes: FlexTensor) -> Vec<usize> {
    classes.into_data().iter::<i64>().map(|class| class as usize).collect()
}
