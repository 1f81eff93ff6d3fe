//! Two simple scores of a translation model: the share of exact translations, and perplexity.

/// The share of translations, from 0 to 1, that equal their reference word for word; 0 if there are none.
pub fn exact_matches<'a, T: Eq + 'a>(corpus: impl IntoIterator<Item = (&'a [T], &'a [T])>) -> f64 {
    let (mut matches, mut count) = (0_usize, 0_usize);
    for (candidate, reference) in corpus {
        matches += usize::from(candidate == reference);
        count += 1;
    }
    if count == 0 { 0.0 } else { matches as f64 / count as f64 }
}

/// The perplexity of a mean cross-entropy in nats: the number of words that the model is effectively choosing from.
///
/// It is infinite from a loss of 300 on, as in TensorFlow's translation tutorial.
pub fn perplexity(loss: f64) -> f64 {
    if loss >= 300.0 { f64::INFINITY } else { loss.exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sentences_match() {
        let corpus: [(&[u32], &[u32]); 4] = [(&[1, 2], &[1, 2]), (&[1], &[1, 2]), (&[2, 1], &[1, 2]), (&[], &[])];
        assert_eq!(exact_matches(corpus), 0.5);
        assert_eq!(exact_matches::<u32>([]), 0.0);
    }

    #[test]
    fn perplexity_is_the_number_of_words_a_guess_is_among() {
        assert_eq!(perplexity(0.0), 1.0);
        assert!((perplexity(f64::ln(40_000.0)) - 40_000.0).abs() < 1e-6);
    }

    #[test]
    fn an_absurd_loss_has_infinite_perplexity_and_no_loss_has_none() {
        assert_eq!(perplexity(300.0), f64::INFINITY);
        assert!(perplexity(299.9).is_finite());
        assert!(perplexity(f64::NAN).is_nan());
    }
}
