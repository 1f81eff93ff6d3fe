//! What is counted of a joined worker, for whoever looks at the run. Nothing is decided by it.

use std::time::{Duration, Instant};

use windlass_instruments::{JoinedSite, Usage};
use windlass_wire::compute::Heard;

use super::seat::Seat;
use crate::joined::protocol::PING_EVERY;

/// What has gone to and fro between a client and one of its workers.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// When it first joined.
    first_joined: Option<Instant>,
    /// When it was last heard from.
    heard: Option<Instant>,
    /// Since when its client has been waiting for it.
    awaited_since: Option<Instant>,
    pub(super) steps: u64,
    samples: u64,
    /// Time in which it was asked for something, and in which it computed by its own clock.
    asked: Duration,
    computed: Duration,
    sent: u64,
    received: u64,
    usage: Option<Usage>,
}

impl Counts {
    pub(super) fn joins(&mut self) {
        let now = Instant::now();
        self.first_joined.get_or_insert(now);
        (self.heard, self.awaited_since) = (Some(now), None);
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

    /// It is asked for something with a message of this size.
    pub(super) fn asks(&mut self, bytes: u64) {
        self.sent += bytes;
        self.awaited_since = Some(Instant::now());
    }

    /// Something has come of what it was asked.
    pub(super) fn heard(&mut self, heard: Heard) {
        self.hears();
        if heard == Heard::Reply
            && let Some(since) = self.awaited_since.take()
        {
            self.asked += since.elapsed();
        }
    }

    /// It has answered with a message of this size.
    pub(super) fn answered(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// It has computed its share of a step.
    pub(super) fn computed(&mut self, samples: usize, took: Duration) {
        self.samples += samples as u64;
        self.computed += took;
    }

    pub(super) fn uses(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    /// Bytes that went there and that came from there.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    pub(super) fn told(&self, seat: &Seat) -> JoinedSite {
        let since = |then: Option<Instant>| then.map(|then| then.elapsed());
        let awaited = since(self.awaited_since);
        let silent = since(self.heard).unwrap_or_default();
        JoinedSite {
            index: seat.index as u32,
            address: seat.address.clone(),
            stages: seat.stages.clone(),
            has_joined: self.first_joined.is_some(),
            // One that has answered is not asked again before the others have, too.
            silent: if awaited.is_none() && seat.is_computing() { silent.min(PING_EVERY) } else { silent },
            awaited,
            steps: self.steps,
            samples: self.samples,
            present: since(self.first_joined).unwrap_or_default(),
            asked: self.asked + awaited.filter(|_| self.first_joined.is_some()).unwrap_or_default(),
            computed: self.computed,
            sent: self.sent,
            received: self.received,
            usage: self.usage.clone(),
        }
    }
}
