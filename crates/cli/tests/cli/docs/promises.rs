//! The failure contract: every promise names tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::markdown::Document;
use super::{assert_none, read, root};

/// The section whose items name no tests.
const LIMITS: &str = "limits";

/// The names of all tests that `cargo test --workspace` runs.
fn tests(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(tests(&entry.path()));
        } else if entry.path().extension().is_some_and(|end| end == "rs") {
            found.extend(tests_in(&fs::read_to_string(entry.path()).unwrap()));
        }
    }
    found
}

fn tests_in(source: &str) -> Vec<String> {
    let (mut is_test, mut is_ignored, mut found) = (false, false, Vec::new());
    for line in source.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        is_ignored |= line.starts_with("#[ignore");
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some((name, _)) = function.and_then(|rest| rest.split_once('(')) {
            if is_test && !is_ignored {
                found.push(name.to_owned());
            }
            (is_test, is_ignored) = (false, false);
        }
    }
    found
}

/// Whether inline code is the name of a test.
fn is_test_name(span: &str) -> bool {
    span.contains('_')
        && span.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}

/// Promises without tests, and names of tests that do not exist.
fn broken_promises(document: &Document, tests: &BTreeSet<String>) -> Vec<String> {
    let place = |line: usize| format!("{}:{line}", document.path.display());
    let promises = document.items.iter().filter(|item| item.section != LIMITS);
    let untested = promises.filter(|item| !item.spans.iter().any(|span| is_test_name(span)));
    let untested = untested.map(|item| format!("{}: no test is named", place(item.line)));
    let named = document.spans.iter().filter(|(_, span)| is_test_name(span));
    let missing = named.filter(|(_, span)| !tests.contains(span));
    untested.chain(missing.map(|(line, span)| format!("{}: there is no test {span}", place(*line)))).collect()
}

#[test]
fn every_promise_names_tests_that_exist() {
    let contract = read(Path::new("docs/failure-contract.md"));
    assert!(contract.items.len() > 30, "{}", contract.items.len());
    assert_none(broken_promises(&contract, &tests(&root().join("crates"))));
}

#[test]
fn a_promise_without_a_test_is_found() {
    let source = "#[test]\nfn it_is() {}\n#[tokio::test]\nasync fn it_too() {}\n#[test]\n#[ignore]\nfn it_is_not() {}\nfn it_helps() {}\n";
    let tests: BTreeSet<String> = tests_in(source).into_iter().collect();
    let text = "# Promises\n- kept: `it_is`, `it_too`\n- not run: `it_is_not`\n- no test: `it_helps`\n- none, but `--flag_s`\n\n\
                # Limits\n- none\n";
    let found = broken_promises(&Document::parse(Path::new("a.md"), text), &tests);
    assert_eq!(
        found,
        ["a.md:5: no test is named", "a.md:3: there is no test it_is_not", "a.md:4: there is no test it_helps"]
    );
}
