//! Converts Burn's CPU tensors to slices of floats and back, without a copy where possible.

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, TensorData};

/// A tensor of any type as contiguous f32 values.
#[derive(Clone, Debug)]
pub(crate) struct Floats(FlexTensor);

impl Floats {
    pub(crate) fn new(tensor: FlexTensor) -> Self {
        Self(match tensor.dtype() {
            DType::F32 => tensor.to_contiguous(),
            _ => FlexTensor::from_data(tensor.into_data().convert::<f32>()),
        })
    }

    pub(crate) fn values(&self) -> &[f32] {
        floats(&self.0)
    }

    /// The shape of a tensor that must have `D` dimensions.
    pub(crate) fn shape<const D: usize>(&self) -> [usize; D] {
        dimensions(&self.0)
    }
}

/// Returns the same values contiguously, in row-major order.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.as_slice::<f32>().is_some() { tensor } else { tensor.to_contiguous() }
}

/// The values of a tensor that [`contiguous`] has returned.
pub(crate) fn floats(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("contiguous f32")
}

/// Returns the values, without a copy if Burn's buffer is not shared.
pub(crate) fn into_floats(tensor: FlexTensor) -> TensorData {
    tensor.into_data().convert::<f32>()
}

/// Makes a tensor of these values.
pub(crate) fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// The dimensions of a tensor that must have `D` of them.
pub(crate) fn dimensions<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    tensor.layout().shape().dims()
}
