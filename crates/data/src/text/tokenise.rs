//! Splits a sentence into words and punctuation marks, and joins them again.
//!
//! Words end at spaces of any kind and at punctuation marks. A mark is a token of its own, even an apostrophe (`C'est`
//! is `C`, `'`, `est`), but a hyphen is part of its word. Every digit becomes `0`, and typographic apostrophes and
//! quotation marks become plain ones, so that a vocabulary has only one form of each. Case is kept. This module must
//! not know any language.

use std::borrow::Cow;

/// Must be incremented whenever a sentence may produce other tokens, so that no older cache is used.
pub const VERSION: u32 = 1;

/// The tokens of a sentence, in order.
pub fn tokenise(sentence: &str) -> Tokens<'_> {
    Tokens { rest: sentence }
}

/// The tokens of a sentence, see [`tokenise`].
#[derive(Clone, Debug)]
pub struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        loop {
            self.rest = self.rest.trim_start_matches(is_space);
            let first = self.rest.chars().next()?;
            if let Some(mark) = mark(first) {
                self.rest = &self.rest[first.len_utf8()..];
                return Some(Cow::Borrowed(mark));
            }
            let (word, rest) = self.rest.split_at(word_end(self.rest));
            self.rest = rest;
            let word = normalised(word);
            if !word.is_empty() {
                return Some(word);
            }
        }
    }
}

/// A readable sentence of these tokens: without spaces before punctuation or around apostrophes.
///
/// If the tokens came from [`tokenise`], tokenising the sentence returns them.
pub fn detokenise<T: AsRef<str>>(tokens: &[T]) -> String {
    let mut sentence = String::new();
    let mut quoted = false;
    let mut space = false;
    for (index, token) in tokens.iter().enumerate() {
        let token = token.as_ref();
        let spaces = match token {
            "." | "," | ":" if is_between_figures(tokens, index) => Spaces::NONE,
            "." | "," | ":" | ";" | "!" | "?" | "…" | "‽" | ")" => Spaces::AFTER,
            "(" | "¿" | "¡" => Spaces::BEFORE,
            "'" => Spaces::NONE,
            "\"" => {
                quoted = !quoted;
                if quoted { Spaces::BEFORE } else { Spaces::AFTER }
            }
            _ => Spaces::BOTH,
        };
        if index > 0 && space && spaces.before {
            sentence.push(' ');
        }
        sentence.push_str(token);
        space = spaces.after;
    }
    sentence
}

/// The sides on which a token may be separated by a space.
struct Spaces {
    before: bool,
    after: bool,
}

impl Spaces {
    const NONE: Self = Self { before: false, after: false };
    const BEFORE: Self = Self { before: true, after: false };
    const AFTER: Self = Self { before: false, after: true };
    const BOTH: Self = Self { before: true, after: true };
}

/// Whether a mark is inside a number such as `0.00` or a time such as `00:00`.
fn is_between_figures<T: AsRef<str>>(tokens: &[T], index: usize) -> bool {
    let is_figure = |token: &T| token.as_ref().bytes().all(|byte| byte == b'0');
    index > 0 && is_figure(&tokens[index - 1]) && tokens.get(index + 1).is_some_and(is_figure)
}

/// The end of the word at the start of a text.
fn word_end(text: &str) -> usize {
    let mut end = 0;
    while let Some(&byte) = text.as_bytes().get(end) {
        if byte.is_ascii() {
            if !IN_WORDS[usize::from(byte)] {
                break;
            }
            end += 1;
        } else {
            let letter = text[end..].chars().next().expect("a character begins here");
            if is_space(letter) || mark(letter).is_some() {
                break;
            }
            end += letter.len_utf8();
        }
    }
    end
}

/// The ASCII characters that may be part of a word, so that nearly all text takes one lookup per byte.
const IN_WORDS: [bool; 128] = {
    let mut in_words = [false; 128];
    let mut byte = 0;
    while byte < 128 {
        let c = byte as u8 as char;
        in_words[byte] = !c.is_whitespace() && mark(c).is_none();
        byte += 1;
    }
    in_words
};

/// Spaces of all widths, breaking or not, and invisible characters that Unicode does not count as spaces.
fn is_space(c: char) -> bool {
    const ZERO_WIDTH_SPACE: char = '\u{200b}';
    const BYTE_ORDER_MARK: char = '\u{feff}';
    c.is_whitespace() || c == ZERO_WIDTH_SPACE || c == BYTE_ORDER_MARK
}

/// The token of a punctuation mark; `None` for a character that may be part of a word.
const fn mark(c: char) -> Option<&'static str> {
    Some(match c {
        '.' => ".",
        ',' => ",",
        '!' => "!",
        '?' => "?",
        ':' => ":",
        ';' => ";",
        '(' => "(",
        ')' => ")",
        '\'' | '’' | '‘' | 'ʼ' => "'",
        '"' | '“' | '”' | '„' => "\"",
        '«' => "«",
        '»' => "»",
        '…' => "…",
        '‽' => "‽",
        '¿' => "¿",
        '¡' => "¡",
        '–' => "–",
        '—' => "—",
        _ => return None,
    })
}

