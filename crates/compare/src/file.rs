//! A comparison as a TOML file:
//!
//! ```toml
//! title = "Two workers on handwritten digits"
//! model = "mnist"
//! repeat = 3
//! layouts = ["single", "1ps2w-async", "1ps2w-sync"]
//!
//! [flags]                     # of the model and of training
//! steps = 2000
//! ```
//! A layout can have a name, flags and reference values of its own:
//!
//! ```toml
//! [reference]
//! name = "TensorFlow 1.2"
//! tolerance = 0.02            # of the score
//!
//! [[layouts]]
//! layout = "2ps2w-async"
//! name = "2ps2w-round-robin"
//! flags = { sharding = "round_robin" }
//! reference = { score = 0.8, epoch_seconds = 6.6 }
//! ```

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::error::PlanError;

/// The contents of a comparison file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompareFile {
    /// A title for the comparison.
    pub title: Option<String>,
    /// The model to train.
    pub model: Option<String>,
    /// The number of runs of each layout.
    pub repeat: Option<u32>,
    /// The score that is shown.
    pub score: Option<String>,
    /// Flags for every run.
    #[serde(default)]
    pub flags: toml::Table,
    /// The source of the reference values that results are compared with.
    pub reference: Option<ReferenceSource>,
    /// The layouts.
    #[serde(default)]
    pub layouts: Vec<LayoutEntry>,
}

/// Where reference values come from.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceSource {
    /// The name of the source.
    pub name: String,
    /// The largest difference from the reference at which a score still agrees with it.
    pub tolerance: Option<f64>,
}

/// Reference values of a layout.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// The score.
    pub score: Option<f64>,
    /// The time of a worker's step.
    pub step_ms: Option<f64>,
    /// Samples a second over all workers.
    pub samples_per_second: Option<f64>,
    /// The time of a worker's epoch.
    pub epoch_seconds: Option<f64>,
}

/// A layout in the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayoutEntry {
    /// The layout, written as in `--layouts`.
    pub layout: String,
    /// The name of its row, if not the layout itself.
    pub name: Option<String>,
    /// Flags for the runs of this layout alone.
    pub flags: toml::Table,
    /// Reference values.
    pub reference: Reference,
}

/// A layout written as a table, with more than its name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WholeEntry {
    layout: String,
    name: Option<String>,
    #[serde(default)]
    flags: toml::Table,
    #[serde(default)]
    reference: Reference,
}

impl<'de> Deserialize<'de> for LayoutEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = LayoutEntry;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a layout such as \"1ps2w-async\", or a table with one")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LayoutEntry, E> {
                Ok(LayoutEntry { layout: text.to_owned(), ..LayoutEntry::default() })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<LayoutEntry, A::Error> {
                let WholeEntry { layout, name, flags, reference } =
                    WholeEntry::deserialize(MapAccessDeserializer::new(map))?;
                Ok(LayoutEntry { layout, name, flags, reference })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Parses the text of a comparison file.
///
/// # Errors
/// Fails if the text is not TOML, or has a setting that is unknown or of the wrong type.
pub fn parse(text: &str) -> Result<CompareFile, PlanError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let problem = error.message().trim_end().replace('\n', ", ");
        PlanError::File { why: line.map_or(problem.clone(), |line| format!("line {line}: {problem}")) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_words_or_tables() {
        let words = parse("layouts = ['single', '1ps1w']").unwrap();
        assert_eq!(words.layouts.iter().map(|entry| &*entry.layout).collect::<Vec<_>>(), ["single", "1ps1w"]);
        let tables = parse(
            "[[layouts]]\nlayout = 'single'\n[[layouts]]\nlayout = '2ps2w-sync'\nname = 'half'\nflags = { steps = 5 }\n\
             reference = { score = 0.5 }",
        )
        .unwrap();
        let half = &tables.layouts[1];
        assert_eq!((half.name.as_deref(), half.reference.score), (Some("half"), Some(0.5)));
        assert_eq!(half.flags["steps"].as_integer(), Some(5));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let refusal = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            refusal("model = 'mnist'\nlayout = ['single']"),
            "line 2: unknown field `layout`, expected one of `title`, `model`, `repeat`, `score`, `flags`, \
             `reference`, `layouts`"
        );
        assert!(refusal("layouts = [3]").starts_with("line 1: invalid type: integer `3`, expected a layout such as"));
        assert!(refusal("[[layouts]]\nlayout = 'single'\nreference = { acuracy = 1 }").contains("acuracy"));
        assert!(refusal("model = ").starts_with("line 1: "));
    }
}
