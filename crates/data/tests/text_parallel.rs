//! Parallel text from files and its cache: what is read, what is rejected, and what survives.

#[path = "support/files.rs"]
mod files;

use std::fs;
use std::path::{Path, PathBuf};

use files::{gzip, put};
use tempfile::TempDir;
use windlass_data::text::parallel::{self, FilePair, Files, LoadEvent, ParallelError};
use windlass_data::text::vocabulary::UNK;
use windlass_data::text::{Corpus, TextPair, VocabularySizes};

const SIZES: VocabularySizes = VocabularySizes { from: 100, to: 100 };

const ENGLISH: &str = "It's a good start.\nGo!\nWe have 25 cats.\n";
const FRENCH: &str = "C'est un bon début.\nVa !\nNous avons 25 chats.\n";

/// A directory of four files.
struct Text {
    directory: TempDir,
    files: Files,
}

impl Text {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let put = |name, text: &str| put(directory.path(), name, text.as_bytes());
        let files = Files {
            train: FilePair { from: put("train.en", ENGLISH), to: put("train.fr", FRENCH) },
            dev: Some(FilePair { from: put("dev.en", "A good dog.\n"), to: put("dev.fr", "Un bon chien.\n") }),
        };
        Self { directory, files }
    }

    fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    fn load(&self) -> Corpus {
        parallel::load(&self.files, SIZES, None, &mut |_| panic!("there is no cache")).unwrap()
    }

    /// Loads through the cache. Events are returned as text, with `DIR` for the directory and `KEY` for a hash.
    fn load_cached(&self, sizes: VocabularySizes) -> (Corpus, Vec<String>) {
        let mut events = Vec::new();
        let corpus = parallel::load(&self.files, sizes, Some(&self.cache()), &mut |event| {
            events.push(self.told(&event));
        });
        (corpus.unwrap(), events)
    }

    fn told(&self, event: &LoadEvent<'_>) -> String {
        let text = event.to_string().replace(self.directory.path().to_str().unwrap(), "DIR");
        match (text.find("text-"), text.find(".ids")) {
            (Some(start), Some(end)) => format!("{}KEY{}", &text[..start], &text[end..]),
            _ => text,
        }
    }

    fn message(&self) -> String {
        let error = parallel::load(&self.files, SIZES, None, &mut |_| {}).unwrap_err();
        error.to_string().replace(self.directory.path().to_str().unwrap(), "DIR")
    }

    fn cached_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.cache()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

const WRITTEN: &str = "cached the text in DIR/cache/KEY.ids";
const READ: &str = "read the text from the cache DIR/cache/KEY.ids";

fn text_pairs(from: &str, to: &str) -> Vec<TextPair> {
    let pair = |(from, to): (&str, &str)| TextPair { from: from.to_owned(), to: to.to_owned() };
    from.lines().zip(to.lines()).map(pair).collect()
}

#[test]
fn files_make_the_corpus_of_their_lines() {
    let corpus = Text::new().load();
    let expected =
        Corpus::of_text(&text_pairs(ENGLISH, FRENCH), &text_pairs("A good dog.\n", "Un bon chien.\n"), SIZES);
    assert_eq!(corpus, expected);
    assert_eq!(corpus.train.len(), 3);
    let (from, to) = corpus.train.get(2);
    assert_eq!(corpus.from.sentence(from), "We have 00 cats.");
    assert_eq!(corpus.to.sentence(to), "Nous avons 00 chats.");
    let (from, to) = corpus.dev.get(0);
    assert_eq!(from, [UNK, corpus.from.id("good"), UNK, corpus.from.id(".")], "words of dev alone are not known");
    assert_eq!(corpus.to.sentence(to), "_UNK bon _UNK.");
}

#[test]
fn gzip_and_plain_files_may_be_mixed_whatever_their_names() {
    let text = Text::new();
    let plain = text.load();
    fs::write(&text.files.train.to, gzip(FRENCH.as_bytes())).unwrap();
    assert_eq!(text.load(), plain);
}

