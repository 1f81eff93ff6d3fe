//! Activations on the CPU.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::ActivationOps;
use burn::tensor::DType;

use crate::exponential::exp;

/// In place where Burn's buffer is not shared.
pub(crate) fn sigmoid(input: FlexTensor) -> FlexTensor {
    if input.dtype() != DType::F32 {
        return Flex::sigmoid(input);
    }
    let mut data = input.into_data();
    let values = data.as_mut_slice::<f32>().expect("checked to be f32");
    for value in values {
        *value = 1.0 / (1.0 + exp(-*value));
    }
    FlexTensor::from_data(data)
}
