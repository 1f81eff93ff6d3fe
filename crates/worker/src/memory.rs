//! Whether gradients fit into memory. Checked before a step, because the system kills a process that takes too much
//! without a message.

use windlass_core::footprint::in_words;
use windlass_instruments::{AvailableMemory, available_memory, total_memory};

/// Gradients that do not fit into memory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} too large: the gradients need {}, but only {} of memory is available to this process",
    in_words(*needed),
    in_words(*available)
)]
pub(crate) struct OutOfMemory {
    what: &'static str,
    needed: u64,
    available: u64,
    /// Whether they would fit if other processes took no memory.
    pub(crate) is_temporary: bool,
}

/// Checks that gradients of this many bytes fit. `what` is the subject of the error, with its verb: "the model is".
pub(crate) fn check(what: &'static str, needed: u64) -> Result<(), OutOfMemory> {
    let Some(AvailableMemory { process: available, .. }) = available_memory() else { return Ok(()) };
    fits(what, needed, available, total_memory())
}

fn fits(what: &'static str, needed: u64, available: u64, total: Option<u64>) -> Result<(), OutOfMemory> {
    if needed <= available {
        return Ok(());
    }
    let is_temporary = total.is_none_or(|total| needed <= total);
    Err(OutOfMemory { what, needed, available, is_temporary })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A model that would fit if other processes took no memory.
    pub(crate) fn temporary() -> OutOfMemory {
        fits("the model is", 3_000, 2_000, Some(4_000)).unwrap_err()
    }

    #[test]
    fn gradients_that_the_machine_could_hold_are_out_of_memory_only_for_a_time() {
        assert_eq!(fits("the model is", 2_000, 2_000, Some(4_000)), Ok(()));
        assert!(temporary().is_temporary);
        assert!(!fits("the model is", 5_000, 2_000, Some(4_000)).unwrap_err().is_temporary);
        assert_eq!(
            temporary().to_string(),
            "the model is too large: the gradients need 3.0 kB, but only 2.0 kB of memory is available to this process"
        );
    }
}
