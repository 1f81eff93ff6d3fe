//! Scores a network's translations of sentences that it was not trained on.

use windlass_data::text::score::{exact_matches, perplexity};
use windlass_data::text::{Bleu, BucketedPairs};
use windlass_worker::model::Metrics;

use super::batch::Batching;
use super::decode::greedy;
use super::network::Translator;
use super::text::Text;

/// Pairs that are scored at a time.
const TOGETHER: usize = 64;

/// The perplexity on each bucket of the dev text and on all of it, over all words instead of a sample. At most `most`
/// pairs are scored. The network has its whole tables.
pub(super) fn perplexities(network: &Translator, text: &Text, most: usize) -> Metrics {
    let batching = Batching { to_words: text.to.size(), samples: None, by_rows: false };
    let buckets = text.dev.buckets().len();
    let mut metrics = Metrics::new();
    let (mut all_losses, mut all_pairs) = (0.0, 0);
    for bucket in 0..buckets {
        let samples: Vec<usize> = text.dev.samples_of(bucket).take(most.div_ceil(buckets)).collect();
        if samples.is_empty() {
            continue;
        }
        let loss = |samples: &[usize]| {
            let loss = network.loss(&batching.batch(&text.dev.batch(samples), 0)).into_data();
            loss.iter::<f64>().sum::<f64>() * samples.len() as f64
        };
        let losses: f64 = samples.chunks(TOGETHER).map(loss).sum();
        metrics = metrics.perplexity(&format!("bucket_{bucket}_perplexity"), perplexity(losses / samples.len() as f64));
        all_losses += losses;
        all_pairs += samples.len();
    }
    if all_pairs == 0 {
        metrics
    } else {
        metrics.perplexity("dev_perplexity", perplexity(all_losses / all_pairs as f64))
    }
}

/// Adds the number of greedy translations that match word for word, and their BLEU score.
pub(super) fn translations(network: &Translator, text: &Text, metrics: Metrics) -> Metrics {
    if text.scored.is_empty() {
        return metrics;
    }
    let mut scored: Vec<(Vec<u32>, &[u32])> = Vec::with_capacity(text.scored.len());
    for samples in chunks(&text.scored) {
        let bucket = text.scored.buckets()[text.scored.bucket_of(samples[0])];
        let pairs: Vec<(&[u32], &[u32])> = samples.iter().map(|sample| text.scored.pair(*sample)).collect();
        let sentences: Vec<&[u32]> = pairs.iter().map(|(from, _)| *from).collect();
        let said = greedy(network, bucket, &sentences).into_iter().map(|translation| translation.words);
        scored.extend(said.zip(pairs.iter().map(|(_, to)| *to)));
    }
    let corpus = || scored.iter().map(|(said, right)| (&said[..], *right));
    metrics.fraction("exact_match", exact_matches(corpus())).number("bleu", Bleu::of(corpus()).score)
}

/// Chunks of samples, each from one bucket.
fn chunks(pairs: &BucketedPairs) -> Vec<Vec<usize>> {
    let buckets = (0..pairs.buckets().len()).map(|bucket| pairs.samples_of(bucket).collect::<Vec<_>>());
    buckets.flat_map(|samples| samples.chunks(TOGETHER).map(<[usize]>::to_vec).collect::<Vec<_>>()).collect()
}
