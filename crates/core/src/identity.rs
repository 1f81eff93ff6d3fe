//! What identifies a trained model besides the shapes of its parameters: its flags and the files that belong to its
//! values. The workers of a run must agree on it, and checkpoints record it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::difference::Difference;

/// The effect of a model's flag on a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagRole {
    /// The flag decides what the network is, or what its data mean: all workers must agree on it, and so must a run
    /// that resumes from a checkpoint or scores one.
    #[default]
    Network,
    /// The flag decides how the network is trained: all workers must agree on it, but a resumed run may change it.
    Training,
    /// The flag says where something is read, which may differ between hosts.
    Input,
    /// The flag concerns only this process, such as the name of a file to write. Checkpoints do not record it.
    Output,
}

/// A model flag's role, and its value in a run or its default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelFlag {
    /// The role of the flag.
    pub role: FlagRole,
    /// The flag's values, as written on the command line; none if it was not given and has no default.
    pub values: Vec<String>,
}

/// A model's identity besides its parameters. Runs from before this was recorded have an empty one, which matches any
/// other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Identity {
    /// The model's flags, by name, without those whose role is [`FlagRole::Output`].
    pub flags: BTreeMap<String, ModelFlag>,
    /// The files besides the values that are needed to use the trained network.
    pub files: BTreeMap<String, Fingerprint>,
}

impl Identity {
    /// The first difference between two workers of one run.
    pub fn difference_between_workers(&self, other: &Self) -> Option<Difference> {
        self.difference(other, |role| matches!(role, FlagRole::Network | FlagRole::Training))
    }

    /// The first difference from the run of a checkpoint that prevents this run from using the checkpoint.
    pub fn difference_from_checkpoint(&self, trained: &Self) -> Option<Difference> {
        self.difference(trained, |role| role == FlagRole::Network)
    }

    /// Ignores a flag or file that only one side has: a later version may have added it.
    fn difference(&self, other: &Self, counts: impl Fn(FlagRole) -> bool) -> Option<Difference> {
        let flag = self.flags.iter().find_map(|(name, here)| {
            let there = other.flags.get(name)?;
            (counts(here.role) && !same_values(&here.values, &there.values))
                .then(|| Difference::flag(phrase(name, &here.values), phrase(name, &there.values)))
        });
        let file = || {
            let differs = |(name, here): &(&String, &Fingerprint)| other.files.get(*name).is_some_and(|it| it != *here);
            self.files.iter().find(differs).map(|(name, _)| Difference::File(name.clone()))
        };
        flag.or_else(file)
    }
}

/// Whether two values of a flag mean the same: a number may be written in several ways.
pub fn same_values(one: &[String], other: &[String]) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    let same = |(one, other): (&String, &String)| {
        one == other || number(one).zip(number(other)).is_some_and(|(one, other)| one == other)
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

/// Describes how a flag was given: `with --hidden 8`, `without --self-test`.
pub fn phrase(name: &str, values: &[String]) -> String {
    match values {
        [] => format!("without --{name}"),
        [one] if one == "false" => format!("without --{name}"),
        [one] if one == "true" => format!("with --{name}"),
        values => format!("with --{name} {}", values.join(" ")),
    }
}

/// A hash for comparing contents. It guards against accidents, not against forgery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// The fingerprint of these bytes (XXH3-128).
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_all([bytes])
    }

    /// The fingerprint of the concatenated slices; where each slice ends does not matter.
    pub fn of_all(slices: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let mut hasher = XxHash3_128::new();
        slices.into_iter().for_each(|slice| hasher.write(slice.as_ref()));
        Self(hasher.finish_128())
    }

    /// Enough digits to tell two apart at a glance.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

/// A text that is not a [`Fingerprint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a fingerprint of 32 hexadecimal digits")]
pub struct BadFingerprint(String);

impl FromStr for Fingerprint {
    type Err = BadFingerprint;

    fn from_str(text: &str) -> Result<Self, BadFingerprint> {
        let parsed = u128::from_str_radix(text, 16).ok().map(Self);
        parsed.filter(|parsed| parsed.to_string() == text).ok_or_else(|| BadFingerprint(text.to_owned()))
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = BadFingerprint;

    fn try_from(text: String) -> Result<Self, BadFingerprint> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(flags: &[(&str, FlagRole, &[&str])]) -> Identity {
        let flag = |(name, role, values): &(&str, FlagRole, &[&str])| {
            let values = values.iter().map(ToString::to_string).collect();
            ((*name).to_owned(), ModelFlag { role: *role, values })
        };
        Identity { flags: flags.iter().map(flag).collect(), files: BTreeMap::new() }
    }

    fn told(difference: Option<Difference>) -> Option<String> {
        difference.map(|difference| difference.describe("this run", "the other"))
    }

    #[test]
    fn a_flag_of_the_network_differs_for_workers_and_checkpoints() {
        let (relu, sigmoid) =
            ["relu", "sigmoid"].map(|name| identity(&[("variant", FlagRole::Network, &[name])])).into();
        let difference = Some("this run was started with --variant sigmoid, the other with --variant relu".to_owned());
        assert_eq!(told(sigmoid.difference_from_checkpoint(&relu)), difference);
        assert_eq!(told(sigmoid.difference_between_workers(&relu)), difference);
    }

    #[test]
    fn a_flag_of_the_training_may_differ_from_a_checkpoint_but_not_among_workers() {
        let (one, other) = ["5", "6"].map(|norm| identity(&[("clip-norm", FlagRole::Training, &[norm])])).into();
        assert_eq!(one.difference_from_checkpoint(&other), None);
        assert!(told(one.difference_between_workers(&other)).unwrap().contains("--clip-norm 5"));
    }

    #[test]
    fn where_data_are_read_may_differ() {
        let (one, other) = ["/a", "/b"].map(|path| identity(&[("text", FlagRole::Input, &[path])])).into();
        assert_eq!(one.difference_between_workers(&other), None);
    }

    #[test]
    fn a_flag_that_the_checkpoint_does_not_know_is_no_difference() {
        let run = identity(&[("new", FlagRole::Network, &["1"])]);
        assert_eq!(run.difference_from_checkpoint(&Identity::default()), None);
        assert_eq!(Identity::default().difference_from_checkpoint(&run), None);
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        let values = |text: &str| vec![text.to_owned()];
        assert!(same_values(&values("0.50"), &values("0.5")));
        assert!(!same_values(&values("0.50"), &values("0.51")));
        assert!(!same_values(&values("relu"), &[]));
    }

    #[test]
    fn flags_are_told_as_they_are_written() {
        let phrase = |values: &[&str]| phrase("x", &values.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(phrase(&[]), "without --x");
        assert_eq!(phrase(&["true"]), "with --x");
        assert_eq!(phrase(&["5,10", "10,15"]), "with --x 5,10 10,15");
    }

    #[test]
    fn a_fingerprint_is_of_the_bytes_whatever_slices_they_are_in() {
        let whole = Fingerprint::of(b"abcdef");
        assert_eq!(Fingerprint::of_all([&b"abc"[..], b"", b"def"]), whole);
        assert_ne!(Fingerprint::of(b"abcdeg"), whole);
        assert_eq!(whole.to_string().parse(), Ok(whole));
        assert!("xyz".parse::<Fingerprint>().is_err());
    }
}
