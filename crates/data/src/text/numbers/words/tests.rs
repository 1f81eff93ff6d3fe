//! Numbers in words, checked against a grammar book and by reading them back.

use proptest::prelude::*;

use super::*;

const HARD: &[(u64, &str, &str)] = &[
    (0, "zero", "zéro"),
    (1, "one", "un"),
    (10, "ten", "dix"),
    (11, "eleven", "onze"),
    (16, "sixteen", "seize"),
    (17, "seventeen", "dix-sept"),
    (19, "nineteen", "dix-neuf"),
    (20, "twenty", "vingt"),
    (21, "twenty-one", "vingt et un"),
    (22, "twenty-two", "vingt-deux"),
    (31, "thirty-one", "trente et un"),
    (41, "forty-one", "quarante et un"),
    (51, "fifty-one", "cinquante et un"),
    (60, "sixty", "soixante"),
    (61, "sixty-one", "soixante et un"),
    (69, "sixty-nine", "soixante-neuf"),
    (70, "seventy", "soixante-dix"),
    (71, "seventy-one", "soixante et onze"),
    (72, "seventy-two", "soixante-douze"),
    (77, "seventy-seven", "soixante-dix-sept"),
    (79, "seventy-nine", "soixante-dix-neuf"),
    (80, "eighty", "quatre-vingts"),
    (81, "eighty-one", "quatre-vingt-un"),
    (88, "eighty-eight", "quatre-vingt-huit"),
    (90, "ninety", "quatre-vingt-dix"),
    (91, "ninety-one", "quatre-vingt-onze"),
    (97, "ninety-seven", "quatre-vingt-dix-sept"),
    (99, "ninety-nine", "quatre-vingt-dix-neuf"),
    (100, "one hundred", "cent"),
    (101, "one hundred and one", "cent un"),
    (111, "one hundred and eleven", "cent onze"),
    (121, "one hundred and twenty-one", "cent vingt et un"),
    (180, "one hundred and eighty", "cent quatre-vingts"),
    (200, "two hundred", "deux cents"),
    (201, "two hundred and one", "deux cent un"),
    (280, "two hundred and eighty", "deux cent quatre-vingts"),
    (999, "nine hundred and ninety-nine", "neuf cent quatre-vingt-dix-neuf"),
    (1_000, "one thousand", "mille"),
    (1_001, "one thousand and one", "mille un"),
    (1_080, "one thousand and eighty", "mille quatre-vingts"),
    (1_100, "one thousand one hundred", "mille cent"),
    (1_200, "one thousand two hundred", "mille deux cents"),
    (2_000, "two thousand", "deux mille"),
    (2_301, "two thousand three hundred and one", "deux mille trois cent un"),
    (21_000, "twenty-one thousand", "vingt et un mille"),
    (71_071, "seventy-one thousand and seventy-one", "soixante et onze mille soixante et onze"),
    (80_000, "eighty thousand", "quatre-vingt mille"),
    (80_080, "eighty thousand and eighty", "quatre-vingt mille quatre-vingts"),
    (100_000, "one hundred thousand", "cent mille"),
    (200_000, "two hundred thousand", "deux cent mille"),
    (200_200, "two hundred thousand two hundred", "deux cent mille deux cents"),
    (280_000, "two hundred and eighty thousand", "deux cent quatre-vingt mille"),
    (297_000, "two hundred and ninety-seven thousand", "deux cent quatre-vingt-dix-sept mille"),
    (1_000_000, "one million", "un million"),
    (1_000_001, "one million and one", "un million un"),
    (1_001_000, "one million one thousand", "un million mille"),
    (2_000_000, "two million", "deux millions"),
    (21_000_000, "twenty-one million", "vingt et un millions"),
    (80_000_000, "eighty million", "quatre-vingts millions"),
    (81_000_000, "eighty-one million", "quatre-vingt-un millions"),
    (200_000_000, "two hundred million", "deux cents millions"),
    (200_080_000, "two hundred million eighty thousand", "deux cents millions quatre-vingt mille"),
    (201_000_000, "two hundred and one million", "deux cent un millions"),
    (1_000_000_000, "one billion", "un milliard"),
    (80_000_000_080, "eighty billion and eighty", "quatre-vingts milliards quatre-vingts"),
    (300_000_000_000, "three hundred billion", "trois cents milliards"),
    (
        999_999_999_999,
        "nine hundred and ninety-nine billion nine hundred and ninety-nine million \
         nine hundred and ninety-nine thousand nine hundred and ninety-nine",
        "neuf cent quatre-vingt-dix-neuf milliards neuf cent quatre-vingt-dix-neuf millions \
         neuf cent quatre-vingt-dix-neuf mille neuf cent quatre-vingt-dix-neuf",
    ),
    (1_000_000_000_000, "one trillion", "un billion"),
    (2_000_000_000_000_000, "two quadrillion", "deux billiards"),
];

