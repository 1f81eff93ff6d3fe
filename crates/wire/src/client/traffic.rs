//! How much a client has moved.

use std::ops::{AddAssign, Sub};

/// Bytes of payload that a client has moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the servers.
    pub sent: u64,
    /// From the servers.
    pub received: u64,
    /// The part of both that stayed within this process.
    pub in_process: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.in_process += other.in_process;
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            sent: self.sent - earlier.sent,
            received: self.received - earlier.received,
            in_process: self.in_process - earlier.in_process,
        }
    }
}
