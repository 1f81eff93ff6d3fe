//! When a client is told again what its worker uses of its hardware.

use std::time::{Duration, Instant};

use windlass_instruments::{Usage, UsageMeter};

/// The meter measures once a second, too.
const EVERY: Duration = Duration::from_secs(1);

/// Tells one client.
pub(super) struct UsageTeller {
    meter: UsageMeter,
    told: Option<Instant>,
}

impl UsageTeller {
    pub(super) fn new(meter: &UsageMeter) -> Self {
        Self { meter: meter.clone(), told: None }
    }

    /// What was measured last, if the client was told long enough ago.
    pub(super) fn due(&mut self) -> Option<Box<Usage>> {
        if self.told.is_some_and(|told| told.elapsed() < EVERY) {
            return None;
        }
        self.told = Some(Instant::now());
        // Nothing was measured yet if there is no host's name.
        Some(Box::new(self.meter.last())).filter(|usage| !usage.node.name.is_empty())
    }
}
