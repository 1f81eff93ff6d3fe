//! Decides when a client is sent its worker's hardware usage again.

use std::time::{Duration, Instant};

use windlass_instruments::{Usage, UsageMeter};

/// The meter measures once a second, too.
const EVERY: Duration = Duration::from_secs(1);

/// Reports hardware usage to one client.
pub(super) struct UsageTeller {
    meter: UsageMeter,
    told: Option<Instant>,
}

impl UsageTeller {
    pub(super) fn new(meter: &UsageMeter) -> Self {
        Self { meter: meter.clone(), told: None }
    }

    /// Returns the last measurement, unless the client has just been sent one.
    pub(super) fn due(&mut self) -> Option<Box<Usage>> {
        if self.told.is_some_and(|told| told.elapsed() < EVERY) {
            return None;
        }
        self.told = Some(Instant::now());
        // Without a host name, nothing has been measured yet.
        Some(Box::new(self.meter.last())).filter(|usage| !usage.node.name.is_empty())
    }
}
