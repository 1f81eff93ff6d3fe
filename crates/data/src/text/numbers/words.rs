//! Numbers in words: English as the British say it, French in the traditional spelling.
//!
//! In English, `and` precedes the last tens and units of a group and of the whole: `one thousand and five`. In French,
//! hyphens join the words below a hundred unless `et` does. `vingt` and `cent` take an s when they are multiplied and
//! nothing but a noun follows; `million` is a noun, and `mille` is not.

/// The names of 1000, 1000² and so on, in English and in French.
const SCALES: [(&str, &str); 6] = [
    ("thousand", "mille"),
    ("million", "million"),
    ("billion", "milliard"),
    ("trillion", "billion"),
    ("quadrillion", "billiard"),
    ("quintillion", "trillion"),
];

const ENGLISH_UNITS: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];

const ENGLISH_TENS: [&str; 10] =
    ["", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

const FRENCH_UNITS: [&str; 20] = [
    "zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze", "treize",
    "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf",
];

/// From sixty on, the tens are counted in twenties.
const FRENCH_TENS: [&str; 10] =
    ["", "dix", "vingt", "trente", "quarante", "cinquante", "soixante", "soixante", "quatre-vingt", "quatre-vingt"];

/// A number in English words.
pub fn english(number: u64) -> String {
    let mut words = Words::new();
    for (group, scale) in groups(number) {
        let follows = !words.0.is_empty();
        if scale == 0 && group < 100 && follows {
            words.push("and");
        }
        english_group(group, &mut words);
        if scale > 0 {
            words.push(SCALES[scale - 1].0);
        }
    }
    words.or("zero")
}

/// Counts the words of a number in English without writing them.
pub(super) fn english_count(number: u64) -> usize {
    let count = groups(number).map(|(group, scale)| {
        let (hundreds, rest) = (group / 100 > 0, group % 100 > 0);
        let and = rest && (hundreds || (scale == 0 && number >= 1000));
        2 * usize::from(hundreds) + usize::from(and) + usize::from(rest) + usize::from(scale > 0)
    });
    count.sum::<usize>().max(1)
}

/// A number in French words.
pub fn french(number: u64) -> String {
    let mut words = Words::new();
    for (group, scale) in groups(number) {
        match scale {
            0 => french_group(group, true, &mut words),
            1 => {
                // Mille is never preceded by one. It is not a noun, so the number before it takes no s.
                if group > 1 {
                    french_group(group, false, &mut words);
                }
                words.push(SCALES[0].1);
            }
            _ => {
                french_group(group, true, &mut words);
                words.push(SCALES[scale - 1].1);
                if group > 1 {
                    words.append("s");
                }
            }
        }
    }
    words.or("zéro")
}

/// The nonzero groups of three digits, highest first, each with its power of 1000.
fn groups(number: u64) -> impl Iterator<Item = (usize, usize)> {
    let groups = (0..=SCALES.len()).rev().map(move |scale| (number / 1000u64.pow(scale as u32) % 1000, scale));
    groups.filter(|&(group, _)| group > 0).map(|(group, scale)| (group as usize, scale))
}

fn english_group(group: usize, words: &mut Words) {
    let (hundreds, rest) = (group / 100, group % 100);
    if hundreds > 0 {
        words.push(ENGLISH_UNITS[hundreds]);
        words.push("hundred");
        if rest > 0 {
            words.push("and");
        }
    }
    match (rest / 10, rest % 10) {
        (0, 0) => {}
        (0 | 1, _) => words.push(ENGLISH_UNITS[rest]),
        (tens, 0) => words.push(ENGLISH_TENS[tens]),
        (tens, units) => {
            words.push(ENGLISH_TENS[tens]);
            words.append("-");
            words.append(ENGLISH_UNITS[units]);
        }
    }
}

/// `plural` tells whether a final `cent` or `quatre-vingt` takes an s.
fn french_group(group: usize, plural: bool, words: &mut Words) {
    let (hundreds, rest) = (group / 100, group % 100);
    if hundreds > 1 {
        words.push(FRENCH_UNITS[hundreds]);
    }
    if hundreds > 0 {
        words.push("cent");
        if hundreds > 1 && rest == 0 && plural {
            words.append("s");
        }
    }
    if rest > 0 {
        french_tens(rest, plural, words);
    }
}

fn french_tens(rest: usize, plural: bool, words: &mut Words) {
    let tens = rest / 10;
    // Seventy and ninety continue from sixty and eighty: soixante-dix, quatre-vingt-dix.
    let units = if matches!(tens, 7 | 9) { rest % 10 + 10 } else { rest % 10 };
    if rest < 20 {
        words.push(FRENCH_UNITS[rest]);
        return;
    }
    words.push(FRENCH_TENS[tens]);
    match (tens, units) {
        (8, 0) if plural => words.append("s"),
        (_, 0) => {}
        (2..=7, 1 | 11) => {
            words.push("et");
            words.push(FRENCH_UNITS[units]);
        }
        _ => {
            words.append("-");
            words.append(FRENCH_UNITS[units]);
        }
    }
}

/// Words separated by spaces.
struct Words(String);

impl Words {
    fn new() -> Self {
        Self(String::with_capacity(64))
    }

    /// Starts a new word.
    fn push(&mut self, word: &str) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        self.0.push_str(word);
    }

    /// Continues the last word.
    fn append(&mut self, letters: &str) {
        self.0.push_str(letters);
    }

    fn or(self, word: &str) -> String {
        if self.0.is_empty() { word.to_owned() } else { self.0 }
    }
}

#[cfg(test)]
mod tests;
