//! Pairs sorted into buckets by length, so that a batch is not mostly padding, and batches of one bucket each.
//!
//! A pair goes to the first bucket that it strictly fits, as in TensorFlow's translation tutorial: its sentence has
//! fewer words than `from`, and its translation, including the end of the sentence, fewer than `to`. Pairs that fit
//! none, or have an empty side, are left out and counted. This module must not keep any state between batches: the
//! pairs of a batch depend only on the requested sample numbers.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use super::batch::Batch;
use super::pairs::Pairs;
use crate::randomness::Randomness;

/// The tutorial's buckets.
pub const BUCKETS: [Bucket; 4] = [Bucket::new(5, 10), Bucket::new(10, 15), Bucket::new(20, 25), Bucket::new(40, 50)];

/// The limits on the lengths of the pairs that share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Sentences to translate have fewer words than this.
    pub from: usize,
    /// Translations, including their end, have fewer words than this.
    pub to: usize,
}

impl Bucket {
    /// A bucket of these lengths.
    pub const fn new(from: usize, to: usize) -> Self {
        Self { from, to }
    }

    /// Whether a pair with these numbers of words, not counting the end of the sentence, fits.
    pub const fn fits(&self, from_words: usize, to_words: usize) -> bool {
        from_words < self.from && to_words + 1 < self.to
    }

    /// Steps of the encoder: one for each word, and at least one of padding.
    pub const fn encoder_steps(&self) -> usize {
        self.from
    }

    /// Steps of the decoder: one for each word of the translation, including its end. The tutorial has one more, whose
    /// target is always padding.
    pub const fn decoder_steps(&self) -> usize {
        self.to.saturating_sub(1)
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "({},{})", self.from, self.to)
    }
}

/// The first bucket that a pair fits.
pub fn first_fit(buckets: &[Bucket], from_words: usize, to_words: usize) -> Option<usize> {
    buckets.iter().position(|bucket| bucket.fits(from_words, to_words))
}

/// The first bucket for a sentence that has no translation yet.
pub fn first_fit_to_translate(buckets: &[Bucket], from_words: usize) -> Option<usize> {
    buckets.iter().position(|bucket| from_words < bucket.from)
}

/// How a corpus is distributed over the buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// The buckets and the number of pairs in each.
    pub buckets: Vec<(Bucket, usize)>,
    /// Pairs left out because they fit no bucket.
    pub too_long: usize,
    /// Pairs left out because a side is empty.
    pub blank: usize,
}

impl fmt::Display for Statistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: usize = self.buckets.iter().map(|(_, pairs)| pairs).sum();
        write!(formatter, "{pairs} pairs")?;
        for (index, (bucket, pairs)) in self.buckets.iter().enumerate() {
            write!(formatter, "{} {pairs} in {bucket}", if index == 0 { ":" } else { "," })?;
        }
        if self.too_long > 0 {
            write!(formatter, "; {} too long", self.too_long)?;
        }
        if self.blank > 0 {
            write!(formatter, "; {} with a blank side", self.blank)?;
        }
        Ok(())
    }
}

/// Pairs grouped by bucket. A sample is a pair's position in this order, which begins with all of the first bucket.
#[derive(Clone, Debug)]
pub struct BucketedPairs {
    pairs: Pairs,
    buckets: Vec<Bucket>,
    /// The pair behind each sample.
    samples: Vec<usize>,
    /// Where each bucket ends in `samples`.
    ends: Vec<usize>,
    too_long: usize,
    blank: usize,
}

impl BucketedPairs {
    /// Sorts pairs into buckets, which must be ordered from short to long.
    pub fn new(pairs: Pairs, buckets: &[Bucket]) -> Self {
        let mut members = vec![Vec::new(); buckets.len()];
        let (mut too_long, mut blank) = (0, 0);
        for (index, (from, to)) in pairs.iter().enumerate() {
            if from.is_empty() || to.is_empty() {
                blank += 1;
            } else if let Some(bucket) = first_fit(buckets, from.len(), to.len()) {
                members[bucket].push(index);
            } else {
                too_long += 1;
            }
        }
        let ends = members.iter().scan(0, |end, members| {
            *end += members.len();
            Some(*end)
        });
        let ends = ends.collect();
        Self { pairs, buckets: buckets.to_vec(), samples: members.concat(), ends, too_long, blank }
    }

    /// All pairs, in their original order.
    pub fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// The number of samples, which are the pairs that fit a bucket.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether no pair fits a bucket.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The buckets.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The samples of a bucket.
    ///
    /// # Panics
    /// Panics if there is no such bucket.
    pub fn samples_of(&self, bucket: usize) -> Range<usize> {
        let start = if bucket == 0 { 0 } else { self.ends[bucket - 1] };
        start..self.ends[bucket]
    }

    /// The bucket of a sample.
    ///
    /// # Panics
    /// Panics if there is no such sample.
    pub fn bucket_of(&self, sample: usize) -> usize {
        assert!(sample < self.len(), "sample {sample} of {}", self.len());
        self.ends.partition_point(|&end| end <= sample)
    }

    /// The words of a sample and of its translation.
    ///
    /// # Panics
    /// Panics if there is no such sample.
    pub fn pair(&self, sample: usize) -> (&[u32], &[u32]) {
        self.pairs.get(self.samples[sample])
    }

    /// The batch for these samples, all from the bucket of the first: see [`in_one_bucket`].
    ///
    /// If samples are drawn uniformly, so is the first, and buckets occur in proportion to their size.
    ///
    /// # Panics
    /// Panics if `samples` is empty or contains an unknown sample.
    pub fn batch(&self, samples: &[usize]) -> Batch {
        let bucket = self.bucket_of(samples[0]);
        let samples = in_one_bucket(samples, self.samples_of(bucket));
        let pairs: Vec<_> = samples.into_iter().map(|sample| self.pair(sample)).collect();
        Batch::new(self.buckets[bucket], &pairs)
    }

    /// How the pairs are distributed over the buckets.
    pub fn statistics(&self) -> Statistics {
        let sizes = (0..self.buckets.len()).map(|bucket| self.samples_of(bucket).len());
        let buckets = self.buckets.iter().copied().zip(sizes).collect();
        Statistics { buckets, too_long: self.too_long, blank: self.blank }
    }
}

/// Returns as many samples, all from `bucket`: those already in it keep their positions, and each of the others is
/// replaced by one drawn from it.
///
/// The draws depend on `samples` alone. No sample repeats until the whole bucket has been used, and within an epoch
/// every sample of every bucket is equally likely.
///
/// # Panics
/// Panics if `bucket` is empty.
pub fn in_one_bucket(samples: &[usize], bucket: Range<usize>) -> Vec<usize> {
    assert!(!bucket.is_empty(), "nothing can be drawn from an empty bucket");
    let mut randomness = Randomness::of_key(samples.iter().map(|&sample| sample as u64));
    let mut used: HashSet<usize> = samples.iter().copied().filter(|sample| bucket.contains(sample)).collect();
    let mut fresh = || {
        if used.len() == bucket.len() {
            used.clear();
        }
        loop {
            let sample = bucket.start + randomness.below_u64(bucket.len() as u64) as usize;
            if used.insert(sample) {
                return sample;
            }
        }
    };
    samples.iter().map(|&sample| if bucket.contains(&sample) { sample } else { fresh() }).collect()
}
