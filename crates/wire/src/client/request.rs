//! What a worker asks of the servers, and what it gets.

use std::time::Duration;

use windlass_core::parameter::ParameterId;

/// Rows of one parameter with their gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct RowGradient<B = Vec<f32>> {
    /// The parameter.
    pub parameter: ParameterId,
    /// The row numbers.
    pub rows: Vec<u32>,
    /// Their gradients, one after the other.
    pub values: B,
}

/// Rows of one parameter that are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct RowRequest {
    /// The parameter.
    pub parameter: ParameterId,
    /// The row numbers.
    pub rows: Vec<u32>,
}

/// One step's gradients, and the rows wanted for the next.
#[derive(Debug)]
pub struct Push<B = Vec<f32>> {
    /// One buffer a parameter, in the order of the table; empty for parameters accessed by rows.
    pub dense: Vec<B>,
    /// Gradients of rows.
    pub rows: Vec<RowGradient<B>>,
    /// Rows whose values are wanted in the answer.
    pub wanted: Vec<RowRequest>,
    /// What this worker wants back if it has to go on after this push, as JSON; empty if there is nothing.
    pub note: String,
}

impl<B> Default for Push<B> {
    fn default() -> Self {
        Self { dense: Vec::new(), rows: Vec::new(), wanted: Vec::new(), note: String::new() }
    }
}

/// Values, as the servers gave them.
#[derive(Debug)]
pub struct Pulled<B = Vec<f32>> {
    /// One buffer a parameter, in the order of the table; empty for parameters accessed by rows.
    pub dense: Vec<B>,
    /// The wanted rows' values, in the order they were asked for.
    pub rows: Vec<Vec<f32>>,
    /// The global step: how many updates the first server's values have had.
    pub step: u64,
    /// True once every server has applied the run's last step.
    pub over: bool,
    /// True if the first server counted the push, false if it was dropped as stale or late.
    pub applied: bool,
    /// For how long a server held its answer back because of other workers.
    pub held_back: Duration,
}
