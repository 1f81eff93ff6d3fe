//! Statistics of a joined worker, shown to observers of the run. Nothing is decided by them.

use std::time::{Duration, Instant};

use windlass_instruments::{JoinedSite, Usage};
use windlass_wire::compute::Heard;

use super::seat::Seat;
use crate::joined::protocol::PING_EVERY;

/// The traffic, work and waiting times of one joined worker, as its client measures them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// When it first joined.
    first_joined: Option<Instant>,
    /// When it was last heard from.
    heard: Option<Instant>,
    /// Since when it has owed an answer to a request.
    asked_since: Option<Instant>,
    /// Since when its client has been waiting for it to join.
    awaited_since: Option<Instant>,
    pub(super) steps: u64,
    samples: u64,
    /// Time in which a request to it was pending. Outages do not count.
    asked: Duration,
    /// Time in which it computed: by its own clock if it computes the whole model. Stages do not measure their pieces,
    /// so their time is measured by the client's clock and includes the transfer.
    computed: Duration,
    sent: u64,
    received: u64,
    usage: Option<Usage>,
}

impl Counts {
    pub(super) fn joins(&mut self) {
        let now = Instant::now();
        self.first_joined.get_or_insert(now);
        (self.heard, self.asked_since, self.awaited_since) = (Some(now), None, None);
    }

    pub(super) fn hears(&mut self) {
        self.heard = Some(Instant::now());
    }

    pub(super) fn is_awaited_since(&mut self, then: Instant) {
        self.awaited_since.get_or_insert(then);
    }

    pub(super) fn is_awaited_no_more(&mut self) {
        self.awaited_since = None;
    }

    /// Records a request to the worker with a message of this size.
    pub(super) fn asks(&mut self, bytes: u64) {
        self.sent += bytes;
        self.asked_since = Some(Instant::now());
    }

    /// Records that the worker was heard from, or that the request has failed.
    pub(super) fn heard(&mut self, heard: Heard) {
        if heard != Heard::Failed {
            self.hears();
        }
        if heard != Heard::Something
            && let Some(since) = self.asked_since.take()
        {
            self.asked += since.elapsed();
        }
    }

    /// Records an answer with a message of this size.
    pub(super) fn answered(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// Records that the worker has computed its share of a step.
    pub(super) fn computed(&mut self, samples: usize, took: Duration) {
        self.samples += samples as u64;
        // The worker reports this time, so it may be absurdly long.
        self.computed = self.computed.saturating_add(took);
    }

    pub(super) fn uses(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    /// Returns the bytes sent to the worker and received from it.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    fn asked(&self) -> Duration {
        self.asked + since(self.asked_since).unwrap_or_default()
    }

    pub(super) fn told(&self, seat: &Seat) -> JoinedSite {
        let awaited = since(self.asked_since.or(self.awaited_since));
        let silent = since(self.heard).unwrap_or_default();
        JoinedSite {
            index: seat.index as u32,
            address: seat.address.clone(),
            stages: seat.stages.clone(),
            has_joined: self.first_joined.is_some(),
            // A worker that has answered is not asked again until the others have answered, too.
            silent: if awaited.is_none() && seat.is_computing() { silent.min(PING_EVERY) } else { silent },
            awaited,
            steps: self.steps,
            samples: self.samples,
            present: since(self.first_joined).unwrap_or_default(),
            asked: self.asked(),
            computed: self.computed,
            sent: self.sent,
            received: self.received,
            usage: self.usage.clone(),
        }
    }
}

fn since(then: Option<Instant>) -> Option<Duration> {
    then.map(|then| then.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_in_which_a_worker_was_asked_does_not_fall_when_it_is_back() {
        let mut counts = Counts::default();
        counts.joins();
        counts.asks(1);
        counts.heard(Heard::Failed);
        let asked = counts.asked();
        counts.is_awaited_since(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(counts.asked(), asked, "an outage counts as asked");
        counts.joins();
        assert_eq!(counts.asked(), asked);
    }

    #[test]
    fn a_worker_that_fails_was_not_heard() {
        let mut counts = Counts::default();
        counts.joins();
        let joined = counts.heard;
        counts.asks(1);
        std::thread::sleep(Duration::from_millis(1));
        counts.heard(Heard::Failed);
        assert_eq!((counts.heard, counts.asked_since), (joined, None));
        counts.asks(1);
        counts.heard(Heard::Answer);
        assert_eq!((counts.heard > joined, counts.asked_since), (true, None));
    }

    #[test]
    fn any_time_may_be_said_to_have_been_computed() {
        let mut counts = Counts::default();
        (0..2).for_each(|_| counts.computed(1, Duration::MAX));
        assert_eq!(counts.computed, Duration::MAX);
    }
}
