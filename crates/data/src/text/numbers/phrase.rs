//! One random phrase about numbers, in both languages.

use super::LARGEST;
use super::words::{english, english_count, french};
use crate::randomness::Randomness;

const DECIMAL_PLACES: u64 = 12;

/// Numbers with words between them, in either language.
pub(super) struct Phrase {
    first: u64,
    rest: Vec<(Joint, u64)>,
}

/// The words between two numbers, in English and in French.
type Joint = (&'static str, &'static str);

const THEN: Joint = (" and then ", " et puis ");
const PLUS: Joint = (" plus ", " plus ");
const MINUS: Joint = (" minus ", " moins ");
const EQUALS: Joint = (" equals ", " égale ");

impl Phrase {
    /// Draws a number, a list of numbers, a sum or a difference.
    pub(super) fn draw(randomness: &mut Randomness) -> Self {
        let first = number(randomness);
        let rest = match randomness.below_u64(4) {
            0 | 1 => Vec::new(),
            2 => {
                let more = 1 + randomness.below_u64(2);
                (0..more).map(|_| (THEN, number(randomness))).collect()
            }
            _ => return Self::sum(first, number(randomness), randomness.below_u64(2) == 0),
        };
        Self { first, rest }
    }

    /// `one` plus `other` and the result, or the result minus `other`, which leaves `one`.
    fn sum(one: u64, other: u64, plus: bool) -> Self {
        // There are no words beyond the largest number: the larger of the two is then taken as the sum.
        let whole = one + other;
        if whole > LARGEST {
            let (whole, part) = (one.max(other), one.min(other));
            return Self::sum(whole - part, part, plus);
        }
        if plus {
            Self { first: one, rest: vec![(PLUS, other), (EQUALS, whole)] }
        } else {
            Self { first: whole, rest: vec![(MINUS, other), (EQUALS, one)] }
        }
    }

    /// The number of words in English.
    pub(super) fn english_count(&self) -> usize {
        let rest = self.rest.iter().map(|(joint, number)| joint.0.split_whitespace().count() + english_count(*number));
        english_count(self.first) + rest.sum::<usize>()
    }

    pub(super) fn english(&self) -> String {
        self.rest.iter().fold(english(self.first), |phrase, (joint, number)| phrase + joint.0 + &english(*number))
    }

    pub(super) fn french(&self) -> String {
        self.rest.iter().fold(french(self.first), |phrase, (joint, number)| phrase + joint.1 + &french(*number))
    }
}

/// A number of any size: all digit counts are equally likely, and half of the numbers are rounded.
fn number(randomness: &mut Randomness) -> u64 {
    let digits = 1 + randomness.below_u64(DECIMAL_PLACES) as u32;
    let least = if digits == 1 { 0 } else { 10u64.pow(digits - 1) };
    let number = least + randomness.below_u64(10u64.pow(digits) - least);
    if randomness.below_u64(2) == 0 { number } else { rounded(number, randomness) }
}

/// Rounds a number, so that numbers of few words occur in every size: each group of three digits after the first
/// becomes zero, or keeps only its hundreds, or only the rest.
fn rounded(number: u64, randomness: &mut Randomness) -> u64 {
    if number < 1000 {
        return number;
    }
    let group = number % 1000;
    let group = match randomness.below_u64(4) {
        0 | 1 => 0,
        2 => group - group % 100,
        _ => group % 100,
    };
    rounded(number / 1000, randomness) * 1000 + group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_are_right() {
        let plus = Phrase::sum(20, 1, true);
        assert_eq!(plus.english(), "twenty plus one equals twenty-one");
        assert_eq!(plus.english_count(), 5);
        assert_eq!(plus.french(), "vingt plus un égale vingt et un");
        let minus = Phrase::sum(200, 80, false);
        assert_eq!(minus.english(), "two hundred and eighty minus eighty equals two hundred");
        assert_eq!(minus.french(), "deux cent quatre-vingts moins quatre-vingts égale deux cents");
    }

    #[test]
    fn no_sum_goes_beyond_the_largest_number() {
        assert_eq!(Phrase::sum(LARGEST, 0, true).rest[1], (EQUALS, LARGEST));
        let sum = Phrase::sum(1, LARGEST, true);
        assert_eq!((sum.first, &sum.rest[..]), (LARGEST - 1, &[(PLUS, 1), (EQUALS, LARGEST)][..]));
    }

    #[test]
    fn numbers_of_every_length_come_up_round_and_not() {
        let mut randomness = Randomness::of_key([1]);
        let numbers: Vec<u64> = (0..10_000).map(|_| number(&mut randomness)).collect();
        assert!(numbers.iter().all(|&number| number <= LARGEST));
        assert!(numbers.contains(&0));
        for digits in 1..=DECIMAL_PLACES as usize {
            let count = numbers.iter().filter(|number| number.to_string().len() == digits).count();
            assert!((600..1_100).contains(&count), "{count} numbers of {digits} digits");
        }
        let round = numbers.iter().filter(|&number| number % 1_000 == 0).count();
        assert!((1_500..4_000).contains(&round), "{round} whole thousands");
    }
}
