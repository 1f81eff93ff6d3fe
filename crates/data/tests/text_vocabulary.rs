//! Which words get which numbers, and what is read back from a file.

use proptest::prelude::*;
use tempfile::TempDir;
use windlass_data::text::Vocabulary;
use windlass_data::text::tokenise::tokenise;
use windlass_data::text::vocabulary::{EOS, GO, Malformed, PAD, Tally, UNK, VocabularyError};

fn vocabulary(text: &str, size: usize) -> Vocabulary {
    let mut tally = Tally::default();
    tokenise(text).for_each(|token| {
        tally.add(&token);
    });
    Vocabulary::by_frequency(&tally, size)
}

/// The error for a file of this content.
fn malformed(content: &[u8]) -> Malformed {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("words");
    std::fs::write(&path, content).unwrap();
    match Vocabulary::load(&path).unwrap_err() {
        VocabularyError::Malformed { malformed, .. } => malformed,
        other => panic!("{other}"),
    }
}

#[test]
fn frequent_words_come_first_and_ties_in_alphabetical_order() {
    let vocabulary = vocabulary("b b b d a d a c", 100);
    let words: Vec<&str> = (0..vocabulary.size() as u32).map(|id| vocabulary.token(id)).collect();
    assert_eq!(words, ["_PAD", "_GO", "_EOS", "_UNK", "b", "a", "d", "c"]);
}

#[test]
fn the_size_counts_the_reserved_numbers_and_the_rest_is_unknown() {
    let vocabulary = vocabulary("b b b d a d a c", 6);
    assert_eq!(vocabulary.size(), 6);
    assert_eq!(vocabulary.encode("a, b c d"), [5, UNK, 4, UNK, UNK]);
}

#[test]
fn a_sentence_ends_at_its_end_and_has_no_padding() {
    let vocabulary = vocabulary("C'est bon .", 100);
    let mut ids = vec![GO];
    ids.extend(vocabulary.encode("C'est très bon."));
    ids.extend([EOS, PAD, 4, 5]);
    assert_eq!(vocabulary.decode(&ids), ["C", "'", "est", "_UNK", "bon", "."]);
    assert_eq!(vocabulary.sentence(&ids), "C'est _UNK bon.");
    assert_eq!(vocabulary.decode(&[9_999]), ["_UNK"], "a number that there is not");
}

#[test]
fn text_cannot_pass_for_a_reserved_number() {
    let vocabulary = vocabulary("_PAD _EOS _EOS word", 100);
    assert_eq!(vocabulary.size(), 5);
    assert_eq!(vocabulary.encode("_PAD _GO _EOS word"), [UNK, UNK, UNK, 4]);
}

#[test]
fn a_file_that_is_no_vocabulary_is_refused_by_line() {
    let line = |content: &str| malformed(content.as_bytes()).to_string();
    assert_eq!(line(""), "line 1 is \"\", expected _PAD");
    assert_eq!(line("_PAD\n_GO\nword\n"), "line 3 is \"word\", expected _EOS");
    assert_eq!(
        line("_PAD\n_GO\n_EOS\n_UNK\ntwo words\n"),
        "line 5 is \"two words\", expected one word or mark without spaces"
    );
    assert_eq!(line("_PAD\n_GO\n_EOS\n_UNK\n\nword\n"), "line 5 is \"\", expected one word or mark without spaces");
    assert_eq!(line("_PAD\n_GO\n_EOS\n_UNK\nword\nword\n"), "line 6 has the word \"word\" of line 5 again");
    assert_eq!(malformed(b"_PAD\n_GO\n\xff\n"), Malformed::NotUtf8 { line: 3 });
}

#[test]
fn a_missing_file_is_named() {
    let error = Vocabulary::load("no/such/file".as_ref()).unwrap_err();
    assert!(error.to_string().starts_with("cannot access the vocabulary no/such/file: "), "{error}");
}

proptest! {
    #[test]
    fn what_is_saved_is_read_back(text in "(\\PC| |_PAD|[a-cé' ]){0,200}", size in 0_usize..40) {
        let vocabulary = vocabulary(&text, size);
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("words");
        vocabulary.save(&path).unwrap();
        let read = Vocabulary::load(&path).unwrap();
        prop_assert_eq!(read.encode(&text), vocabulary.encode(&text));
        prop_assert_eq!(read, vocabulary);
    }
}
