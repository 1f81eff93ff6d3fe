//! Decides which server holds which part of which parameter. A plan is a pure function of the parameter table, the
//! number of servers and the sharding: every task computes it independently, and they agree. It holds no values and
//! knows no addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::block::{Stretch, Treatment};
use crate::cluster::ServerId;
use crate::fault::{self, Fault};
use crate::parameter::{Access, ParameterId, ParameterKind, ParameterTable};

/// A cut inside a parameter falls on a multiple of this: one cache line of `f32`.
pub const CUT_ALIGNMENT: usize = 16;

/// A cut this close to the edge of a parameter moves to the edge, so that small tensors stay whole.
pub const CUT_SNAP: usize = 1024;

/// How parameters are spread over the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "Spelling")]
pub enum Sharding {
    /// Nearly equal shares: dense parameters are cut where that balances, rows are striped.
    Balanced {
        /// If there are fewer bytes of dense parameters per server than this, only the first few servers get any, and
        /// those get at least this many if possible: another server is then not worth its round trip.
        min_bytes: usize,
    },
    /// Whole parameters in turn, as TensorFlow's `replica_device_setter` placed them.
    RoundRobin,
}

impl Sharding {
    /// Balanced over all servers, however small the parameters are.
    pub const BALANCED: Self = Self::Balanced { min_bytes: 0 };
}

impl Default for Sharding {
    fn default() -> Self {
        Self::BALANCED
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Sharding::Balanced { .. } => "balanced",
            Sharding::RoundRobin => "round_robin",
        })
    }
}

/// The serialised forms of a [`Sharding`]: the current one, or only its name, as in older manifests.
#[derive(Deserialize)]
#[serde(untagged)]
enum Spelling {
    Name(String),
    Balanced { balanced: Balanced },
}

#[derive(Deserialize)]
struct Balanced {
    min_bytes: usize,
}

impl TryFrom<Spelling> for Sharding {
    type Error = UnknownSharding;

    fn try_from(spelling: Spelling) -> Result<Self, UnknownSharding> {
        match spelling {
            Spelling::Name(name) => name.parse(),
            Spelling::Balanced { balanced: Balanced { min_bytes } } => Ok(Sharding::Balanced { min_bytes }),
        }
    }
}

/// A name that is not a [`Sharding`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown sharding `{name}`: expected balanced or round_robin")]
pub struct UnknownSharding {
    /// The name given.
    pub name: String,
}

impl FromStr for Sharding {
    type Err = UnknownSharding;

    fn from_str(name: &str) -> Result<Self, UnknownSharding> {
        match name {
            "balanced" => Ok(Sharding::BALANCED),
            "round_robin" | "round-robin" => Ok(Sharding::RoundRobin),
            _ => Err(UnknownSharding { name: name.to_owned() }),
        }
    }
}

/// Consecutive elements of a dense parameter, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The parameter.
    pub parameter: ParameterId,
    /// The range of elements; never empty.
    pub range: Range<usize>,
}

/// Every `stride`-th row of a parameter: the rows `r` with `r % stride == first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowStripe {
    /// The parameter.
    pub parameter: ParameterId,
    /// The first row of the stripe; less than `stride`.
    pub first: usize,
    /// The distance from one row of the stripe to the next.
    pub stride: usize,
    /// How many rows the stripe has; never zero.
    pub count: usize,
}

impl RowStripe {
    /// The position within the stripe of a row of the parameter, if the stripe has that row.
    pub fn local(&self, row: usize) -> Option<usize> {
        let local = row / self.stride;
        (row % self.stride == self.first && local < self.count).then_some(local)
    }

    /// The parameter's row at a position within the stripe.
    pub fn global(&self, local: usize) -> usize {
        local * self.stride + self.first
    }
}

/// The contents of one server, in table order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ServerPlan {
    /// The server's parts of dense parameters.
    pub segments: Vec<Segment>,
    /// The server's parts of parameters accessed by row.
    pub stripes: Vec<RowStripe>,
}

impl ServerPlan {
    /// How many elements of dense parameters it holds.
    pub fn dense_elements(&self) -> usize {
        self.segments.iter().map(|segment| segment.range.len()).sum()
    }

    /// The values that are not simply trained since the run's first step, as positions in the dense segments laid end
    /// to end. `table` is the plan's own; `since` has, by parameter name, the step after which a parameter came to be
    /// trained.
    pub fn stretches(&self, table: &ParameterTable, since: &BTreeMap<String, u64>) -> Vec<Stretch> {
        let mut end = 0;
        let stretch = |segment: &Segment| {
            let range = end..end + segment.range.len();
            end = range.end;
            let spec = &table[segment.parameter];
            let treatment = match spec.kind {
                ParameterKind::State => Treatment::Assigned,
                _ => Treatment::TrainedSince(*since.get(&spec.name)?),
            };
            Some(Stretch { range, treatment })
        };
        self.segments.iter().filter_map(stretch).collect()
    }

    /// The number of elements of parameters accessed by row on the server; `table` is the plan's own.
    pub fn row_elements(&self, table: &ParameterTable) -> usize {
        self.stripes.iter().map(|stripe| stripe.count * table[stripe.parameter].width()).sum()
    }

