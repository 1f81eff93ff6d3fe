//! The ids of checkpoints, and the names of their objects.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One attempt to write a checkpoint. The greater id is the newer checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CheckpointId {
    /// The global step whose values it holds.
    pub step: u64,
    /// The generation of the coordinator that wrote it; 0 if none was claimed.
    pub generation: u64,
    /// Partly random, so that no two attempts share objects. Of two at one step, the later is the greater.
    pub attempt: u32,
}

impl CheckpointId {
    /// Creates a new attempt at this step.
    pub fn new(step: u64, generation: u64) -> Self {
        Self { step, generation, attempt: rand::random() }
    }

    /// Creates the id of the attempt of this number by a generation's coordinator, which has drawn `salt`. Attempt
    /// numbers are capped at 24 bits.
    pub fn of_attempt(step: u64, generation: u64, number: u64, salt: u8) -> Self {
        let number = number.min((1 << 24) - 1) as u32;
        Self { step, generation, attempt: number << 8 | u32::from(salt) }
    }

    /// The name of its manifest within the store.
    pub fn manifest_object(&self) -> String {
        format!("{self}.json")
    }

    /// The name of one server's part within the store.
    pub fn part_object(&self, server: usize, servers: usize) -> String {
        format!("{self}/ps-{server}-of-{servers}.safetensors")
    }

    /// Returns generation and step, which decide which of two checkpoints is newer.
    pub(crate) fn age(&self) -> (u64, u64) {
        (self.generation, self.step)
    }
}

impl Ord for CheckpointId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.age().cmp(&other.age()).then(self.attempt.cmp(&other.attempt))
    }
}

impl PartialOrd for CheckpointId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, generation, attempt } = self;
        write!(formatter, "{step:012}-g{generation:06}-{attempt:08x}")
    }
}

/// A text that is no [`CheckpointId`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not the id of a checkpoint: expected a form like 000000012345-g000003-8f1c77a0")]
pub struct BadCheckpointId {
    /// The text as it was given.
    pub text: String,
}

impl FromStr for CheckpointId {
    type Err = BadCheckpointId;

    fn from_str(text: &str) -> Result<Self, BadCheckpointId> {
        let parse = || {
            let mut fields = text.split('-');
            let step = fields.next()?.parse().ok()?;
            let generation = fields.next()?.strip_prefix('g')?.parse().ok()?;
            let attempt = u32::from_str_radix(fields.next()?, 16).ok()?;
            fields.next().is_none().then_some(Self { step, generation, attempt })
        };
        // Accept only the canonical form, so that a checkpoint has exactly one name.
        parse().filter(|id| id.to_string() == text).ok_or_else(|| BadCheckpointId { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(step: u64, generation: u64) -> CheckpointId {
        CheckpointId { step, generation, attempt: 0x8f1c }
    }

    #[test]
    fn an_id_is_read_as_it_is_written() {
        assert_eq!(id(12345, 3).to_string(), "000000012345-g000003-00008f1c");
        for id in [id(0, 0), id(12345, 3), id(u64::MAX, u64::MAX)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn what_is_not_written_so_is_refused() {
        for text in ["", "12345-g3-8f1c", "000000012345-g000003", "000000012345-g000003-00008f1c-1", "latest"] {
            assert_eq!(text.parse::<CheckpointId>(), Err(BadCheckpointId { text: text.to_owned() }));
        }
    }

    #[test]
    fn a_later_generation_is_newer_whatever_its_step() {
        assert!(id(100, 3) > id(200, 2));
        assert!(id(200, 2) > id(100, 2));
    }

    #[test]
    fn of_two_attempts_at_one_step_the_later_is_the_newer() {
        let attempt = |number| CheckpointId::of_attempt(5, 1, number, 255 - (number % 256) as u8);
        for number in [1, 255, 65_535, 65_536, (1 << 24) - 2] {
            assert!(attempt(number + 1) > attempt(number), "{number}");
        }
    }

    #[test]
    fn names_of_one_generation_sort_by_step() {
        assert!(id(9, 1).manifest_object() < id(10, 1).manifest_object());
        assert!(id(9, 2).manifest_object() < id(10, 1).manifest_object());
    }
}
