//! Flags of every kind that a user's own model may have, written to a file and read back.

use std::collections::BTreeSet;

use clap::{Arg, ArgAction, value_parser};

use super::*;

/// `windlass train own` with these flags.
struct Own {
    root: Command,
    schema: Schema,
}

impl Own {
    fn new(args: impl IntoIterator<Item = Arg>) -> Self {
        let own = Command::new("own").args(args);
        let config = Arg::new("config").long("config").value_parser(value_parser!(PathBuf));
        let train = Command::new("train").subcommand(own.clone().arg(config));
        let root = Command::new("windlass").subcommand(train);
        let mut built = root.clone();
        built.build();
        let command = built.find_subcommand("train").unwrap().find_subcommand("own").unwrap().clone();
        let schema = Schema {
            verb: "train".to_owned(),
            model: Some("own".to_owned()),
            command,
            launch: BTreeSet::new(),
            cluster: BTreeSet::new(),
            join: BTreeSet::new(),
            models: vec![("own", names(&own))],
        };
        Self { root, schema }
    }

    fn settings(&self, words: &[&str]) -> Settings {
        let words = ["windlass", "train", "own"].iter().chain(words).map(OsString::from);
        let resolver = Resolver::new(&self.root, &words.collect::<Vec<_>>(), &self.schema).unwrap();
        let matches = resolver.matches().unwrap_or_else(|error| panic!("{}", resolver.blame(error)));
        resolver.settings(&matches)
    }

    /// Writes the file for these words and reads it back.
    fn read_back(&self, words: &[&str]) -> (String, String) {
        let written = without_comments(&self.settings(words).to_toml());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &written).unwrap();
        let read = self.settings(&["--config", file.path().to_str().unwrap()]);
        (written, without_comments(&read.to_toml()))
    }
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.split("  #").next().unwrap_or_default().trim_end())).collect()
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name)
}

#[test]
fn flags_of_every_kind_are_read_back_as_they_were() {
    let own = Own::new([
        flag("no-bias").action(ArgAction::SetFalse),
        flag("deep").action(ArgAction::Count),
        flag("pair").num_args(2).value_parser(value_parser!(i64)).allow_negative_numbers(true),
        flag("many").action(ArgAction::Append),
        flag("text"),
        flag("whole").action(ArgAction::Set).value_parser(value_parser!(bool)),
    ]);
    let text = "a \"quoted\"\ttext \\ #1";
    let words =
        ["--no-bias", "--deep", "--deep", "--pair", "1", "-2", "--many=x,y", "--many=", "--whole=true", "--text", text];
    let (written, read) = own.read_back(&words);
    assert_eq!(read, written);
    for line in ["no-bias = true", "deep = 2", "pair = [1, -2]", "many = [\"x,y\", \"\"]", "whole = \"true\""] {
        assert!(written.contains(&format!("{line}\n")), "no {line} in {written}");
    }
    let (written, read) = own.read_back(&[]);
    assert_eq!(read, written);
    assert!(written.contains("no-bias = false\n"), "{written}");
}

#[test]
fn a_default_in_a_file_neither_excludes_nor_requires_others() {
    let own = Own::new([
        flag("rate").default_value("1").requires("decay").conflicts_with("schedule"),
        flag("decay"),
        flag("schedule"),
    ]);
    for words in [&[][..], &["--schedule", "cosine"], &["--rate", "2", "--decay", "3"]] {
        let (written, read) = own.read_back(words);
        assert_eq!(read, written);
    }
}

#[test]
fn a_file_goes_before_a_default_that_depends_on_another_flag() {
    let own = Own::new([
        flag("kind").default_value("a"),
        flag("width").default_value("1").default_value_if("kind", "b", Some("2")),
    ]);
    assert!(own.settings(&["--kind", "b"]).to_toml().contains("width = \"2\""));
    let (written, read) = own.read_back(&["--kind", "b", "--width", "1"]);
    assert_eq!(read, written);
    assert!(read.contains("width = \"1\"\n"), "{read}");
}

#[test]
fn a_flag_replaces_what_its_value_excludes_in_a_file_and_nothing_else() {
    let switch = |name| flag(name).action(ArgAction::SetTrue);
    let own = Own::new([
        flag("mode"),
        flag("sharding"),
        flag("min-shard-bytes"),
        switch("deterministic"),
        switch("staleness-scaling"),
    ]);
    let kept = |file: &str, words: &[&str], line: &str| {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), format!("[model]\n{file}\n")).unwrap();
        let words = [&["--config", path.path().to_str().unwrap()], words].concat();
        without_comments(&own.settings(&words).to_toml()).contains(&format!("{line}\n"))
    };
    let cases = [
        ("deterministic = true", "--mode=sync", true),
        ("deterministic = true", "--mode=async", false),
        ("deterministic = true", "--mode=ssp", false),
        ("staleness-scaling = true", "--mode=ssp", true),
        ("staleness-scaling = true", "--mode=sync", false),
        ("min-shard-bytes = \"9\"", "--sharding=balanced", true),
        ("min-shard-bytes = \"9\"", "--sharding=round_robin", false),
    ];
    for (file, flag, is_kept) in cases {
        assert_eq!(kept(file, &[flag], file), is_kept, "{file} and {flag}");
    }
}

#[test]
fn what_a_file_cannot_say_is_left_to_the_command_line() {
    let own = Own::new([
        Arg::new("place"),
        Arg::new("short").short('s'),
        Arg::new("quiet").short('q').action(ArgAction::SetTrue),
        flag("path").value_parser(value_parser!(PathBuf)),
    ]);
    let settings = own.settings(&["here", "-s", "5", "-q"]);
    assert_eq!(settings.beyond_files(), ["here", "-s", "5", "-q"]);
    use std::os::unix::ffi::OsStringExt;
    let words = ["windlass", "train", "own"].map(OsString::from).into_iter();
    let words = words.chain([OsString::from_vec(b"--path=\xff".to_vec())]).collect::<Vec<_>>();
    let resolver = Resolver::new(&own.root, &words, &own.schema).unwrap();
    let settings = resolver.settings(&resolver.matches().unwrap());
    assert_eq!(settings.beyond_files(), &words[3..]);
    assert!(!settings.to_toml().contains("path"), "{}", settings.to_toml());
}

#[test]
fn a_required_flag_may_be_given_by_a_file() {
    let own = Own::new([flag("width").required(true).value_parser(value_parser!(u32)), flag("depth")]);
    let (written, read) = own.read_back(&["--width", "5"]);
    assert_eq!(read, written);
}
