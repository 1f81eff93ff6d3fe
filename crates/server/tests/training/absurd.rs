//! A first worker whose run fits no machine: it is refused, and no other task is affected by it.

use windlass_core::consistency::Mode;
use windlass_core::lifecycle::exit_code;
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::ParameterSpec;
use windlass_core::plan::Sharding;
use windlass_core::run::RunSpec;
use windlass_wire::control::proto::coordinator_message::Kind;

use crate::cluster::Cluster;
use crate::numbers::{SYNC, by_rows, constant, dense, one_vector, run};

fn absurd(mode: Mode, parameters: Vec<ParameterSpec>, sharding: Sharding) -> RunSpec {
    RunSpec { optimizer: Optimizer::named("adam").unwrap(), sharding, ..run(mode, parameters) }
}

#[test]
fn a_run_that_no_machine_can_hold_is_refused_and_the_next_joiner_brings_another() {
    let largest = isize::MAX as usize / 4;
    let runs = [
        absurd(Mode::Async, vec![dense("w", &[1 << 50])], Sharding::BALANCED),
        absurd(SYNC, vec![dense("w", &[largest])], Sharding::BALANCED),
        absurd(Mode::Async, vec![by_rows("e", &[1 << 31, 1 << 20])], Sharding::BALANCED),
        // All values are on the second server.
        absurd(Mode::Async, vec![dense("w", &[1]), dense("v", &[1 << 50])], Sharding::RoundRobin),
    ];
    for absurd in runs {
        let honest = run(SYNC, one_vector());
        let cluster = Cluster::start(2, 2, honest.clone());
        let refusal = cluster.worker_with(0, absurd).err().expect("it is refused");
        assert_eq!(refusal.exit_code, u32::from(exit_code::USAGE));
        assert!(refusal.reason.starts_with("the model is too large: ps "), "{}", refusal.reason);
        assert!(
            refusal.reason.contains("PB for ") && refusal.reason.contains(" GB is available"),
            "{}",
            refusal.reason
        );
        let trained = cluster.train(move |worker| {
            worker.pull();
            worker.push(constant(&honest, 1.0));
        });
        assert_eq!(trained.last.dense, [[-1.0; 5]]);
    }
}

#[test]
fn those_who_wait_for_a_joiner_that_was_refused_for_its_size_are_told() {
    let honest = run(SYNC, one_vector());
    let cluster = Cluster::start(1, 2, honest);
    let mut waiting = cluster.worker(1);
    waiting.receive_until(|kind| matches!(kind, Kind::Waiting(waiting) if waiting.tasks == ["worker 0"]).then_some(()));
    // This run also differs from the agreed one, and the difference is reported first.
    let absurd = absurd(Mode::Async, vec![dense("w", &[1 << 50])], Sharding::BALANCED);
    assert!(cluster.worker_with(0, absurd).is_err());
    let notice = |kind| if let Kind::Waiting(waiting) = kind { waiting.notices.into_iter().next() } else { None };
    let told = waiting.receive_until(notice);
    assert!(told.starts_with("worker 0 was refused: "), "{told}");
}
