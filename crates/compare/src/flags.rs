//! The flags of the runs that are compared, from a table of the file or from the command line, and their precedence.
//! This module does not know what a value means; the run does.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::error::PlanError;

/// What is known of the flags of a model's runs by whoever reads them. `()` knows nothing.
pub trait FlagRules {
    /// The name of a flag, by that or by an alias of it; `None` if there is no such flag.
    fn name(&self, flag: &str) -> Option<String>;
    /// Whether a flag goes for nothing because of others that take precedence over it, given with their values.
    fn is_replaced(&self, flag: &str, above: &BTreeMap<String, Vec<OsString>>) -> bool;
}

impl FlagRules for () {
    fn name(&self, _flag: &str) -> Option<String> {
        None
    }

    fn is_replaced(&self, _flag: &str, _above: &BTreeMap<String, Vec<OsString>>) -> bool {
        false
    }
}

/// Flags that a comparison sets by itself, and by what.
const RESERVED: &[(&str, &str)] = &[
    ("ps", BY_LAYOUT),
    ("workers", BY_LAYOUT),
    ("colocate", BY_LAYOUT),
    ("mode", BY_LAYOUT),
    ("staleness", BY_LAYOUT),
    ("job-name", BY_LAYOUT),
    ("task-index", BY_LAYOUT),
    ("ps-hosts", BY_LAYOUT),
    ("worker-hosts", BY_LAYOUT),
    ("cluster", BY_LAYOUT),
    ("bind", BY_LAYOUT),
    ("run-dir", BY_OUTPUT),
    ("checkpoint-dir", BY_OUTPUT),
    ("resume", BY_OUTPUT),
    ("take-over", BY_OUTPUT),
    ("format", BY_OUTPUT),
    ("print-config", "it starts no run"),
    ("print-cluster", "it starts no run"),
    ("help", "it starts no run"),
];
const BY_LAYOUT: &str = "the layout says it";
const BY_OUTPUT: &str = "every run has a directory of its own in --output";

/// Flags by name, each with all its words on a command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags(Vec<(String, Vec<String>)>);

impl Flags {
    /// Reads flags from a table: `epochs = 3` becomes `--epochs=3`, `deterministic = true` becomes `--deterministic`,
    /// and a list repeats the flag.
    ///
    /// # Errors
    /// Fails if a value has a type that no flag takes, or a flag is reserved.
    pub fn from_table(table: &toml::Table) -> Result<Self, PlanError> {
        let mut flags = Vec::new();
        for (key, value) in table {
            let name = key.replace('_', "-");
            let words = match value {
                toml::Value::Boolean(true) => vec![format!("--{name}")],
                toml::Value::Array(values) => {
                    values.iter().map(|value| word(&name, value)).collect::<Result<Vec<_>, _>>()?
                }
                value => vec![word(&name, value)?],
            };
            flags.push((name, words));
        }
        Self(flags).checked()
    }

    /// Reads flags from a command line.
    ///
    /// # Errors
    /// Fails if a word belongs to no flag, or a flag is reserved.
    pub fn from_words(words: &[String]) -> Result<Self, PlanError> {
        let mut flags: Vec<(String, Vec<String>)> = Vec::new();
        let mut current = None;
        for word in words {
            if let Some(flag) = word.strip_prefix("--").filter(|name| !name.is_empty()) {
                let name = flag.split('=').next().unwrap_or_default().replace('_', "-");
                // All words of a repeated flag stay together.
                let position = flags.iter().position(|(earlier, _)| *earlier == name);
                current = Some(position.unwrap_or(flags.len()));
                if position.is_none() {
                    flags.push((name, Vec::new()));
                }
            }
            let Some(current) = current else { return Err(PlanError::NotAFlag { word: word.clone() }) };
            flags[current].1.push(word.clone());
        }
        Self(flags).checked()
    }

    /// These, but where others set the same flag, by whatever name, or one that conflicts with it, the others.
    #[must_use]
    pub fn overridden_by(mut self, others: &Self, rules: &dyn FlagRules) -> Self {
        let name = |flag: &str| rules.name(flag).unwrap_or_else(|| flag.to_owned());
        let above: BTreeMap<String, Vec<OsString>> =
            others.0.iter().map(|(flag, words)| (name(flag), values(words))).collect();
        let goes = |flag: &str| above.contains_key(flag) || rules.is_replaced(flag, &above);
        self.0.retain(|(flag, _)| !goes(&name(flag)));
        self.0.extend(others.0.iter().cloned());
        self
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|(name, _)| name == flag)
    }

    /// All flags as words of a command line.
    pub fn words(&self) -> Vec<String> {
        self.0.iter().flat_map(|(_, words)| words.iter().cloned()).collect()
    }

    fn checked(self) -> Result<Self, PlanError> {
        match RESERVED.iter().find(|(flag, _)| self.has(flag)) {
            Some((flag, why)) => Err(PlanError::Reserved { flag: (*flag).to_owned(), why }),
            None => Ok(self),
        }
    }
}

