//! BLEU: how close translations are to the reference, by the n-grams of one to four words that they share.
//!
//! Computed for a whole corpus with one reference per sentence, as sacreBLEU does from the same tokens
//! (`tokenize none`, exponential smoothing, no effective order).

use std::collections::HashMap;
use std::hash::Hash;

/// The length of the longest n-grams that are compared.
pub const ORDERS: usize = 4;

/// The score of a corpus and its components.
#[derive(Clone, Debug, PartialEq)]
pub struct Bleu {
    /// The score, from 0 to 100.
    pub score: f64,
    /// The percentage of n-grams of each length, from one to four words, that occur in the reference, after smoothing.
    pub precisions: [f64; ORDERS],
    /// The factor by which translations that are too short reduce the score.
    pub brevity_penalty: f64,
    /// Words in the translations.
    pub candidate_words: usize,
    /// Words in the references.
    pub reference_words: usize,
}

impl Bleu {
    /// Scores translations, each with its reference.
    pub fn of<'a, T: Hash + Eq + 'a>(corpus: impl IntoIterator<Item = (&'a [T], &'a [T])>) -> Self {
        let mut counts = Counts::default();
        corpus.into_iter().for_each(|(candidate, reference)| counts.add(candidate, reference));
        counts.score()
    }
}

/// The counts over all sentences.
#[derive(Default)]
struct Counts {
    correct: [usize; ORDERS],
    total: [usize; ORDERS],
    candidate_words: usize,
    reference_words: usize,
}

impl Counts {
    fn add<T: Hash + Eq>(&mut self, candidate: &[T], reference: &[T]) {
        self.candidate_words += candidate.len();
        self.reference_words += reference.len();
        for (order, (correct, total)) in (1..).zip(self.correct.iter_mut().zip(&mut self.total)) {
            // An n-gram counts at most as often as it occurs in the reference.
            let mut left: HashMap<&[T], usize> = HashMap::new();
            reference.windows(order).for_each(|run| *left.entry(run).or_default() += 1);
            for run in candidate.windows(order) {
                *total += 1;
                if let Some(left) = left.get_mut(run).filter(|left| **left > 0) {
                    *left -= 1;
                    *correct += 1;
                }
            }
        }
    }

    fn score(&self) -> Bleu {
        let (precisions, brevity_penalty) = (self.precisions(), self.brevity_penalty());
        let logarithms: f64 = precisions.iter().map(|precision| precision.ln()).sum();
        Bleu {
            score: brevity_penalty * (logarithms / ORDERS as f64).exp(),
            precisions,
            brevity_penalty,
            candidate_words: self.candidate_words,
            reference_words: self.reference_words,
        }
    }

    /// Orders without a match are smoothed: the first counts as half a match, the next as a quarter, and so on.
    fn precisions(&self) -> [f64; ORDERS] {
        let mut precisions = [0.0; ORDERS];
        if self.correct[0] == 0 {
            return precisions;
        }
        let mut smallest = 1.0;
        for (precision, (&correct, &total)) in precisions.iter_mut().zip(self.correct.iter().zip(&self.total)) {
            if total == 0 {
                break;
            }
            let matches = if correct > 0 {
                correct as f64
            } else {
                smallest /= 2.0;
                smallest
            };
            *precision = 100.0 * matches / total as f64;
        }
        precisions
    }

    fn brevity_penalty(&self) -> f64 {
        if self.candidate_words >= self.reference_words {
            return 1.0;
        }
        // Without any words, the quotient is infinite and the penalty zero.
        (1.0 - self.reference_words as f64 / self.candidate_words as f64).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bleu(corpus: &[(&str, &str)]) -> Bleu {
        let split: Vec<(Vec<&str>, Vec<&str>)> =
            corpus.iter().map(|(one, other)| (one.split(' ').collect(), other.split(' ').collect())).collect();
        Bleu::of(split.iter().map(|(candidate, reference)| (&candidate[..], &reference[..])))
    }

    fn assert_close(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-9, "{got}, expected {expected}");
    }

    #[test]
    fn a_perfect_translation_scores_a_hundred() {
        let bleu = bleu(&[("the cat sat on the mat", "the cat sat on the mat"), ("so it did", "so it did")]);
        assert_close(bleu.score, 100.0);
        assert_eq!(bleu.precisions, [100.0; 4]);
    }

    #[test]
    fn a_run_counts_as_often_as_the_reference_has_it() {
        // The paper's example: of seven "the", the reference has two.
        let bleu = bleu(&[("the the the the the the the", "the cat is on the mat")]);
        assert_close(bleu.precisions[0], 100.0 * 2.0 / 7.0);
        // No match among 6, 5 and 4 longer n-grams: half, a quarter, an eighth of a match.
        assert_close(bleu.precisions[1], 100.0 / 2.0 / 6.0);
        assert_close(bleu.precisions[2], 100.0 / 4.0 / 5.0);
        assert_close(bleu.precisions[3], 100.0 / 8.0 / 4.0);
        let product = 2.0 / 7.0 / (2.0 * 6.0) / (4.0 * 5.0) / (8.0 * 4.0);
        assert_close(bleu.score, 100.0 * f64::powf(product, 0.25));
    }

    #[test]
    fn counts_are_summed_over_the_corpus_before_they_are_divided() {
        let bleu = bleu(&[("a b c d e", "a b c d f"), ("g h i j", "g h i j")]);
        let expected = [8.0 / 9.0, 6.0 / 7.0, 4.0 / 5.0, 2.0 / 3.0];
        bleu.precisions.iter().zip(expected).for_each(|(&got, expected)| assert_close(got, 100.0 * expected));
        assert_close(bleu.score, 100.0 * expected.iter().product::<f64>().powf(0.25));
    }

    #[test]
    fn short_translations_are_punished_and_long_ones_are_not() {
        let short = bleu(&[("a b c d", "a b c d e")]);
        assert_close(short.brevity_penalty, f64::exp(1.0 - 5.0 / 4.0));
        assert_close(short.score, 100.0 * f64::exp(-0.25));
        assert_close(bleu(&[("a b c d e", "a b c d")]).brevity_penalty, 1.0);
    }

    #[test]
    fn nothing_in_common_scores_zero() {
        let bleu = bleu(&[("a b c d e", "f g h i j")]);
        assert_eq!((bleu.score, bleu.precisions), (0.0, [0.0; 4]));
    }

    #[test]
    fn a_corpus_without_runs_of_four_words_scores_zero() {
        let bleu = bleu(&[("a b c", "a b c"), ("d", "d")]);
        assert_eq!((bleu.score, bleu.precisions), (0.0, [100.0, 100.0, 100.0, 0.0]));
    }

    #[test]
    fn translations_without_words_score_zero() {
        let none: &[u32] = &[];
        let empty = Bleu::of([(none, &[1, 2, 3][..])]);
        assert_eq!((empty.score, empty.brevity_penalty), (0.0, 0.0));
        assert_eq!(Bleu::of::<u32>([]).score, 0.0);
    }
}
