//! Which pairs make a batch.

use proptest::prelude::*;
use windlass_data::text::buckets::{BUCKETS, first_fit, first_fit_to_translate, in_one_bucket};
use windlass_data::text::{Bucket, BucketedPairs, Pairs, Sentences};

/// Pairs with these numbers of words; pair `i` has the words `i` on both sides.
fn pairs(lengths: &[(usize, usize)]) -> Pairs {
    let side = |length: fn(&(usize, usize)) -> usize| -> Sentences {
        (0..).zip(lengths).map(|(pair, lengths)| vec![pair; length(lengths)]).collect()
    };
    Pairs::new(side(|lengths| lengths.0), side(|lengths| lengths.1))
}

/// `counts[b]` pairs that just fit into bucket `b`.
fn corpus(counts: [usize; 4]) -> BucketedPairs {
    let lengths = BUCKETS.iter().zip(counts).flat_map(|(bucket, count)| vec![(bucket.from - 1, bucket.to - 2); count]);
    BucketedPairs::new(pairs(&lengths.collect::<Vec<_>>()), &BUCKETS)
}

/// The pairs in a batch's rows, identified by their first word.
fn rows(batch: &windlass_data::text::Batch) -> Vec<u32> {
    batch.targets[..batch.rows].to_vec()
}

/// A random permutation of the sample numbers, like the order of an epoch.
fn shuffled(samples: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    let mut state = seed;
    for last in (1..samples).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (state >> 33) as usize % (last + 1));
    }
    order
}

#[test]
fn a_pair_fits_strictly_and_the_end_of_the_sentence_counts() {
    let bucket = Bucket::new(5, 10);
    assert!(bucket.fits(4, 8));
    assert!(!bucket.fits(5, 8));
    assert!(!bucket.fits(4, 9));
    assert_eq!(first_fit(&BUCKETS, 4, 8), Some(0));
    assert_eq!(first_fit(&BUCKETS, 5, 1), Some(1));
    assert_eq!(first_fit(&BUCKETS, 1, 9), Some(1));
    assert_eq!(first_fit(&BUCKETS, 39, 48), Some(3));
    assert_eq!(first_fit(&BUCKETS, 40, 1), None);
    assert_eq!(first_fit(&BUCKETS, 1, 49), None);
    assert_eq!(first_fit_to_translate(&BUCKETS, 9), Some(1));
    assert_eq!(first_fit_to_translate(&BUCKETS, 40), None);
}

#[test]
fn samples_are_the_pairs_that_fit_bucket_by_bucket() {
    let bucketed =
        BucketedPairs::new(pairs(&[(12, 3), (2, 2), (0, 3), (41, 2), (3, 3), (2, 0), (2, 60), (6, 20)]), &BUCKETS);
    assert_eq!(bucketed.len(), 4);
    let first_words: Vec<u32> = (0..4).map(|sample| bucketed.pair(sample).0[0]).collect();
    assert_eq!(first_words, [1, 4, 0, 7]);
    let buckets: Vec<usize> = (0..4).map(|sample| bucketed.bucket_of(sample)).collect();
    assert_eq!(buckets, [0, 0, 2, 2]);
    assert_eq!((0..4).map(|bucket| bucketed.samples_of(bucket)).collect::<Vec<_>>(), [0..2, 2..2, 2..4, 4..4]);
    assert_eq!(
        bucketed.statistics().to_string(),
        "4 pairs: 2 in (5,10), 0 in (10,15), 2 in (20,25), 0 in (40,50); 2 too long; 2 with a blank side"
    );
}

#[test]
fn a_batch_has_the_shape_of_its_bucket() {
    let bucketed = corpus([3, 5, 0, 0]);
    let batch = bucketed.batch(&[4, 0, 5]);
    assert_eq!((batch.bucket, batch.rows), (BUCKETS[1], 3));
    assert_eq!(batch.encoder_inputs.len(), 10 * 3);
    assert_eq!([batch.decoder_inputs.len(), batch.targets.len(), batch.weights.len()], [14 * 3; 3]);
    let rows = rows(&batch);
    assert_eq!((rows[0], rows[2]), (4, 5), "samples of the bucket stay where they are");
    assert!((3..8).contains(&rows[1]) && rows[1] != 4 && rows[1] != 5, "the other gives way: {rows:?}");
}

#[test]
fn buckets_are_met_in_proportion_to_their_size() {
    let bucketed = corpus([100, 500, 350, 50]);
    let mut met = [0.0_f64; 4];
    let mut batches = 0.0;
    for epoch in 0..200 {
        for samples in shuffled(bucketed.len(), epoch).chunks_exact(8) {
            let bucket = bucketed.batch(samples).bucket;
            met[BUCKETS.iter().position(|&other| other == bucket).unwrap()] += 1.0;
            batches += 1.0;
        }
    }
    // Chi-square with three degrees of freedom exceeds 16.3 once in a thousand, and the seeds are fixed.
    let expected = [0.1, 0.5, 0.35, 0.05].map(|share| share * batches);
    let chi_square: f64 = met.iter().zip(expected).map(|(met, expected)| (met - expected).powi(2) / expected).sum();
    assert!(chi_square < 16.3, "{met:?} of {batches}: {chi_square}");
}

#[test]
fn every_pair_is_reached_and_as_often_as_any_other() {
    let bucketed = corpus([20, 100, 70, 10]);
    let mut reached = vec![0.0; bucketed.len()];
    let epochs = 400;
    for epoch in 0..epochs {
        for samples in shuffled(bucketed.len(), 1_000 + epoch).chunks_exact(8) {
            rows(&bucketed.batch(samples)).into_iter().for_each(|pair| reached[pair as usize] += 1.0);
        }
    }
    // Once per epoch on average. In the smallest bucket, a batch uses most of its 10 pairs at once, so that the counts
    // deviate by about √(epochs × 8).
    let spread = (epochs as f64 * 8.0).sqrt();
    for (pair, &times) in reached.iter().enumerate() {
        assert!((times - epochs as f64).abs() < 4.0 * spread, "pair {pair} was reached {times} times");
    }
}

#[test]
fn a_bucket_smaller_than_the_batch_is_used_evenly() {
    let samples: Vec<usize> = (0..64).collect();
    let batch = in_one_bucket(&samples, 0..10);
    let times = (0..10).map(|sample| batch.iter().filter(|&&other| other == sample).count());
    assert!(times.clone().all(|times| times == 6 || times == 7), "{:?}", times.collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn a_batch_is_of_one_bucket_without_repeats_and_the_same_every_time(
        counts in prop::array::uniform4(0_usize..60),
        size in 1_usize..64,
        seed: u64,
    ) {
        let bucketed = corpus(counts);
        let order = shuffled(bucketed.len(), seed);
        for samples in order.chunks(size) {
            let bucket = bucketed.samples_of(bucketed.bucket_of(samples[0]));
            let drawn = in_one_bucket(samples, bucket.clone());
            prop_assert_eq!(&drawn, &in_one_bucket(samples, bucket.clone()));
            prop_assert_eq!(drawn.len(), samples.len());
            prop_assert!(drawn.iter().all(|sample| bucket.contains(sample)));
            for (drawn, sample) in drawn.iter().zip(samples) {
                prop_assert!(drawn == sample || !bucket.contains(sample));
            }
            let mut distinct = drawn.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), samples.len().min(bucket.len()));
            prop_assert_eq!(rows(&bucketed.batch(samples)).len(), samples.len());
        }
    }
}
