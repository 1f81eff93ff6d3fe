//! Which samples make up each batch: the order in which one worker goes through the data.
//!
//! By default every worker sees all of the data in its own order. With sharding, worker k of n sees every n-th sample,
//! or every n-th file if the samples are stored in files. The last batch of an epoch is dropped if it is not full, so
//! that every step has the same size.
//!
//! Samples in files are shuffled within their file, and the files among each other, so that a batch reads from only one
//! or two files: this avoids random access to a disk or remote store for every batch.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// How a worker goes through the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderConfig {
    /// The number of samples.
    pub samples: usize,
    /// Samples per batch.
    pub batch_size: usize,
    /// Whether each epoch has its own order.
    pub shuffle: bool,
    /// The run's seed.
    pub seed: u64,
    /// The worker's number.
    pub worker: u32,
    /// The number of workers that share the data out, if they do.
    pub shards: Option<u32>,
    /// The number of samples in each file, if they are stored in files.
    pub files: Vec<usize>,
}

/// Why there is nothing to train on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// A batch needs more samples than there are.
    #[error("--batch-size {batch_size} is more than this worker's {samples} samples")]
    TooFewSamples {
        /// The batch size.
        batch_size: usize,
        /// The samples there are.
        samples: usize,
    },
    /// The batches of one step need more samples than there are.
    #[error(
        "--accumulate {accumulate} makes a step of {} samples with --batch-size {batch_size}, more than this worker's \
         {samples}",
        accumulate * batch_size
    )]
    TooFewForStep {
        /// The batch size.
        batch_size: usize,
        /// Batches per step.
        accumulate: usize,
        /// The samples there are.
        samples: usize,
    },
    /// There are fewer files than workers.
    #[error("{files} files cannot be shared out to {workers} workers: each needs at least one")]
    TooFewFiles {
        /// The number of files.
        files: usize,
        /// The number of workers.
        workers: u32,
    },
    /// The model's sample counts contradict each other.
    #[error("the model has {samples} samples, but its files have {in_files}")]
    FilesDiffer {
        /// The number of samples.
        samples: usize,
        /// The sum over the files.
        in_files: usize,
    },
}

/// The position of a batch in a worker's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataPosition {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// The batch within the epoch, counted from 1.
    pub batch: usize,
}

impl DataPosition {
    /// Whether it is the last batch of this epoch or of a later one, with this many batches per epoch.
    pub(crate) fn is_end_of(self, epoch: u64, batches: usize) -> bool {
        self.epoch >= epoch && self.batch == batches
    }
}

/// One worker's endless walk through the data.
#[derive(Debug, Clone)]
pub struct Order {
    config: OrderConfig,
    /// This worker's samples by file; a single list if they are not stored in files.
    files: Vec<Vec<usize>>,
    /// The same samples in the order of this epoch.
    own: Vec<usize>,
    epoch: u64,
    batch: usize,
}

impl Order {
    /// Starts before the first batch of the first epoch.
    pub fn new(config: OrderConfig) -> Result<Self, OrderError> {
        let files = files(&config)?;
        let own: usize = files.iter().map(Vec::len).sum();
        if config.batch_size == 0 || own < config.batch_size {
            return Err(OrderError::TooFewSamples { batch_size: config.batch_size, samples: own });
        }
        let mut order = Self { config, files, own: Vec::with_capacity(own), epoch: 1, batch: 0 };
        order.shuffle();
        Ok(order)
    }

    /// The number of batches per epoch.
    pub fn batches(&self) -> usize {
        self.own.len() / self.config.batch_size
    }

    /// Returns the samples of the next batch and its position.
    pub fn next_batch(&mut self) -> (&[usize], DataPosition) {
        if self.batch == self.batches() {
            self.epoch += 1;
            self.batch = 0;
            self.shuffle();
        }
        let start = self.batch * self.config.batch_size;
        self.batch += 1;
        let position = DataPosition { epoch: self.epoch, batch: self.batch };
        (&self.own[start..start + self.config.batch_size], position)
    }

    /// Continues after this many batches.
    pub fn seek(&mut self, batches: u64) {
        self.epoch = 1 + batches / self.batches() as u64;
        self.batch = (batches % self.batches() as u64) as usize;
        self.shuffle();
    }

    /// The number of epochs completed.
    pub fn epochs_done(&self) -> u64 {
        if self.batch == self.batches() { self.epoch } else { self.epoch - 1 }
    }

    /// The number of samples that each epoch omits, because they do not fill a batch.
    pub(crate) fn left_out(&self) -> usize {
        self.own.len() % self.config.batch_size
    }

    /// Returns samples for a batch that is not counted.
    pub(crate) fn peek(&self) -> &[usize] {
        &self.own[..self.config.batch_size]
    }

    /// Orders the samples of the epoch. The order depends only on the seed, the worker and the epoch.
    fn shuffle(&mut self) {
        self.own.clear();
        if !self.config.shuffle {
            self.own.extend(self.files.iter().flatten());
            return;
        }
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.config.seed.to_le_bytes());
        seed[8..12].copy_from_slice(&self.config.worker.to_le_bytes());
        seed[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        let mut random = StdRng::from_seed(seed);
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        if order.len() > 1 {
            order.shuffle(&mut random);
        }
        for file in order {
            let start = self.own.len();
            self.own.extend(&self.files[file]);
            self.own[start..].shuffle(&mut random);
        }
    }
}

