//! Polling for a while before sleeping, as long as that is faster.
//!
//! A wait for the other end is often shorter than a sleep and a wake-up. An end that polls yields its core after every
//! try: on a quiet machine, to the very process that it waits for. On a crowded machine the core goes to other
//! programs, which keep it for milliseconds, whereas a sleeper that is woken would preempt them; polling is then
//! suspended for a while.

use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an end polls before it sleeps: a few times what a sleep and a wake-up cost.
const SPIN_FOR: Duration = Duration::from_micros(200);
/// A yield that takes longer means that another program is using the core.
const CROWDED: Duration = Duration::from_micros(1500);
/// How long polling is suspended on a crowded machine.
const SLEEP_FOR: Duration = Duration::from_millis(500);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// Until when this process sleeps without polling, in microseconds since the start.
static CROWDED_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Polls for a while. Returns true as soon as `is_there` does.
pub(super) fn spin_until(mut is_there: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let began = Instant::now();
    let mut now = began;
    while !is_there()? {
        if now.duration_since(began) >= SPIN_FOR || is_crowded(now) {
            return Ok(false);
        }
        std::thread::yield_now();
        let before = std::mem::replace(&mut now, Instant::now());
        if now.duration_since(before) >= CROWDED {
            CROWDED_UNTIL.store(micros(now + SLEEP_FOR), Ordering::Relaxed);
        }
    }
    Ok(true)
}

fn is_crowded(now: Instant) -> bool {
    micros(now) < CROWDED_UNTIL.load(Ordering::Relaxed)
}

fn micros(at: Instant) -> u64 {
    at.saturating_duration_since(*START).as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_seen_and_what_does_not_come_is_given_up() {
        let mut tries = 0;
        let third = || {
            tries += 1;
            Ok(tries == 3)
        };
        // On a crowded machine, the second try may be the last.
        assert!(spin_until(third).unwrap() || is_crowded(Instant::now()));
        assert!(!spin_until(|| Ok(false)).unwrap());
        assert!(spin_until(|| Err(io::ErrorKind::InvalidData.into())).is_err());
    }
}
