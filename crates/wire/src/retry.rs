//! How long to pause between attempts, and how often to log a long wait.

use std::time::Duration;

/// How often a long wait is logged.
pub const REPORT_EVERY: Duration = Duration::from_secs(3);

/// The shortest and longest pause between two attempts to call a task.
pub const CALL_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(150));

/// Pauses between attempts: none before the first, then doubling up to a limit.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// A backoff between these two pauses.
    pub fn new((first, most): (Duration, Duration)) -> Self {
        Self { first, most, next: Duration::ZERO }
    }

    /// Returns the pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).clamp(self.first, self.most);
        pause
    }

    /// Records a success: the next attempt is made at once.
    pub fn reset(&mut self) {
        self.next = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_begin_again_after_a_success() {
        let mut backoff = Backoff::new(CALL_PAUSES);
        let mut pauses = |count| (0..count).map(|_| backoff.pause().as_millis()).collect::<Vec<_>>();
        assert_eq!(pauses(6), [0, 20, 40, 80, 150, 150]);
        backoff.reset();
        assert_eq!(backoff.pause(), Duration::ZERO);
    }
}
