//! The commands in the documents: all their flags exist, and those marked as runnable succeed.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::markdown::Document;
use super::{assert_none, documents};
use crate::process::windlass;

/// Languages of code blocks that contain no commands.
const NO_COMMANDS: [&str; 5] = ["json", "mermaid", "rust", "toml", "yaml"];

/// Other programs, and flags of theirs, that the documents mention.
const OTHER_PROGRAMS: [&str; 9] = ["cargo", "docker", "env", "git", "kind", "kubectl", "sbatch", "srun", "tensorboard"];
const THEIR_FLAGS: [&str; 6] = ["--cpus", "--env", "--net", "--publish", "--time", "--user"];

/// The contents of a command's help.
#[derive(Clone)]
struct Listed {
    flags: BTreeSet<String>,
    commands: Vec<String>,
}

/// The help of `windlass`, read once for each command.
#[derive(Default)]
struct Help(RefCell<HashMap<String, Option<Listed>>>);

impl Help {
    /// The help of a command such as `train mnist`; `None` if there is no such command.
    fn of(&self, words: &str) -> Option<Listed> {
        let read = || {
            let told = windlass(words).with("--help").run();
            let listed = Listed { flags: flags(&told.stdout), commands: commands(&told.stdout) };
            (told.exit_code() == Some(0)).then_some(listed)
        };
        self.0.borrow_mut().entry(words.to_owned()).or_insert_with(read).clone()
    }

    /// The flags of all commands and models.
    fn all_flags(&self) -> BTreeSet<String> {
        let (mut found, mut pending) = (BTreeSet::new(), vec![String::new()]);
        while let Some(words) = pending.pop() {
            let listed = self.of(&words).unwrap_or_else(|| panic!("no help of {words:?}"));
            found.extend(listed.flags);
            pending.extend(listed.commands.iter().map(|command| format!("{words} {command}")));
        }
        found
    }
}

/// The subcommands or models that a help lists.
fn commands(help: &str) -> Vec<String> {
    let begins = |line: &&str| *line == "Commands:" || *line == "Models:";
    let lines = help.lines().skip_while(|line| !begins(line)).skip(1).take_while(|line| line.starts_with("  "));
    // Deeper indentation continues a description.
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The flags that a help lists, without those that its text only mentions.
fn flags(help: &str) -> BTreeSet<String> {
    let of_line = |line: &str| {
        let words = line.trim_start().split([' ', ',', '=']).filter(|word| !word.is_empty());
        let flags: Vec<String> = words.take_while(|word| word.starts_with('-')).map(str::to_owned).collect();
        let aliases = line.split_once("[alias").map_or("", |(_, rest)| rest);
        let aliases = aliases.split([' ', ',', ']']).filter(|word| word.starts_with("--")).map(str::to_owned);
        flags.into_iter().chain(aliases).collect::<Vec<_>>()
    };
    help.lines().flat_map(of_line).filter(|flag| flag.starts_with("--")).collect()
}

/// The flag in a word, as it is written in the help.
fn flag(word: &str) -> Option<String> {
    let name = word.strip_prefix("--")?.split('=').next()?.trim_end_matches([',', '.', ':', ';', ')']);
    (!name.is_empty()).then(|| format!("--{}", name.replace('_', "-")))
}

/// The commands in a text, as the words after `windlass`. In shell code a command may follow anything, as in `docker
/// run windlass train mnist`; in other text it comes first.
fn invocations(text: &str, is_shell: bool) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split(" #").next().unwrap_or(line));
    let pieces = lines.flat_map(|line| line.split(['|', ';', '>', '<']));
    let of_piece = |piece: &str| {
        let words: Vec<&str> = piece.split_whitespace().collect();
        let is_command = |word: &str| word.starts_with(|letter: char| letter.is_ascii_lowercase());
        let begins = |at: &usize| words[*at] == "windlass" && is_command(words[at + 1]);
        let at = (0..words.len().saturating_sub(1)).find(begins)?;
        let is_first = at == 0 || ["$", "docker"].contains(&words[0]);
        (is_shell || is_first).then(|| words[at + 1..].iter().map(|word| word.to_string()).collect())
    };
    pieces.filter_map(of_piece).collect()
}

/// The errors in a command.
fn wrong(help: &Help, words: &[String]) -> Vec<String> {
    let (own, passed_on) = match words.iter().position(|word| word == "--") {
        Some(at) => (&words[..at], Some(&words[at + 1..])),
        None => (words, None),
    };
    let names = own.iter().take_while(|word| !word.starts_with('-') && *word != "…");
    let names: Vec<&str> = names.map(|word| if word == "MODEL" { "mnist" } else { word }).collect();
    let names = names.join(" ");
    let mut problems = match help.of(&names) {
        None => vec![format!("there is no `windlass {names}`")],
        Some(listed) => {
            let unknown = own.iter().filter_map(|word| flag(word)).filter(|flag| !listed.flags.contains(flag));
            unknown.map(|flag| format!("`windlass {names}` has no {flag}")).collect()
        }
    };
    // As in `windlass manifest k8s -- mnist --mode sync`.
    if let Some(passed_on) = passed_on {
        let train: Vec<String> = std::iter::once("train".to_owned()).chain(passed_on.iter().cloned()).collect();
        problems.extend(wrong(help, &train));
    }
    problems
}

