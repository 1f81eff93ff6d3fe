//! Parses a document into headings, links, code, and list items.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pulldown_cmark::{BrokenLink, CodeBlockKind, CowStr, Event, LinkType, Options, Parser, Tag, TagEnd};

/// The parts of a document that the tests check.
#[derive(Debug, Default)]
pub struct Document {
    /// The path from the root of the workspace.
    pub path: PathBuf,
    /// The anchors of its headings.
    pub anchors: Vec<String>,
    /// Links and images, by the line in which they begin.
    pub links: Vec<(usize, String)>,
    pub blocks: Vec<Block>,
    /// Inline code.
    pub spans: Vec<(usize, String)>,
    pub items: Vec<Item>,
}

/// A code block.
#[derive(Debug, Default)]
pub struct Block {
    pub line: usize,
    /// The text after the fence.
    pub info: String,
    pub text: String,
}

impl Block {
    pub fn language(&self) -> &str {
        self.info.split_whitespace().next().unwrap_or_default()
    }

    /// Whether the tests run it.
    pub fn is_runnable(&self) -> bool {
        self.info == "sh run"
    }
}

/// An item of a list.
#[derive(Debug, Default)]
pub struct Item {
    pub line: usize,
    /// The anchor of the heading above it.
    pub section: String,
    /// Inline code within its text.
    pub spans: Vec<String>,
}

impl Document {
    pub fn parse(path: &Path, text: &str) -> Self {
        let line = |offset: usize| 1 + text[..offset].matches('\n').count();
        // An undefined reference resolves to its own name, which does not exist, so it is reported as broken.
        let undefined = |link: BrokenLink<'_>| {
            let is_meant = matches!(link.link_type, LinkType::Reference | LinkType::Collapsed);
            is_meant.then(|| (CowStr::from(link.reference.to_string()), CowStr::from("")))
        };
        let options = Options::ENABLE_TABLES | Options::ENABLE_GFM;
        let parser = Parser::new_with_broken_link_callback(text, options, Some(undefined)).into_offset_iter();
        let mut document = Self { path: path.to_owned(), ..Self::default() };
        let (mut heading, mut block) = (None::<String>, None::<Block>);
        let (mut is_item, mut taken) = (false, HashMap::new());
        for (event, range) in parser {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    document.anchors.extend(heading.take().map(|text| anchor(&text, &mut taken)));
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = if let CodeBlockKind::Fenced(info) = kind { info.to_string() } else { String::new() };
                    block = Some(Block { line: line(range.start), info, text: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => document.blocks.extend(block.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((line(range.start), dest_url.to_string()));
                }
                Event::Html(html) | Event::InlineHtml(html) => {
                    document.links.extend(attributes(&html).map(|link| (line(range.start), link)));
                }
                Event::Start(Tag::Item) => {
                    let section = document.anchors.last().cloned().unwrap_or_default();
                    document.items.push(Item { line: line(range.start), section, spans: Vec::new() });
                    is_item = true;
                }
                Event::End(TagEnd::Item) => is_item = false,
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    if let Some(item) = document.items.last_mut().filter(|_| is_item) {
                        item.spans.push(code.to_string());
                    }
                    document.spans.push((line(range.start), code.to_string()));
                }
                Event::Text(text) => {
                    if let Some(place) = heading.as_mut().or(block.as_mut().map(|block| &mut block.text)) {
                        place.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        document
    }
}

/// GitHub's anchor for a heading: lower case, without punctuation, with hyphens for spaces, and numbered if the anchor
/// is taken.
fn anchor(heading: &str, taken: &mut HashMap<String, usize>) -> String {
    let letters = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    let name: String =
        letters.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect();
    let times = taken.entry(name.clone()).or_default();
    *times += 1;
    if *times == 1 { name } else { format!("{name}-{}", *times - 1) }
}

/// The targets of links in HTML.
fn attributes(html: &str) -> impl Iterator<Item = String> {
    let after = ["src=\"", "href=\""].into_iter().flat_map(|name| html.split(name).skip(1));
    after.filter_map(|rest| rest.split('"').next()).map(str::to_owned)
}
