//! A checkpoint of any layout is restored into any other.

use proptest::prelude::*;
use windlass_checkpoint::{CheckpointError, CheckpointId, PartLayout, Restore, SlotPolicy};
use windlass_core::optimizer::{Adam, Optimizer};
use windlass_core::parameter::{Access, ParameterId, ParameterKind, ParameterSpec, ParameterTable};
use windlass_core::plan::Sharding;
use windlass_core::rows::RowTable;
use windlass_core::run::RunSpec;

use crate::support::{image, large, memory, plans, restore, run, save, small, spec};

async fn assert_restores(from: &RunSpec, servers: usize, to: &RunSpec, restored: usize) {
    let store = memory();
    let manifest = save(&store, from, servers, CheckpointId::new(5, 0)).await.unwrap();
    for (server, plan) in plans(to, restored).iter().enumerate() {
        let got = restore(&store, &manifest, plan).await.unwrap();
        let way = format!("{servers} {} to {restored} {}, server {server}", from.sharding, to.sharding);
        assert!(got == image(to, plan, 5), "{way}");
    }
}

#[tokio::test]
async fn any_number_of_servers_restores_what_any_number_wrote() {
    for sharding in [Sharding::BALANCED, Sharding::RoundRobin] {
        for servers in 1..=5 {
            for restored in 1..=5 {
                let from = RunSpec { sharding, ..small() };
                assert_restores(&from, servers, &small(), restored).await;
                assert_restores(&small(), servers, &from, restored).await;
            }
        }
    }
}

#[tokio::test]
async fn parts_of_many_chunks_are_restored_where_chunks_cut_rows() {
    for (servers, restored) in [(1, 1), (1, 3), (2, 1), (2, 3)] {
        assert_restores(&large(), servers, &large(), restored).await;
    }
}

/// The run when some of its parameters are frozen.
fn frozen(run: RunSpec, parameters: &[u32]) -> RunSpec {
    let freeze = |(id, spec): (ParameterId, &ParameterSpec)| match parameters.contains(&id.0) {
        true => ParameterSpec { kind: ParameterKind::Constant, access: Access::Rows, ..spec.clone() },
        false => spec.clone(),
    };
    let parameters = run.parameters.iter().map(freeze).collect();
    RunSpec { parameters: ParameterTable::new(parameters).unwrap(), ..run }
}

/// Restores a checkpoint for a run that freezes other parameters. If a parameter is or was frozen, only its values are
/// restored, and its optimizer state starts over.
async fn assert_thaws(from: &RunSpec, servers: usize, to: &RunSpec, restored: usize) {
    let store = memory();
    let manifest = save(&store, from, servers, CheckpointId::new(5, 0)).await.unwrap();
    for plan in plans(to, restored) {
        let RunSpec { parameters: table, optimizer, .. } = to;
        let wanted = Restore { table, plan: &plan, optimizer, slots: SlotPolicy::Restore };
        let got = store.restore(&manifest, &wanted).await.unwrap();
        let mut expected = image(to, &plan, 5);
        let was_frozen = |parameter: ParameterId| from.parameters[parameter].kind == ParameterKind::Constant;
        let mut at = 0;
        for segment in &plan.segments {
            let place = at..at + segment.range.len();
            at = place.end;
            if was_frozen(segment.parameter) {
                expected.dense.slots.iter_mut().for_each(|slot| slot[place.clone()].fill(0.0));
            }
        }
        for (table, stripe) in expected.tables.iter_mut().zip(&plan.stripes) {
            if was_frozen(stripe.parameter) {
                let mut block = table.block().clone();
                block.slots.iter_mut().for_each(|slot| slot.fill(0.0));
                *table = RowTable::restore(table.width(), block, vec![0; table.rows()]);
            }
        }
        assert!(got == expected, "{servers} to {restored}");
    }
}

