//! Messages that must arrive: numbered, and kept until the other end acknowledges them, so that a broken connection
//! neither loses nor repeats any. Every message carries an acknowledgement, so only those in flight are kept.

use std::collections::VecDeque;

/// The messages that the other end has not acknowledged.
#[derive(Debug)]
pub struct Outbox<M> {
    last: u64,
    kept: VecDeque<(u64, M)>,
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Self { last: 0, kept: VecDeque::new() }
    }
}

impl<M> Outbox<M> {
    /// Keeps a message and assigns it the next number, from one.
    pub fn push(&mut self, message: M) -> u64 {
        self.last += 1;
        self.kept.push_back((self.last, message));
        self.last
    }

    /// Drops the messages up to this number, which the other end has acknowledged.
    pub fn heard(&mut self, number: u64) {
        while self.kept.front().is_some_and(|(kept, _)| *kept <= number) {
            self.kept.pop_front();
        }
    }

    /// The messages to resend on a new connection.
    pub fn kept(&self) -> impl Iterator<Item = (u64, &M)> {
        self.kept.iter().map(|(number, message)| (*number, message))
    }

    /// Whether the other end has acknowledged everything.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

/// Tracks which of the other end's numbers have arrived.
#[derive(Debug, Default, Clone, Copy)]
pub struct Heard(u64);

impl Heard {
    /// The highest number so far.
    pub fn highest(self) -> u64 {
        self.0
    }

    /// Records a message; returns false if it has arrived before. Messages without a number are always new.
    pub fn is_new(&mut self, number: u64) -> bool {
        if number > 0 && number <= self.0 {
            return false;
        }
        self.0 = self.0.max(number);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_heard_is_sent_again_under_its_number_and_taken_once() {
        let (mut outbox, mut heard, mut taken) = (Outbox::default(), Heard::default(), Vec::new());
        for word in ["one", "two", "three"] {
            outbox.push(word);
        }
        assert!(heard.is_new(1) && heard.is_new(2), "then the connection breaks");
        outbox.heard(1);
        for (number, word) in outbox.kept() {
            if heard.is_new(number) {
                taken.push(*word);
            }
        }
        assert_eq!(taken, ["three"]);
        outbox.heard(heard.highest());
        assert!(outbox.is_empty());
        assert_eq!(outbox.push("four"), 4);
    }

    #[test]
    fn messages_without_a_number_are_always_new() {
        let mut heard = Heard::default();
        assert!(heard.is_new(3) && heard.is_new(0) && heard.is_new(0));
        assert_eq!(heard.highest(), 3);
    }
}
