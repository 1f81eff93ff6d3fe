//! Adapts a Burn data set and batcher to the samples and batches of a model.

use std::error::Error;

use anyhow::Context;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::Device;

/// Makes batches of type `O` from the items of a data set. A [`crate::model::Model`] keeps one and forwards its
/// `samples` and `batch` to it.
pub struct DatasetBatches<O> {
    samples: usize,
    make: Box<Make<O>>,
}

type Make<O> = dyn Fn(&[usize], &Device) -> anyhow::Result<O> + Send + Sync;

impl<O> DatasetBatches<O> {
    /// Batches of this data set, put together by this batcher. Items are read when their batch is made.
    pub fn new<I, E>(dataset: impl Dataset<I, E> + 'static, batcher: impl Batcher<I, O> + 'static) -> Self
    where
        E: Error + Send + Sync + 'static,
    {
        let samples = dataset.len();
        let make = move |samples: &[usize], device: &Device| {
            let items = dataset.get_many(samples.to_vec()).context("cannot read the data set")?;
            Ok(batcher.batch(items, device))
        };
        Self { samples, make: Box::new(make) }
    }

    /// The number of items.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Makes a batch of these items.
    pub fn batch(&self, samples: &[usize], device: &Device) -> anyhow::Result<O> {
        (self.make)(samples, device)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Tensor, TensorData};

    use super::*;

    /// A data set of numbers, one of which cannot be read.
    struct Numbers;

    impl Dataset<f32, std::io::Error> for Numbers {
        fn get(&self, index: usize) -> Result<f32, std::io::Error> {
            if index == 3 { Err(std::io::Error::other("bad sector")) } else { Ok(index as f32 * 10.0) }
        }

        fn len(&self) -> usize {
            5
        }
    }

    struct Column;

    impl Batcher<f32, Tensor<1>> for Column {
        fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> {
            let count = items.len();
            Tensor::from_data(TensorData::new(items, [count]), device)
        }
    }

    #[test]
    fn a_batch_has_the_items_that_were_asked_for_in_their_order() {
        let batches = DatasetBatches::new(Numbers, Column);
        assert_eq!(batches.samples(), 5);
        let batch = batches.batch(&[4, 0, 2], &Device::flex()).unwrap();
        assert_eq!(batch.into_data(), TensorData::from([40.0_f32, 0.0, 20.0]));
    }

    #[test]
    fn an_item_that_cannot_be_read_is_an_error() {
        let error = DatasetBatches::new(Numbers, Column).batch(&[1, 3], &Device::flex()).unwrap_err();
        assert_eq!(format!("{error:#}"), "cannot read the data set: bad sector");
    }
}
