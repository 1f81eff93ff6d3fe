//! Reading Burn's tensors as slices of floats, without a copy where they are that already.

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, TensorData};

/// A tensor whose values are f32, one after the other.
pub(crate) struct Floats(FlexTensor);

impl Floats {
    pub(crate) fn new(tensor: FlexTensor) -> Self {
        Self(match tensor.dtype() {
            DType::F32 => tensor.to_contiguous(),
            _ => FlexTensor::from_data(tensor.into_data().convert::<f32>()),
        })
    }

    pub(crate) fn values(&self) -> &[f32] {
        self.0.as_slice().expect("made contiguous and f32")
    }

    /// The shape of a tensor that is known to have so many dimensions.
    pub(crate) fn shape<const D: usize>(&self) -> [usize; D] {
        self.0.layout().shape().dims()
    }
}

pub(crate) fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}
