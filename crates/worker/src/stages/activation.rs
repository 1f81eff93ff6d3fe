//! The tensors that pass between stages: floats whose number of dimensions only the two stages know.

use anyhow::ensure;
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

/// A tensor between two stages, kept flat beside its shape. Conversion is free if its values are contiguous.
#[derive(Debug, Clone)]
pub struct Activation {
    flat: Tensor<1>,
    shape: Vec<usize>,
}

impl<const D: usize> From<Tensor<D>> for Activation {
    fn from(tensor: Tensor<D>) -> Self {
        let shape = tensor.dims().to_vec();
        Self { flat: tensor.reshape([shape.iter().product::<usize>()]), shape }
    }
}

impl Activation {
    /// Returns the tensor if it has this many dimensions.
    pub fn into_tensor<const D: usize>(self) -> anyhow::Result<Tensor<D>> {
        let Self { flat, shape } = self;
        let got = shape.len();
        ensure!(got == D, "a stage expects a tensor of {D} dimensions, got shape {shape:?}");
        Ok(flat.reshape(Shape::from(shape)))
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn flat(&self) -> &Tensor<1> {
        &self.flat
    }

    /// An activation that a stage receives, where the stage's gradients end.
    pub(crate) fn received(data: TensorData, device: &Device) -> Self {
        let shape = data.shape().to_vec();
        Self { flat: flat(data, device).require_grad(), shape }
    }

    /// Copies the values.
    pub(crate) fn data(&self) -> TensorData {
        with_shape(self.flat.clone().inner().into_data(), self.shape.clone())
    }
}

/// Makes a flat tensor of these values.
pub(crate) fn flat(data: TensorData, device: &Device) -> Tensor<1> {
    let elements = data.num_elements();
    Tensor::from_data(with_shape(data, vec![elements]), device)
}

/// Gives the same values another shape.
pub(crate) fn with_shape(data: TensorData, shape: Vec<usize>) -> TensorData {
    let (bytes, _, dtype) = data.into_parts();
    debug_assert_eq!(dtype, DType::F32);
    TensorData::from_bytes(bytes, shape, dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_comes_out_as_it_went_in_and_its_gradient_flows_back() {
        let device = Device::flex().autodiff();
        let made = Tensor::<2>::from_data([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
        // Transposed, so that its values are not contiguous.
        let received = Activation::received(Activation::from(made.transpose()).data(), &device);
        assert_eq!(received.shape(), [3, 2]);
        let tensor = received.clone().into_tensor::<2>().unwrap();
        assert_eq!(tensor.to_data(), TensorData::from([[1.0_f32, 4.0], [2.0, 5.0], [3.0, 6.0]]));
        let gradients = (tensor.powi_scalar(2)).sum().backward();
        let gradient = received.flat().grad(&gradients).unwrap().into_data();
        assert_eq!(gradient, TensorData::from([2.0_f32, 8.0, 4.0, 10.0, 6.0, 12.0]));
        let refused = received.into_tensor::<3>().unwrap_err().to_string();
        assert_eq!(refused, "a stage expects a tensor of 3 dimensions, got shape [3, 2]");
    }
}