/// The word with every digit replaced by 0, and without soft hyphens.
fn normalised(word: &str) -> Cow<'_, str> {
    const SOFT_HYPHEN: char = '\u{ad}';
    if !word.bytes().any(|byte| byte.is_ascii_digit()) && !word.contains(SOFT_HYPHEN) {
        return Cow::Borrowed(word);
    }
    let kept = word.chars().filter(|&c| c != SOFT_HYPHEN);
    Cow::Owned(kept.map(|c| if c.is_ascii_digit() { '0' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(sentence: &str) -> Vec<Cow<'_, str>> {
        tokenise(sentence).collect()
    }

    #[test]
    fn words_and_marks_are_tokens_and_capitals_stay() {
        assert_eq!(
            tokens("Tom's here, (isn't he)?"),
            ["Tom", "'", "s", "here", ",", "(", "isn", "'", "t", "he", ")", "?"]
        );
        assert_eq!(
            tokens("\"Go!\"; I said: wait..."),
            ["\"", "Go", "!", "\"", ";", "I", "said", ":", "wait", ".", ".", "."]
        );
    }

    #[test]
    fn every_digit_becomes_zero() {
        assert_eq!(
            tokens("At 10:30 on 24/12 it cost $1,250.99"),
            ["At", "00", ":", "00", "on", "00/00", "it", "cost", "$0", ",", "000", ".", "00"]
        );
    }

    #[test]
    fn hyphens_belong_to_their_word() {
        assert_eq!(tokens("quatre-vingt-dix-sept va-t-il ?"), ["quatre-vingt-dix-sept", "va-t-il", "?"]);
    }

    #[test]
    fn french_typography_has_the_tokens_of_plain_text() {
        assert_eq!(
            tokens("J’ai dit\u{202f}: «\u{a0}Ça va\u{2009}?\u{a0}»"),
            ["J", "'", "ai", "dit", ":", "«", "Ça", "va", "?", "»"]
        );
        assert_eq!(tokens("“L‘été”"), tokens("\"L'été\""));
    }

    #[test]
    fn invisible_characters_leave_no_trace() {
        assert_eq!(
            tokens("\u{feff}Où\u{200b} est anti\u{ad}constitutionnel \u{ad} ?"),
            ["Où", "est", "anticonstitutionnel", "?"]
        );
    }

    #[test]
    fn a_sentence_of_spaces_has_no_tokens() {
        assert_eq!(tokens(""), [""; 0]);
        assert_eq!(tokens(" \t\r\u{a0}\u{3000}"), [""; 0]);
    }

    #[test]
    fn sentences_read_as_they_were_written() {
        for sentence in [
            "C'est un bon début.",
            "Tom's here, isn't he?",
            "He said \"go away\", and I (of course) went...",
            "\"Why?\" \"Because.\"",
            "« Ça va? » dit-il.",
            "It cost 0.00 at 00:00: a lot.",
            "Il y a 0,0 litres, 00 en tout.",
            "",
        ] {
            assert_eq!(detokenise(&tokens(sentence)), sentence);
        }
    }

    #[test]
    fn the_space_that_french_puts_before_marks_is_removed() {
        assert_eq!(detokenise(&tokens("Es-tu sûr\u{202f}? Oui !")), "Es-tu sûr? Oui!");
    }

    proptest! {
        #[test]
        fn a_sentence_put_together_again_has_the_same_tokens(sentence in "(\\PC|[ .,!?\"':;)(0-9a-cé«»’…-]){0,60}") {
            let tokens = tokens(&sentence);
            let again = detokenise(&tokens);
            prop_assert_eq!(tokenise(&again).collect::<Vec<_>>(), tokens);
        }

        #[test]
        fn words_end_where_a_space_or_mark_begins(text in "(\\PC|[ .,!?\"':;)(0-9a-cé\u{ad}’\u{a0}-]){0,20}") {
            let end = text.find(|c| is_space(c) || mark(c).is_some()).unwrap_or(text.len());
            prop_assert_eq!(word_end(&text), end);
        }

        #[test]
        fn a_token_is_one_mark_or_has_none_and_never_a_space(sentence in "\\PC{0,60}") {
            for token in tokenise(&sentence) {
                prop_assert!(!token.is_empty() && !token.contains(is_space));
                prop_assert!(token.chars().count() == 1 || token.chars().all(|c| mark(c).is_none()));
                prop_assert!(!token.contains(|c| matches!(c, '1'..='9')));
            }
        }
    }
}