#[test]
fn hard_numbers_are_spelt_as_in_the_grammar_book() {
    for &(number, in_english, in_french) in HARD {
        assert_eq!(english(number), in_english, "{number}");
        assert_eq!(french(number), in_french, "{number}");
    }
}

#[test]
fn the_largest_number_has_words() {
    assert!(english(u64::MAX).starts_with("eighteen quintillion four hundred and forty-six quadrillion"));
    assert!(french(u64::MAX).starts_with("dix-huit trillions quatre cent quarante-six billiards"));
}

/// Parses words: units add up, and hundreds multiply what precedes them in the group.
fn read(words: &str, value: impl Fn(&str) -> Option<u64>, skipped: &str) -> u64 {
    let (mut whole, mut group) = (0, 0);
    for word in words.split([' ', '-']).filter(|&word| word != skipped) {
        let stem = word.trim_end_matches('s');
        match value(word).or_else(|| value(stem)) {
            Some(100) => group = u64::max(group, 1) * 100,
            Some(20) if group % 100 == 4 => group += 80 - 4,
            Some(units) => group += units,
            None => {
                let scale = SCALES.iter().position(|(english, french)| match skipped {
                    "and" => *english == word,
                    _ => *french == stem,
                });
                let scale = scale.unwrap_or_else(|| panic!("{word:?} in {words:?} is no number")) as u32 + 1;
                whole += group.max(1) * 1000u64.pow(scale);
                group = 0;
            }
        }
    }
    whole + group
}

fn read_english(words: &str) -> u64 {
    let value = |word: &str| match word {
        "hundred" => Some(100),
        _ => ENGLISH_UNITS
            .iter()
            .position(|&unit| unit == word)
            .map(|units| units as u64)
            .or_else(|| ENGLISH_TENS.iter().position(|&tens| tens == word).map(|tens| tens as u64 * 10)),
    };
    read(words, value, "and")
}

fn read_french(words: &str) -> u64 {
    let value = |word: &str| match word {
        "cent" => Some(100),
        _ => FRENCH_UNITS
            .iter()
            .position(|&unit| unit == word)
            .map(|units| units as u64)
            .or_else(|| FRENCH_TENS[..7].iter().position(|&tens| tens == word).map(|tens| tens as u64 * 10)),
    };
    read(words, value, "et")
}

proptest! {
    #[test]
    fn words_read_back_are_the_number(digits in 0u32..20, random: u64) {
        let number = random % 10u64.checked_pow(digits).unwrap_or(u64::MAX);
        prop_assert_eq!(read_english(&english(number)), number);
        prop_assert_eq!(read_french(&french(number)), number);
        prop_assert_eq!(english_count(number), english(number).split(' ').count());
    }
}

#[test]
fn all_numbers_below_ten_thousand_read_back() {
    for number in 0..10_000 {
        assert_eq!(read_english(&english(number)), number);
        assert_eq!(read_french(&french(number)), number);
        assert_eq!(english_count(number), english(number).split(' ').count());
    }
}