#[test]
fn line_ends_and_a_byte_order_mark_make_no_difference() {
    let text = Text::new();
    let plain = text.load();
    let windows = format!("\u{feff}{}", ENGLISH.trim_end().replace('\n', "\r\n"));
    fs::write(&text.files.train.from, windows).unwrap();
    assert_eq!(text.load(), plain);
}

#[test]
fn only_line_feeds_end_lines() {
    let text = Text::new();
    fs::write(&text.files.train.from, "one\u{2028}one\none\u{b}\none\u{85}one\n").unwrap();
    assert_eq!(text.load().train.len(), 3);
}

#[test]
fn a_blank_line_is_a_pair_without_words() {
    let text = Text::new();
    fs::write(&text.files.train.from, "Go!\n\nStop!\n").unwrap();
    let corpus = text.load();
    assert_eq!((corpus.train.len(), corpus.train.get(1).0), (3, &[][..]));
}

#[test]
fn a_corpus_may_have_nothing_held_out() {
    let mut text = Text::new();
    text.files.dev = None;
    assert!(text.load().dev.is_empty());
}

#[test]
fn unequal_files_are_refused_with_their_lines() {
    let text = Text::new();
    fs::write(&text.files.train.to, "Va !\n").unwrap();
    assert_eq!(
        text.message(),
        "DIR/train.en has 3 lines but DIR/train.fr has 1, expected the same number\n\
         hint: line N of one must be the translation of line N of the other"
    );
    let text = Text::new();
    fs::write(&text.files.dev.as_ref().unwrap().from, "Go.\n\n").unwrap();
    assert!(text.message().starts_with("DIR/dev.en has 2 lines but DIR/dev.fr has 1"));
}

#[test]
fn bytes_that_are_not_utf8_are_refused_with_their_place() {
    let text = Text::new();
    fs::write(&text.files.train.to, b"un\nd\xe9but\ntrois\n").unwrap();
    assert_eq!(text.message(), "DIR/train.fr line 2, byte 2 is not UTF-8\nhint: convert it: iconv -f latin1 -t utf-8");
}

#[test]
fn files_without_words_are_refused() {
    for content in ["", "\n \n\u{a0}\n"] {
        let text = Text::new();
        fs::write(&text.files.train.from, content).unwrap();
        let lines = content.lines().count();
        assert_eq!(
            text.message(),
            format!("DIR/train.en has no words in its {lines} lines, expected one sentence per line")
        );
        let text = Text::new();
        fs::write(&text.files.dev.as_ref().unwrap().to, content).unwrap();
        assert!(text.message().starts_with("DIR/dev.fr has no words"));
    }
}

#[test]
fn a_missing_file_is_named_with_and_without_a_cache() {
    let text = Text::new();
    fs::remove_file(&text.files.train.to).unwrap();
    assert_eq!(text.message(), "there is no file DIR/train.fr");
    let error = parallel::load(&text.files, SIZES, Some(&text.cache()), &mut |_| {}).unwrap_err();
    assert!(matches!(error, ParallelError::Missing { path } if path == text.files.train.to));
}

#[test]
fn damaged_gzip_is_refused() {
    let text = Text::new();
    let compressed = gzip(FRENCH.as_bytes());
    fs::write(&text.files.train.to, &compressed[..compressed.len() - 9]).unwrap();
    let message = text.message();
    assert!(message.starts_with("the gzip data in DIR/train.fr is damaged after line "), "{message}");
}

#[test]
fn a_line_without_end_is_refused_before_it_fills_the_memory() {
    let text = Text::new();
    let endless = gzip(&vec![b'a'; (1 << 20) + 1]);
    fs::write(&text.files.train.from, [gzip(b"Go!\n"), endless].concat()).unwrap();
    assert_eq!(text.message(), "DIR/train.en line 2 has more than 1048576 bytes, expected one sentence per line");
}

#[test]
fn a_vocabulary_without_room_for_words_is_refused() {
    let text = Text::new();
    let sizes = VocabularySizes { from: 100, to: 4 };
    let error = parallel::load(&text.files, sizes, None, &mut |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a vocabulary of 4 has no room for words, expected at least 5: the first 4 are reserved"
    );
}

