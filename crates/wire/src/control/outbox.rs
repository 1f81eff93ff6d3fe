//! Messages that must arrive: numbered, and kept until the other end says that it has heard them, so that a broken
//! connection loses none and repeats none. Every message of either end says what has been heard, so that only what is on
//! its way is kept.

use std::collections::VecDeque;

/// The messages that the other end has not yet been heard to have.
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
    /// Keeps a message and gives it the next number, from one.
    pub fn push(&mut self, message: M) -> u64 {
        self.last += 1;
        self.kept.push_back((self.last, message));
        self.last
    }

    /// Lets go of the messages up to this number.
    pub fn heard(&mut self, number: u64) {
        while self.kept.front().is_some_and(|(kept, _)| *kept <= number) {
            self.kept.pop_front();
        }
    }

    /// What is to be sent again on a new connection.
    pub fn kept(&self) -> impl Iterator<Item = (u64, &M)> {
        self.kept.iter().map(|(number, message)| (*number, message))
    }

    /// Whether the other end has heard everything.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

/// Which of the other end's numbers have come.
#[derive(Debug, Default, Clone, Copy)]
pub struct Heard(u64);

impl Heard {
    /// The highest number so far.
    pub fn highest(self) -> u64 {
        self.0
    }

    /// Notes a message; false if it has come before. Those without a number are always new.
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
