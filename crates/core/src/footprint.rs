//! The memory that a run needs on its servers and workers, computed before any of it is allocated. Sizes come from the
//! first task to join, so none of the arithmetic here may overflow.

use crate::consistency::Mode;
use crate::parameter::{Access, ParameterTable};
use crate::plan::{ServerPlan, ShardPlan};
use crate::run::RunSpec;

const VALUE_BYTES: u128 = size_of::<f32>() as u128;
/// The size of a row's update count.
const ROW_BYTES: u128 = size_of::<u64>() as u128;
/// The size of the position of a row that is copied for a checkpoint.
const ASIDE_BYTES: u128 = size_of::<u32>() as u128;

/// The bytes that each server needs for its part of a run with this many workers, in the servers' order: values, the
/// optimizer's state, a copy of both if there are checkpoints, and the gradients of an open round.
pub fn server_bytes(run: &RunSpec, servers: usize, workers: usize, checkpoints: bool) -> Vec<u64> {
    let plan = ShardPlan::new(&run.parameters, servers, run.sharding);
    let bytes = plan.servers.iter().map(|server| shard_bytes(run, server, workers, checkpoints));
    bytes.map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX)).collect()
}

fn shard_bytes(run: &RunSpec, plan: &ServerPlan, workers: usize, checkpoints: bool) -> u128 {
    let numbers = 1 + run.optimizer.slots() as u128;
    let dense = plan.dense_elements() as u128;
    let by_rows = plan.row_elements(&run.parameters) as u128;
    let rows: u128 = plan.stripes.iter().map(|stripe| stripe.count as u128).sum();
    let state = (dense + by_rows) * numbers * VALUE_BYTES + rows * ROW_BYTES;
    let copy = if checkpoints { state + rows * ASIDE_BYTES } else { 0 };
    let round = match run.mode {
        Mode::Sync { .. } => workers.max(1) as u128 * dense * VALUE_BYTES,
        Mode::Async | Mode::Ssp { .. } => 0,
    };
    state + copy + round
}

/// The bytes that a worker needs at least for a step, besides its values: the gradients. Gradients of rows are not
/// counted, because a step has only some of them.
pub fn gradient_bytes(parameters: &ParameterTable) -> u64 {
    let dense = parameters.iter().filter(|(_, spec)| spec.kind.is_trained() && spec.access == Access::Dense);
    let bytes: u128 = dense.map(|(_, spec)| spec.elements() as u128 * VALUE_BYTES).sum();
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Formats a number of bytes for users.
pub fn in_words(bytes: u64) -> String {
    let units = [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let bytes = bytes as f64;
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(|| format!("{bytes} B"), |(unit, name)| format!("{:.1} {name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::optimizer::Optimizer;
    use crate::parameter::{ParameterKind, ParameterSpec};
    use crate::plan::Sharding;
    use crate::schedule::Schedule;

    fn run(mode: Mode, optimizer: &str, parameters: &[(&[usize], Access)]) -> RunSpec {
        let spec = |(index, (shape, access)): (usize, &(&[usize], Access))| ParameterSpec {
            name: format!("p{index}"),
            shape: shape.to_vec(),
            access: *access,
            kind: ParameterKind::Trained,
        };
        RunSpec {
            model: "synthetic".into(),
            mode,
            optimizer: Optimizer::named(optimizer).unwrap(),
            learning_rate: 0.1,
            schedule: Schedule::Constant,
            sharding: Sharding::RoundRobin,
            steps: None,
            deterministic: false,
            staleness_scaling: false,
            clip_norm: None,
            parameters: ParameterTable::new(parameters.iter().enumerate().map(spec).collect()).unwrap(),
            identity: Identity::default(),
            data: None,
        }
    }

    const SYNC: Mode = Mode::Sync { replicas_to_aggregate: None };

    #[test]
    fn values_state_copies_and_gradients_are_counted() {
        let dense: &[(&[usize], Access)] = &[(&[10, 10], Access::Dense)];
        for (mode, optimizer, workers, checkpoints, expected) in [
            (Mode::Async, "sgd", 2, false, 400),
            (Mode::Async, "adam", 2, false, 1200),
            (Mode::Async, "adam", 2, true, 2400),
            (Mode::Ssp { staleness: 1 }, "momentum", 2, true, 1600),
            (SYNC, "sgd", 3, false, 400 + 3 * 400),
        ] {
            assert_eq!(server_bytes(&run(mode, optimizer, dense), 1, workers, checkpoints), [expected], "{mode:?}");
        }
    }

    #[test]
    fn rows_have_a_count_each_and_no_place_in_a_round() {
        let rows: &[(&[usize], Access)] = &[(&[10, 5], Access::Rows)];
        assert_eq!(server_bytes(&run(SYNC, "sgd", rows), 1, 3, false), [200 + 80]);
        assert_eq!(server_bytes(&run(Mode::Async, "adam", rows), 1, 3, true), [2 * (600 + 80) + 40]);
    }

    #[test]
    fn each_server_needs_what_it_is_given() {
        let parameters: &[(&[usize], Access)] = &[(&[100], Access::Dense), (&[1], Access::Dense)];
        assert_eq!(server_bytes(&run(Mode::Async, "sgd", parameters), 3, 1, false), [400, 4, 0]);
    }

    #[test]
    fn the_largest_table_there_can_be_overflows_nothing() {
        let most = isize::MAX as usize / 4;
        for (shape, access) in [(&[most][..], Access::Dense), (&[1 << 31, most >> 31], Access::Rows)] {
            let largest: &[(&[usize], Access)] = &[(shape, access)];
            for workers in [1, usize::MAX] {
                assert_eq!(server_bytes(&run(SYNC, "adam", largest), 1, workers, true), [u64::MAX]);
            }
        }
    }

    #[test]
    fn a_worker_has_a_gradient_of_all_that_it_trains_but_not_of_all_rows() {
        let parameters: &[(&[usize], Access)] = &[(&[10, 10], Access::Dense), (&[1000, 5], Access::Rows)];
        assert_eq!(gradient_bytes(&run(Mode::Async, "adam", parameters).parameters), 400);
    }

    #[test]
    fn bytes_are_told_in_a_unit_that_people_read() {
        assert_eq!(in_words(999), "999 B");
        assert_eq!(in_words(24_700_000_000), "24.7 GB");
        assert_eq!(in_words(u64::MAX), "18446.7 PB");
    }
}
