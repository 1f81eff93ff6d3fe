//! The documents: their links work, their flags exist, the tests that they name exist, and the commands that
//! are marked as runnable (a code block that begins with ```` ```sh run ````) succeed.

mod commands;
mod markdown;
mod promises;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use markdown::Document;

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn read(path: &Path) -> Document {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Document::parse(path, &text)
}

/// README.md, ARCHITECTURE.md and all of docs/.
fn documents() -> Vec<Document> {
    let entries =
        fs::read_dir(root().join("docs")).unwrap().map(|entry| Path::new("docs").join(entry.unwrap().file_name()));
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    paths.sort();
    let first = ["README.md", "ARCHITECTURE.md"].map(PathBuf::from);
    first.iter().chain(&paths).map(|path| read(path)).collect()
}

/// The first code block of a document in this language.
pub fn block(path: &str, language: &str) -> String {
    let document = read(Path::new(path));
    let block = document.blocks.into_iter().find(|block| block.language() == language);
    block.unwrap_or_else(|| panic!("no {language} in {path}")).text
}

/// The target of a relative link: a path from the root, and the heading in it.
fn target(document: &Document, link: &str) -> Option<(PathBuf, Option<String>)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor.to_owned())));
    let path = match path {
        "" => document.path.clone(),
        path => document.path.parent().unwrap_or(Path::new("")).join(path),
    };
    Some((path, anchor))
}

/// All broken links of a document, and what is wrong with each.
fn broken_links(document: &Document) -> Vec<String> {
    let why = |link: &str| {
        let (path, anchor) = target(document, link)?;
        let place = root().join(&path);
        let is_inside = place.canonicalize().is_ok_and(|place| place.starts_with(root().canonicalize().unwrap()));
        match anchor {
            _ if path != document.path && !is_inside => Some("there is no such file".to_owned()),
            None => None,
            Some(_) if place.extension().is_none_or(|end| end != "md") => {
                Some("only documents have headings".to_owned())
            }
            Some(anchor) => {
                let headings = if path == document.path { document.anchors.clone() } else { read(&path).anchors };
                (!headings.contains(&anchor)).then(|| format!("there are {headings:?}"))
            }
        }
    };
    let broken = document.links.iter().filter_map(|(line, link)| Some((line, link, why(link)?)));
    broken.map(|(line, link, why)| format!("{}:{line}: {link}: {why}", document.path.display())).collect()
}

fn assert_none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    assert_none(documents().iter().flat_map(broken_links).collect());
}

#[test]
fn every_document_can_be_reached_from_the_readme() {
    let documents = documents();
    let readme = &documents[0];
    let reached: BTreeSet<PathBuf> =
        readme.links.iter().filter_map(|(_, link)| target(readme, link)).map(|(path, _)| path).collect();
    let missing = documents[1..].iter().filter(|document| !reached.contains(&document.path));
    assert_none(missing.map(|document| format!("the README has no link to {}", document.path.display())).collect());
}

#[test]
fn excerpts_of_the_example_are_as_they_are_in_it() {
    let example = fs::read_to_string(root().join("crates/cli/examples/own_model.rs")).unwrap();
    let document = read(Path::new("docs/your-own-model.md"));
    let excerpts: Vec<_> = document.blocks.iter().filter(|block| block.info == "rust example").collect();
    assert!(excerpts.len() > 3, "{excerpts:?}");
    for excerpt in excerpts {
        assert!(example.contains(&excerpt.text), "not in the example:\n{}", excerpt.text);
    }
}

#[test]
fn excerpts_of_the_staged_example_are_as_they_are_in_it() {
    let example = fs::read_to_string(root().join("crates/cli/examples/staged_model.rs")).unwrap();
    let document = read(Path::new("docs/placement.md"));
    let excerpts: Vec<_> = document.blocks.iter().filter(|block| block.info == "rust staged").collect();
    assert_eq!(excerpts.len(), 2, "{excerpts:?}");
    for excerpt in excerpts {
        assert!(example.contains(&excerpt.text), "not in the example:\n{}", excerpt.text);
    }
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let text = "# A heading, with `code`\n\n[a](README.md) [b](#a-heading-with-code) [c](https://nowhere.invalid)\n\n\
                [d](nowhere.md) [e](#nowhere)\n![f](docs/nowhere.png)\n[g](README.md#nowhere) [h](../..) [i][j]";
    let found = broken_links(&Document::parse(Path::new("a.md"), text));
    let places: Vec<&str> = found.iter().map(|found| found.split(": ").take(2).last().unwrap()).collect();
    assert_eq!(places, ["nowhere.md", "#nowhere", "docs/nowhere.png", "README.md#nowhere", "../..", "j"], "{found:#?}");
    assert!(found[0].starts_with("a.md:5: "), "{found:#?}");
}
