//! Values of many tensors between host and device. On a card, all of them take a single transfer in each direction; on
//! the CPU nothing is moved.

use burn::tensor::{Device, Tensor, TensorData, Transaction};

use crate::buffer::TensorBuffer;

/// Tensors on their way to the host. From a card all of them come in one transfer; on the CPU each is available at
/// once, in its own memory.
pub(super) struct Download {
    /// The tensors still to come.
    transaction: Option<Transaction>,
    /// One per tensor; `None` for those still to come.
    buffers: Vec<Option<TensorBuffer>>,
}

impl Download {
    pub(super) fn from(device: &Device) -> Self {
        Self { transaction: (*device != Device::flex()).then(Transaction::default), buffers: Vec::new() }
    }

    pub(super) fn add<const D: usize>(&mut self, tensor: Tensor<D>) {
        self.transaction = match self.transaction.take() {
            None => {
                self.buffers.push(Some(TensorBuffer::take(tensor)));
                None
            }
            Some(transaction) => {
                self.buffers.push(None);
                Some(transaction.register(tensor))
            }
        };
    }

    /// Adds values that are already on the host.
    pub(super) fn put(&mut self, buffer: TensorBuffer) {
        self.buffers.push(Some(buffer));
    }

    pub(super) fn finish(self) -> Vec<TensorBuffer> {
        let mut come = self.transaction.map(Transaction::execute).unwrap_or_default().into_iter();
        let mut next = || come.next().map(TensorBuffer::read).expect("one for each that was asked for");
        self.buffers.into_iter().map(|buffer| buffer.unwrap_or_else(&mut next)).collect()
    }
}

/// All values of a module on a card, uploaded in one transfer.
pub(super) struct Uploaded {
    all: Tensor<1>,
    /// The number of values that have been taken.
    taken: usize,
}

impl Uploaded {
    pub(super) fn new(values: &[TensorBuffer], device: &Device) -> Self {
        let mut all: Vec<f32> = Vec::with_capacity(values.iter().map(|values| values.len()).sum());
        values.iter().for_each(|values| all.extend_from_slice(values));
        let shape = [all.len()];
        Self { all: Tensor::from_data(TensorData::new(all, shape), &device.clone().inner()), taken: 0 }
    }

    /// Takes the next `count` values.
    pub(super) fn next(&mut self, count: usize) -> Tensor<1> {
        let range = self.taken..self.taken + count;
        self.taken = range.end;
        self.all.clone().slice([range])
    }
}