    /// True if the server holds nothing.
    pub fn is_empty(&self) -> bool {
        self.dense_elements() == 0 && self.stripes.is_empty()
    }
}

/// The contents of all servers. Each element of each parameter is in exactly one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// The plan of each server, by ps task index.
    pub servers: Vec<ServerPlan>,
}

impl ShardPlan {
    /// Spreads the parameters over one or more servers.
    ///
    /// If balanced over all servers, each server's dense share is within 2 × [`CUT_SNAP`] + 1 elements (8 KiB) of the
    /// mean: it has a cut at either end, no cut is moved further than [`CUT_SNAP`], and the 1 is for rounding to whole
    /// elements.
    pub fn new(table: &ParameterTable, servers: usize, sharding: Sharding) -> Self {
        assert!(servers > 0, "a plan needs a server");
        let mut plan = Self { servers: vec![ServerPlan::default(); servers] };
        match sharding {
            Sharding::Balanced { min_bytes } => {
                let parts = plan.cut_dense(table, min_bytes);
                plan.stripe_rows(table, parts);
            }
            Sharding::RoundRobin => plan.deal(table),
        }
        plan
    }

    /// True if a server takes part in the run: it holds something, or is the first, which counts the steps. A server
    /// that takes no part gets no requests and writes no part of a checkpoint, and its death loses nothing.
    pub fn is_active(&self, server: ServerId) -> bool {
        server.0 == 0 || !self.servers[server.0 as usize].is_empty()
    }

    /// The servers that take part in the run.
    pub fn active_servers(&self) -> BTreeSet<ServerId> {
        let all = fault::is_back(Fault::EmptyServerInCut);
        (0..self.servers.len() as u32).map(ServerId).filter(|server| all || self.is_active(*server)).collect()
    }

    /// Lays the dense parameters end to end and cuts that line into one part for each server that gets any. Returns the
    /// number of parts.
    fn cut_dense(&mut self, table: &ParameterTable, min_bytes: usize) -> usize {
        let mut total = 0;
        let mut places = Vec::new();
        for (parameter, spec) in table.iter().filter(|(_, spec)| spec.access == Access::Dense) {
            let start = total;
            total += spec.elements();
            places.push((parameter, start..total));
        }
        let parts = (total * size_of::<f32>())
            .checked_div(min_bytes)
            .map_or(self.servers.len(), |parts| parts.clamp(1, self.servers.len()));
        // In u128, because elements × servers may not fit a usize.
        let ideal = |part: usize| (total as u128 * part as u128 / parts as u128) as usize;
        let cuts: Vec<_> = (0..=parts).map(|part| settle(ideal(part), &places)).collect();

        for (server, cut) in self.servers.iter_mut().zip(cuts.windows(2)) {
            for (parameter, place) in &places {
                let (start, end) = (place.start.max(cut[0]), place.end.min(cut[1]));
                if start < end {
                    let range = start - place.start..end - place.start;
                    server.segments.push(Segment { parameter: *parameter, range });
                }
            }
        }
        parts
    }

    /// Gives every server every n-th row of every parameter accessed by row. Frozen ones are spread only over the
    /// servers with dense parts: they do not justify a round trip to another server.
    fn stripe_rows(&mut self, table: &ParameterTable, parts: usize) {
        for (parameter, spec) in table.iter().filter(|(_, spec)| spec.access == Access::Rows) {
            let stride = if spec.kind == ParameterKind::Constant { parts } else { self.servers.len() };
            for (first, server) in self.servers.iter_mut().enumerate().take(stride.min(spec.rows())) {
                let count = (spec.rows() - first).div_ceil(stride);
                server.stripes.push(RowStripe { parameter, first, stride, count });
            }
        }
    }

    /// Gives whole parameters to the servers in turn.
    fn deal(&mut self, table: &ParameterTable) {
        let servers = self.servers.len();
        for (index, (parameter, spec)) in table.iter().enumerate() {
            let server = &mut self.servers[index % servers];
            match spec.access {
                Access::Dense => {
                    server.segments.push(Segment { parameter, range: 0..spec.elements() });
                }
                Access::Rows => {
                    let count = spec.rows();
                    server.stripes.push(RowStripe { parameter, first: 0, stride: 1, count });
                }
            }
        }
    }
}

/// The final position of a cut, given its ideal one: the edge of a parameter if one is near, else a multiple of the
/// alignment. Later cuts never end up before earlier ones.
fn settle(ideal: usize, places: &[(ParameterId, Range<usize>)]) -> usize {
    let Some((_, place)) = places.iter().find(|(_, place)| place.contains(&ideal)) else {
        return ideal; // The end of the line.
    };
    let (before, after) = (ideal - place.start, place.end - ideal);
    if before.min(after) > CUT_SNAP {
        place.start + (before + CUT_ALIGNMENT / 2) / CUT_ALIGNMENT * CUT_ALIGNMENT
    } else if before <= after {
        place.start
    } else {
        place.end
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
