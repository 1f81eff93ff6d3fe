//! Half the squared error, summed. Its gradient is the difference, which is computed for the sum anyway.

use burn::backend::flex::FlexTensor;

use crate::buffer::{contiguous, dimensions, floats, into_floats, tensor};
use crate::record::Saved;
use crate::vector::{each_pair, each_piece, sum, vectorised};

/// The number of values summed in single precision; partial sums are added in double precision.
const CHUNK: usize = 1024;

/// Half the sum of the squared differences. The target is a constant.
pub(crate) fn forward([output]: [FlexTensor; 1], target: FlexTensor) -> (FlexTensor, SquaredError) {
    let shape: [usize; 2] = dimensions(&output);
    assert_eq!(shape, dimensions(&target), "shapes of the output and of the target");
    let target = contiguous(target);
    let mut difference = into_floats(output);
    let values = difference.as_mut_slice::<f32>().expect("converted to f32");
    each_pair(values, floats(&target), |values, target| {
        vectorised(
            #[inline(always)]
            || values.iter_mut().zip(target).for_each(|(value, target)| *value -= target),
        );
    });
    let error = (0.5 * sum_of_squares(values)) as f32;
    (tensor(vec![error], [1]), SquaredError { difference: FlexTensor::from_data(difference) })
}

fn sum_of_squares(values: &[f32]) -> f64 {
    vectorised(
        #[inline(always)]
        || {
            let mut total = 0.0;
            for chunk in values.chunks(CHUNK) {
                total += f64::from(sum(
                    chunk.len(),
                    #[inline(always)]
                    |index| chunk[index] * chunk[index],
                ));
            }
            total
        },
    )
}

#[derive(Clone, Debug)]
pub(crate) struct SquaredError {
    difference: FlexTensor,
}

impl Saved<1> for SquaredError {
    fn gradients(self, gradient: FlexTensor, _wanted: [bool; 1]) -> [Option<FlexTensor>; 1] {
        let factor = floats(&contiguous(gradient))[0];
        let mut difference = into_floats(self.difference);
        let values = difference.as_mut_slice::<f32>().expect("converted to f32");
        each_piece(values, |values| values.iter_mut().for_each(|value| *value *= factor));
        [Some(FlexTensor::from_data(difference))]
    }
}