/// Returns the samples of one worker, file by file.
fn files(config: &OrderConfig) -> Result<Vec<Vec<usize>>, OrderError> {
    let worker = config.worker as usize;
    if config.files.is_empty() {
        return Ok(vec![match config.shards {
            Some(shards) => (worker..config.samples).step_by(shards as usize).collect(),
            None => (0..config.samples).collect(),
        }]);
    }
    let in_files = config.files.iter().sum();
    if in_files != config.samples {
        return Err(OrderError::FilesDiffer { samples: config.samples, in_files });
    }
    let mut start = 0;
    let all = config.files.iter().map(|samples| {
        start += samples;
        (start - samples..start).collect()
    });
    match config.shards {
        None => Ok(all.collect()),
        Some(shards) if (shards as usize) <= config.files.len() => {
            Ok(all.skip(worker).step_by(shards as usize).collect())
        }
        Some(workers) => Err(OrderError::TooFewFiles { files: config.files.len(), workers }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> OrderConfig {
        OrderConfig { samples: 10, batch_size: 3, shuffle: true, seed: 1, worker: 0, shards: None, files: Vec::new() }
    }

    fn epoch(order: &mut Order) -> Vec<usize> {
        (0..order.batches()).flat_map(|_| order.next_batch().0.to_vec()).collect()
    }

    #[test]
    fn an_epoch_has_each_sample_at_most_once() {
        let mut order = Order::new(config()).unwrap();
        for _ in 0..5 {
            let mut samples = epoch(&mut order);
            samples.sort_unstable();
            samples.dedup();
            assert_eq!(samples.len(), 9);
        }
        assert_eq!(order.left_out(), 1);
    }

    #[test]
    fn workers_and_epochs_have_orders_of_their_own_and_the_same_every_time() {
        let mut order = Order::new(config()).unwrap();
        let (first, second) = (epoch(&mut order), epoch(&mut order));
        assert_ne!(first, second);
        assert_eq!(epoch(&mut Order::new(config()).unwrap()), first);
        assert_ne!(epoch(&mut Order::new(OrderConfig { worker: 1, ..config() }).unwrap()), first);
    }

    #[test]
    fn shards_share_the_data_out() {
        let shard = |worker| {
            let config = OrderConfig { worker, shards: Some(2), batch_size: 5, ..config() };
            epoch(&mut Order::new(config).unwrap())
        };
        let mut all = [shard(0), shard(1)].concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn without_shuffling_the_data_is_read_in_order() {
        let mut order = Order::new(OrderConfig { shuffle: false, ..config() }).unwrap();
        assert_eq!(order.next_batch().0, [0, 1, 2]);
        assert_eq!(order.next_batch(), (&[3, 4, 5][..], DataPosition { epoch: 1, batch: 2 }));
        order.next_batch();
        assert_eq!(order.next_batch(), (&[0, 1, 2][..], DataPosition { epoch: 2, batch: 1 }));
    }

    #[test]
    fn whoever_goes_to_a_place_reads_on_as_if_having_read_up_to_it() {
        for batches in 0..12 {
            let mut read = Order::new(config()).unwrap();
            for _ in 0..batches {
                read.next_batch();
            }
            let mut gone = Order::new(config()).unwrap();
            gone.seek(batches);
            assert_eq!(gone.epochs_done(), batches / 3);
            for _ in 0..5 {
                assert_eq!(gone.next_batch(), read.next_batch());
            }
        }
    }

    #[test]
    fn a_batch_larger_than_the_data_is_refused() {
        let error = Order::new(OrderConfig { batch_size: 11, ..config() }).unwrap_err();
        assert_eq!(error.to_string(), "--batch-size 11 is more than this worker's 10 samples");
    }

    #[test]
    fn files_are_dealt_out_whole_and_read_one_after_the_other() {
        let shard = |worker| {
            let config = OrderConfig { worker, shards: Some(2), files: vec![3, 2, 4, 1], batch_size: 1, ..config() };
            epoch(&mut Order::new(config).unwrap())
        };
        let (mut first, mut second) = (shard(0), shard(1));
        let file = |sample: &usize| [0, 0, 0, 1, 1, 2, 2, 2, 2, 3][*sample];
        let files: Vec<i32> = first.iter().map(file).collect();
        assert!(files == [0, 0, 0, 2, 2, 2, 2] || files == [2, 2, 2, 2, 0, 0, 0], "{files:?}");
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!((&first[..], &second[..]), (&[0, 1, 2, 5, 6, 7, 8][..], &[3, 4, 9][..]));
    }

    #[test]
    fn files_that_are_too_few_or_do_not_add_up_are_refused() {
        let refused = |shards, files: &[usize]| {
            Order::new(OrderConfig { shards, files: files.to_vec(), ..config() }).unwrap_err().to_string()
        };
        assert_eq!(refused(Some(3), &[4, 6]), "2 files cannot be shared out to 3 workers: each needs at least one");
        assert_eq!(refused(None, &[4, 5]), "the model has 10 samples, but its files have 9");
    }
}