#[tokio::test]
async fn what_is_frozen_or_trained_from_a_checkpoint_on_has_its_values() {
    // A matrix, a table of rows, a scalar and a vector.
    let trained = small();
    for parameters in [&[0, 1, 2, 5][..], &[3], &[0, 1, 2, 3, 4, 5]] {
        let some_frozen = frozen(small(), parameters);
        for (servers, restored) in [(1, 1), (1, 3), (2, 3), (3, 2), (4, 1)] {
            for sharding in [Sharding::BALANCED, Sharding::RoundRobin] {
                let some_frozen = RunSpec { sharding, ..some_frozen.clone() };
                assert_thaws(&trained, servers, &some_frozen, restored).await;
                assert_thaws(&some_frozen, servers, &trained, restored).await;
                assert_thaws(&some_frozen, servers, &some_frozen, restored).await;
            }
        }
    }
}

#[tokio::test]
async fn parts_of_many_chunks_thaw_where_chunks_cut_rows() {
    let some_frozen = frozen(large(), &[0, 1]);
    for (servers, restored) in [(1, 3), (2, 1), (2, 3)] {
        assert_thaws(&large(), servers, &some_frozen, restored).await;
        assert_thaws(&some_frozen, servers, &large(), restored).await;
    }
}

#[tokio::test]
async fn trained_values_are_not_taken_for_running_statistics() {
    let store = memory();
    let saved = run(vec![spec("mean", &[4], Access::Dense)]);
    let manifest = save(&store, &saved, 1, CheckpointId::new(5, 0)).await.unwrap();
    let state = ParameterSpec { kind: ParameterKind::State, ..spec("mean", &[4], Access::Dense) };
    let wanted = run(vec![state]);
    let plan = &plans(&wanted, 1)[0];
    let RunSpec { parameters: table, optimizer, .. } = &wanted;
    let refused = store.restore(&manifest, &Restore { table, plan, optimizer, slots: SlotPolicy::Restore }).await;
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("`mean` is [4] (running statistics) in the model and [4] in the checkpoint"), "{words}");
}

#[tokio::test]
async fn more_servers_than_rows_or_values_leave_some_with_nothing() {
    let tiny = run(vec![spec("w", &[3], Access::Dense), spec("rows", &[2, 2], Access::Rows)]);
    assert_restores(&tiny, 4, &tiny, 6).await;
}

#[tokio::test]
async fn every_optimizer_has_its_slots_restored() {
    for optimizer in Optimizer::all() {
        let run = RunSpec { optimizer, ..small() };
        assert_restores(&run, 2, &run, 3).await;
    }
}

#[tokio::test]
async fn numbers_may_be_written_in_pieces_of_any_size() {
    let (store, run, id) = (memory(), small(), CheckpointId::new(5, 0));
    let plan = &plans(&run, 1)[0];
    let expected = image(&run, plan, 5);
    let mut part = store.begin_part(&id, &PartLayout::new(&run, plan, 0, 1)).await.unwrap();
    for table in &expected.tables {
        for steps in table.steps().chunks(3) {
            part.write_steps(steps).await.unwrap();
        }
    }
    for block in [&expected.dense, expected.tables[0].block(), expected.tables[1].block()] {
        for numbers in std::iter::once(&block.values).chain(&block.slots) {
            for piece in numbers.chunks(17) {
                part.write(piece).await.unwrap();
            }
        }
    }
    let manifest = windlass_checkpoint::Manifest::new(id, run.clone(), vec![part.finish().await.unwrap()]);
    store.publish(&manifest).await.unwrap();
    assert_eq!(restore(&store, &manifest, plan).await.unwrap(), expected);
}

#[tokio::test]
async fn an_image_comes_apart_into_the_blocks_a_server_keeps() {
    let run = large();
    let image = image(&run, &plans(&run, 1)[0], 5);
    let (blocks, tables) = image.clone().into_blocks();
    assert_eq!(blocks.iter().flat_map(|block| &block.values).copied().collect::<Vec<_>>(), image.dense.values);
    assert_eq!(blocks.iter().flat_map(|block| &block.slots[1]).copied().collect::<Vec<_>>(), image.dense.slots[1]);
    assert_eq!(tables, image.tables);
}

