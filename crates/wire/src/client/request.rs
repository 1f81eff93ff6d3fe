//! What a worker requests from the servers, and what it receives.

use std::time::Duration;

use windlass_core::parameter::ParameterId;

/// Rows of one parameter and their gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct RowGradient<B = Vec<f32>> {
    /// The parameter.
    pub parameter: ParameterId,
    /// The row numbers.
    pub rows: Vec<u32>,
    /// Their gradients, concatenated.
    pub values: B,
}

/// A request for rows of one parameter.
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
    /// One buffer per parameter, in table order; empty for parameters accessed by row.
    pub dense: Vec<B>,
    /// Gradients of rows.
    pub rows: Vec<RowGradient<B>>,
    /// Rows whose values the answer should contain.
    pub wanted: Vec<RowRequest>,
    /// What this worker needs back in order to resume after this push, as JSON; may be empty.
    pub note: String,
}

impl<B> Default for Push<B> {
    fn default() -> Self {
        Self { dense: Vec::new(), rows: Vec::new(), wanted: Vec::new(), note: String::new() }
    }
}

/// Values received from the servers.
#[derive(Debug)]
pub struct Pulled<B = Vec<f32>> {
    /// One buffer per parameter, in table order; empty for parameters accessed by row.
    pub dense: Vec<B>,
    /// The values of the requested rows, in the order of the request.
    pub rows: Vec<Vec<f32>>,
    /// The global step: how many updates the first server's values contain.
    pub step: u64,
    /// True once every server has applied the run's last step.
    pub over: bool,
    /// True if the first server counted the push, false if it was dropped as stale or late.
    pub applied: bool,
    /// How long a server held its answer back because of other workers.
    pub held_back: Duration,
}
