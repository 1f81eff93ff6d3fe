//! Every push is an update, counted in the order of arrival.

use super::Admission;

/// The number of updates so far, and the limit.
#[derive(Debug)]
pub struct Asynchronous {
    step: u64,
    limit: Option<u64>,
}

impl Asynchronous {
    /// Starts at step zero.
    pub fn new(limit: Option<u64>) -> Self {
        Self { step: 0, limit }
    }

    /// Resumes after this many updates.
    pub fn resume_at(&mut self, step: u64) {
        self.step = step;
    }

    /// Assigns a push the next step, until the last has been assigned.
    pub fn admit(&mut self) -> Admission {
        if self.is_over() {
            return Admission::Over;
        }
        self.step += 1;
        Admission::Apply { step: self.step }
    }

    /// Updates so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// True once the last step has been assigned.
    pub fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.step >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_are_numbered_in_the_order_of_arrival_until_the_limit() {
        let mut state = Asynchronous::new(Some(2));
        assert_eq!(state.admit(), Admission::Apply { step: 1 });
        assert!(!state.is_over());
        assert_eq!(state.admit(), Admission::Apply { step: 2 });
        assert_eq!(state.admit(), Admission::Over);
        assert_eq!(state.step(), 2);
    }

    #[test]
    fn without_a_limit_it_never_ends() {
        let mut state = Asynchronous::new(None);
        for step in 1..=1000 {
            assert_eq!(state.admit(), Admission::Apply { step });
        }
        assert!(!state.is_over());
    }
}