#[tokio::test]
async fn a_checkpoint_of_another_model_is_refused_by_the_first_parameter_that_differs() {
    let store = memory();
    let wide = |width| run(vec![spec("w", &[4, width], Access::Dense), spec("b", &[width], Access::Dense)]);
    let id = "000000000005-g000000-0000002a".parse().unwrap();
    let manifest = save(&store, &wide(8), 1, id).await.unwrap();
    let mut refusals = Vec::new();
    for other in [
        wide(9),
        run(vec![spec("v", &[4, 8], Access::Dense)]),
        run(vec![spec("w", &[4, 8], Access::Rows)]),
        run(vec![spec("w", &[4, 8], Access::Dense)]),
        run(vec![spec("w", &[4, 8], Access::Dense), spec("b", &[8], Access::Dense), spec("c", &[1], Access::Dense)]),
    ] {
        let (table, optimizer) = (&other.parameters, &other.optimizer);
        let wanted = Restore { table, plan: &plans(&other, 1)[0], optimizer, slots: SlotPolicy::Reset };
        let error = store.restore(&manifest, &wanted).await.unwrap_err();
        assert!(matches!(error, CheckpointError::DoesNotFit { .. }) && !error.is_damage());
        refusals.push(error.to_string().split_once(": ").unwrap().1.to_owned());
    }
    assert_eq!(
        refusals,
        [
            "`w` is [4, 9] in the model and [4, 8] in the checkpoint",
            "parameter 0 is `v` [4, 8] in the model and `w` [4, 8] in the checkpoint",
            "`w` is [4, 8] by rows in the model and [4, 8] in the checkpoint",
            "the model has no `b` [8]",
            "the checkpoint lacks `c` [1]",
        ]
    );
}

#[tokio::test]
async fn the_state_of_another_optimizer_is_refused_unless_it_is_reset() {
    let (store, saved) = (memory(), small());
    let manifest = save(&store, &saved, 2, "000000000005-g000000-0000002a".parse().unwrap()).await.unwrap();
    let run = RunSpec { optimizer: Optimizer::named("momentum").unwrap(), ..small() };
    let plan = &plans(&run, 1)[0];
    let wanted = |slots| Restore { table: &run.parameters, plan, optimizer: &run.optimizer, slots };

    let error = store.restore(&manifest, &wanted(SlotPolicy::Restore)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "checkpoint 000000000005-g000000-0000002a holds the state of `adam`, not of `momentum`: \
         train with `adam`, or pass --resume never"
    );

    let got = store.restore(&manifest, &wanted(SlotPolicy::Reset)).await.unwrap();
    let expected = image(&saved, plan, 5);
    assert_eq!(got.dense.values, expected.dense.values);
    assert_eq!(got.dense.slots, [vec![0.0; expected.dense.values.len()]]);
    assert_eq!(got.tables[0].block().values, expected.tables[0].block().values);
    assert_eq!(got.tables[0].steps(), [0; 29]);
}

#[tokio::test]
async fn the_constants_of_an_optimizer_may_change() {
    let (store, saved) = (memory(), small());
    let manifest = save(&store, &saved, 2, CheckpointId::new(5, 0)).await.unwrap();
    let optimizer = &Optimizer::Adam(Adam { beta2: 0.98, ..Adam::default() });
    let plan = &plans(&saved, 1)[0];
    let wanted = Restore { table: &saved.parameters, plan, optimizer, slots: SlotPolicy::Restore };
    assert_eq!(store.restore(&manifest, &wanted).await.unwrap(), image(&saved, plan, 5));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_model_is_restored_into_any_layout(
        shapes in proptest::collection::vec((1..3000usize, 1..6usize, any::<bool>()), 1..6),
        (servers, restored) in (1..8usize, 1..8usize),
        (from, to) in (any::<bool>(), any::<bool>()),
    ) {
        let sharding = |balanced| if balanced { Sharding::BALANCED } else { Sharding::RoundRobin };
        let access = |rows| if rows { Access::Rows } else { Access::Dense };
        let parameter = |(index, &(height, width, rows)): (usize, &(usize, usize, bool))| {
            spec(&format!("p{index}"), &[height, width], access(rows))
        };
        let model = run(shapes.iter().enumerate().map(parameter).collect());
        let (from, to) = (RunSpec { sharding: sharding(from), ..model.clone() }, RunSpec { sharding: sharding(to), ..model });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(assert_restores(&from, servers, &to, restored));
    }
}