/// The errors in the commands and flags of a document.
fn wrong_commands(help: &Help, document: &Document) -> Vec<String> {
    let blocks = document.blocks.iter().filter(|block| !NO_COMMANDS.contains(&block.language()));
    let texts = blocks.map(|block| (block.line, invocations(&block.text, block.language() == "sh")));
    let spans = document.spans.iter().map(|(line, span)| (*line, span.as_str()));
    let within = spans.clone().map(|(line, span)| (line, invocations(span, false)));
    let commands = texts.chain(within).flat_map(|(line, found)| found.into_iter().map(move |words| (line, words)));
    let mut problems: Vec<(usize, String)> =
        commands.flat_map(|(line, words)| wrong(help, &words).into_iter().map(move |wrong| (line, wrong))).collect();
    let all = help.all_flags();
    for (line, span) in spans {
        let mut words = span.split_whitespace().peekable();
        if words.peek().is_some_and(|first| OTHER_PROGRAMS.contains(first) || *first == "windlass") {
            continue;
        }
        let unknown =
            words.filter_map(flag).filter(|flag| !all.contains(flag) && !THEIR_FLAGS.contains(&flag.as_str()));
        problems.extend(unknown.map(|flag| (line, format!("no command has {flag}"))));
    }
    problems.into_iter().map(|(line, wrong)| format!("{}:{line}: {wrong}", document.path.display())).collect()
}

/// Runs the runnable blocks of a document in one directory, one after the other, up to the first failure.
fn run(document: &Document) -> Result<usize, String> {
    let programs = Path::new(env!("CARGO_BIN_EXE_windlass")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let place = windlass("--version").run().succeeded();
    let runnable: Vec<_> = document.blocks.iter().filter(|block| block.is_runnable()).collect();
    for block in &runnable {
        // Commands that do not limit their training are limited by this variable.
        let shell = place.shell(&format!("set -e\n{}", block.text)).env("PATH", &path).env("WINDLASS_STEPS", "500");
        let told = shell.run();
        if told.exit_code() != Some(0) {
            return Err(format!("{}:{}: {told}", document.path.display(), block.line));
        }
    }
    Ok(runnable.len())
}

#[test]
fn every_flag_and_command_exists() {
    let help = Help::default();
    assert_none(documents().iter().flat_map(|document| wrong_commands(&help, document)).collect());
}

#[test]
fn what_is_marked_as_runnable_runs() {
    let documents = documents();
    let marked: Vec<usize> =
        documents.iter().map(|document| run(document).unwrap_or_else(|failed| panic!("{failed}"))).collect();
    println!("{marked:?}");
    assert!(marked[0] > 0, "the README has a command to begin with");
    assert!(marked.iter().sum::<usize>() > 12, "{marked:?}");
}

#[test]
fn a_command_or_flag_that_does_not_exist_is_found() {
    let text = "```sh\nwindlass train mnist --steps 5 --bogus 1   # --comment\ndocker run --rm windlass launch mnist \\\n  \
                --ps_hosts=a:1\nwindlass trian mnist | windlass manifest k8s --ps 2 -- mnist --worse\n```\n\
                `windlass eval MODEL --steps 3`, `--peer_timeout 3`, `--wrong`, `cargo test --theirs`";
    let found = wrong_commands(&Help::default(), &Document::parse(Path::new("a.md"), text));
    let wanted = [
        "a.md:1: `windlass train mnist` has no --bogus",
        "a.md:1: `windlass launch mnist` has no --ps-hosts",
        "a.md:1: there is no `windlass trian mnist`",
        "a.md:1: `windlass train mnist` has no --worse",
        "a.md:7: `windlass eval mnist` has no --steps",
        "a.md:7: no command has --wrong",
    ];
    assert_eq!(found, wanted);
    let all = Help::default().all_flags();
    let wanted = ["--base-url", "--attention", "--scrape-from", "--rounds", "--lr", "--keep-probability", "--version"];
    assert!(wanted.iter().all(|flag| all.contains(*flag)), "{all:?}");
}

#[test]
fn a_runnable_command_that_fails_is_found() {
    let text = "```sh run\nwindlass --version > version\n```\n\n```sh\nexit 1\n```\n\n```sh run\ngrep windlass version\n\
                windlass train nothing\necho not reached\n```\n";
    let failed = run(&Document::parse(Path::new("a.md"), text)).unwrap_err();
    assert!(failed.starts_with("a.md:9: exit code 2\n") && failed.contains("nothing"), "{failed}");
    assert!(failed.contains("windlass 0") && !failed.contains("not reached"), "{failed}");
}