/// The values among a flag's words.
fn values(words: &[String]) -> Vec<OsString> {
    let value = |word: &String| match word.strip_prefix("--") {
        Some(flag) => flag.split_once('=').map(|(_, value)| value.into()),
        None => Some(word.into()),
    };
    words.iter().filter_map(value).collect()
}

fn word(name: &str, value: &toml::Value) -> Result<String, PlanError> {
    match value {
        toml::Value::String(text) => Ok(format!("--{name}={text}")),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Ok(format!("--{name}={value}")),
        value => Err(PlanError::Value { flag: name.to_owned(), kind: value.type_str() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `train` has them.
    struct OfTraining;

    impl FlagRules for OfTraining {
        fn name(&self, flag: &str) -> Option<String> {
            let name = if flag == "lr" { "learning-rate" } else { flag };
            Some(name.to_owned())
        }

        fn is_replaced(&self, flag: &str, above: &BTreeMap<String, Vec<OsString>>) -> bool {
            let has = |other: &str, value: &str| above.get(other).is_some_and(|values| *values == [value]);
            (flag == "steps" && above.contains_key("epochs")) || (flag == "min-shard-bytes" && has("sharding", "whole"))
        }
    }

    fn from_words(words: &str) -> Result<Flags, PlanError> {
        Flags::from_words(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn from_table(text: &str) -> Result<Flags, PlanError> {
        Flags::from_table(&text.parse().unwrap())
    }

    #[test]
    fn a_table_becomes_words() {
        let table = "epochs = 3\nlearning_rate = 0.5\nhidden = [200, 50]\ndeterministic = true\nshard-data = false\nvariant = 'relu'";
        let words = from_table(table).unwrap().words().join(" ");
        assert_eq!(
            words,
            "--deterministic --epochs=3 --hidden=200 --hidden=50 --learning-rate=0.5 --shard-data=false --variant=relu"
        );
    }

    #[test]
    fn the_command_line_overrides_the_file_flag_by_flag() {
        let file = from_table("epochs = 3\nbatch-size = 10\nhidden = [200, 50]").unwrap();
        let line = from_words("--batch_size 20 --hidden=7 --seed -1").unwrap();
        let words = file.overridden_by(&line, &()).words().join(" ");
        assert_eq!(words, "--epochs=3 --batch_size 20 --hidden=7 --seed -1");
    }

    #[test]
    fn a_flag_overrides_one_that_the_file_has_by_another_name() {
        for (file, line) in [("learning-rate = 0.5", "--lr=0.1"), ("lr = 0.5", "--learning_rate=0.1")] {
            let (file, line) = (from_table(file).unwrap(), from_words(line).unwrap());
            assert_eq!(file.overridden_by(&line, &OfTraining), line);
        }
    }

    #[test]
    fn a_flag_overrides_those_that_conflict_with_it() {
        let file = from_table("steps = 9\nmin-shard-bytes = 5\nseed = 1").unwrap();
        let words = |line: &str| file.clone().overridden_by(&from_words(line).unwrap(), &OfTraining).words().join(" ");
        assert_eq!(words("--epochs 2"), "--min-shard-bytes=5 --seed=1 --epochs 2");
        for sharding in ["--sharding whole", "--sharding=whole"] {
            assert_eq!(words(sharding), format!("--seed=1 --steps=9 {sharding}"));
        }
        assert_eq!(words("--sharding cut"), "--min-shard-bytes=5 --seed=1 --steps=9 --sharding cut");
    }

    #[test]
    fn a_flag_given_several_times_keeps_all_its_words() {
        let flags = from_words("--optimizer-option a=1 --steps 5 --optimizer-option b=2").unwrap();
        assert_eq!(flags.words().join(" "), "--optimizer-option a=1 --optimizer-option b=2 --steps 5");
    }

    #[test]
    fn what_the_comparison_sets_is_refused() {
        let refusal = |words: &str| from_words(words).unwrap_err().to_string();
        assert_eq!(
            refusal("--run_dir x"),
            "--run-dir is not a flag to compare with: every run has a directory of its own in --output"
        );
        assert_eq!(refusal("--steps 5 --mode=sync"), "--mode is not a flag to compare with: the layout says it");
        assert_eq!(refusal("5 --steps"), "\"5\" is not a flag of the run");
        let error = from_table("workers = 3").unwrap_err().to_string();
        assert_eq!(error, "--workers is not a flag to compare with: the layout says it");
        let error = from_table("steps = 1979-05-27").unwrap_err().to_string();
        assert_eq!(error, "flag steps cannot be a datetime");
    }
}
