//! The memory of a Burn tensor, shared between the network and the parameter client.

use std::ops::{Deref, DerefMut};

use burn::tensor::{Bytes, DType, Device, Shape, Tensor, TensorData};
use windlass_wire::client::{self, FloatBuffer};

/// A parameter client that sends and fills the memory of tensors.
pub(crate) type ParameterClient = client::ParameterClient<TensorBuffer>;
/// Values as that client returns them.
pub(crate) type Pulled = client::Pulled<TensorBuffer>;

/// The floats of a tensor in the memory that Burn allocated. With `Vec<f32>`, most gradients would be copied: Burn's
/// CPU backend allocates the results of matrix products as bytes, and memory must be freed with the alignment that it
/// was allocated with.
#[derive(Debug, Clone)]
pub struct TensorBuffer(Bytes);

impl TensorBuffer {
    /// The values of a tensor, without a copy if no other tensor shares them.
    pub(crate) fn take<const D: usize>(tensor: Tensor<D>) -> Self {
        Self::read(tensor.into_data())
    }

    /// Wraps values that were read from a device.
    pub(crate) fn read(data: TensorData) -> Self {
        let bytes = data.try_cast_as::<f32>().expect("parameters are floats").into_parts().0;
        // Memory that a driver maps need not be aligned for floats.
        if bytemuck::try_cast_slice::<u8, f32>(&bytes).is_ok() {
            return Self(bytes);
        }
        let floats = bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned);
        floats.collect::<Vec<f32>>().into()
    }

    /// Makes the values shareable: every clone is a view of the same memory until one of them is written to.
    pub(crate) fn shared(self) -> Self {
        Self(self.0.shared())
    }

    /// Returns these values as tensor data of this shape, without a copy.
    pub(crate) fn into_data(self, shape: impl Into<Shape>) -> TensorData {
        TensorData::from_bytes(self.0, shape, DType::F32)
    }

    /// Returns these values as tensor data of one dimension, without a copy.
    pub(crate) fn into_flat_data(self) -> TensorData {
        let length = self.len();
        self.into_data([length])
    }

    /// A tensor with these values, without a copy.
    pub(crate) fn into_tensor<const D: usize>(self, shape: Shape, device: &Device) -> Tensor<D> {
        Tensor::from_data(self.into_data(shape), device)
    }
}

impl Default for TensorBuffer {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<f32>> for TensorBuffer {
    fn from(values: Vec<f32>) -> Self {
        Self(Bytes::from_elems(values))
    }
}

impl Deref for TensorBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }
}

impl DerefMut for TensorBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

impl PartialEq for TensorBuffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl FloatBuffer for TensorBuffer {
    fn zeros(len: usize) -> Self {
        vec![0.0; len].into()
    }

    fn floats(&self) -> &[f32] {
        self
    }

    fn floats_mut(&mut self) -> &mut [f32] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_shared_values_are_views_until_one_is_written_to() {
        let shared = TensorBuffer::from(vec![1.0, 2.0]).shared();
        let mut other = shared.clone();
        assert_eq!(other.as_ptr(), shared.as_ptr());
        other[0] = 3.0;
        assert_eq!((&shared[..], &other[..]), (&[1.0, 2.0][..], &[3.0, 2.0][..]));
    }

    #[test]
    fn a_gradient_and_the_values_in_its_place_stay_where_burn_put_them() {
        let device = Device::flex();
        // The results of a matrix product, of Burn's own constructor, and of the fused operations.
        let product = Tensor::<2>::ones([8, 300], &device).matmul(Tensor::ones([300, 70], &device));
        let plain = Tensor::<2>::from_data(TensorData::new(vec![2.0_f32; 560], [8, 70]), &device);
        for tensor in [product, plain] {
            let data = tensor.into_data();
            let address = data.as_bytes().as_ptr();
            let mut buffer = TensorBuffer::take(Tensor::<2>::from_data(data, &device));
            assert_eq!(buffer.as_ptr().cast(), address);
            assert_eq!(buffer.len(), 560);
            buffer.fill(3.0);
            let tensor: Tensor<2> = buffer.into_tensor(Shape::new([8, 70]), &device);
            let data = tensor.into_data();
            assert_eq!(data.as_bytes().as_ptr(), address);
            assert_eq!(data, TensorData::new(vec![3.0_f32; 560], [8, 70]));
        }
    }
}