#[test]
fn the_second_time_the_corpus_comes_from_the_cache() {
    let text = Text::new();
    let expected = text.load();
    assert_eq!(text.load_cached(SIZES), (expected.clone(), vec![WRITTEN.to_owned()]));
    assert_eq!(text.load_cached(SIZES), (expected, vec![READ.to_owned()]));
    assert_eq!(text.cached_files().len(), 1, "nothing else is left behind");
}

#[test]
fn a_changed_source_or_size_is_built_again() {
    let text = Text::new();
    text.load_cached(SIZES);
    // The same length as before, and the same age as far as a clock can tell.
    fs::write(&text.files.train.to, FRENCH.replace("chats", "chien")).unwrap();
    let (corpus, events) = text.load_cached(SIZES);
    assert_eq!((corpus, events), (text.load(), vec![WRITTEN.to_owned()]));
    let (corpus, events) = text.load_cached(VocabularySizes { from: 6, to: 100 });
    assert_eq!((corpus.from.size(), events), (6, vec![WRITTEN.to_owned()]));
    fs::write(&text.files.dev.as_ref().unwrap().from, "Another dog.\n").unwrap();
    assert_eq!(text.load_cached(SIZES).1, [WRITTEN]);
    assert_eq!(text.cached_files().len(), 4);
}

#[test]
fn a_cache_damaged_anywhere_is_built_again_with_a_warning() {
    let text = Text::new();
    let (expected, _) = text.load_cached(SIZES);
    let path = text.cached_files().remove(0);
    let sound = fs::read(&path).unwrap();
    let check = |content: &[u8], why: &str| {
        fs::write(&path, content).unwrap();
        let (corpus, events) = text.load_cached(SIZES);
        assert_eq!(corpus, expected);
        assert_eq!(events, [format!("the cache DIR/cache/KEY.ids is built again: {why}"), WRITTEN.to_owned()]);
        assert_eq!(fs::read(&path).unwrap(), sound);
    };
    const FOREIGN: &str = "it is not a cache file of this text";
    const CHECKSUM: &str = "its checksum is wrong";
    for byte in (0..sound.len()).step_by(3) {
        let mut flipped = sound.clone();
        flipped[byte] ^= 0x10;
        check(&flipped, if byte < 40 { FOREIGN } else { CHECKSUM });
        check(&sound[..byte], if byte < 40 { FOREIGN } else { CHECKSUM });
    }
    check(&[&sound[..], b"more"].concat(), CHECKSUM);
}

#[test]
fn a_cache_that_cannot_be_written_is_done_without() {
    let text = Text::new();
    fs::write(text.cache(), "a file where the directory should be").unwrap();
    let mut warnings = Vec::new();
    let corpus = parallel::load(&text.files, SIZES, Some(&text.cache()), &mut |event| {
        assert!(event.is_warning());
        warnings.push(text.told(&event));
    });
    assert_eq!(corpus.unwrap(), text.load());
    assert!(warnings.last().unwrap().starts_with("cannot write the cache DIR/cache/KEY.ids: "), "{warnings:?}");
}

#[test]
fn many_may_start_at_once_and_none_sees_half_a_cache() {
    let text = Text::new();
    let long = |line: &str| line.repeat(2_000);
    fs::write(&text.files.train.from, long(ENGLISH)).unwrap();
    fs::write(&text.files.train.to, long(FRENCH)).unwrap();
    let expected = text.load();
    let load = |files: &Files, cache: &Path| {
        parallel::load(files, SIZES, Some(cache), &mut |event| assert!(!event.is_warning(), "{event}")).unwrap()
    };
    for _ in 0..4 {
        let _ = fs::remove_dir_all(text.cache());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| load(&text.files, &text.cache()))).collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), expected));
        });
        assert_eq!(text.cached_files().len(), 1, "nothing else is left behind");
    }
}

#[cfg(unix)]
#[test]
fn a_cache_is_for_all_who_may_read_the_directory() {
    use std::os::unix::fs::PermissionsExt;
    let text = Text::new();
    text.load_cached(SIZES);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&text.cached_files()[0]), mode(&text.files.train.from));
}
