//! A model with values that are known for every version without being stored: the oracle of all tests.

use std::sync::Arc;

use object_store::memory::InMemory;
use windlass_checkpoint::{
    CheckpointError, CheckpointId, Holder, Manifest, PartLayout, PartWriter, Restore, ServerState, ShardImage,
    SlotPolicy, Store,
};
use windlass_core::block::Block;
use windlass_core::consistency::Mode;
use windlass_core::identity::Identity;
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{Access, ParameterId, ParameterKind, ParameterSpec, ParameterTable};
use windlass_core::plan::{ServerPlan, ShardPlan, Sharding};
use windlass_core::rows::RowTable;
use windlass_core::run::RunSpec;
use windlass_core::schedule::Schedule;

pub fn spec(name: &str, shape: &[usize], access: Access) -> ParameterSpec {
    ParameterSpec { name: name.into(), shape: shape.into(), access, kind: ParameterKind::Trained }
}

/// A few dense parameters, a scalar and two reached by rows.
pub fn small() -> RunSpec {
    run(vec![
        spec("encoder.weight", &[70, 50], Access::Dense),
        spec("embedding", &[29, 5], Access::Rows),
        spec("temperature", &[], Access::Dense),
        spec("decoder.weight", &[50, 90], Access::Dense),
        spec("positions", &[3, 2, 4], Access::Rows),
        spec("decoder.bias", &[90], Access::Dense),
    ])
}

/// A run whose parts have several chunks, which cut rows in two.
pub fn large() -> RunSpec {
    run(vec![
        spec("hidden.weight", &[1000, 1300], Access::Dense),
        spec("embedding", &[9001, 77], Access::Rows),
        spec("hidden.bias", &[1300], Access::Dense),
    ])
}

pub fn run(parameters: Vec<ParameterSpec>) -> RunSpec {
    RunSpec {
        model: "oracle".into(),
        mode: Mode::Async,
        optimizer: Optimizer::named("adam").unwrap(),
        learning_rate: 0.1,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        steps: None,
        deterministic: false,
        staleness_scaling: false,
        clip_norm: None,
        parameters: ParameterTable::new(parameters).unwrap(),
        identity: Identity::default(),
        data: None,
    }
}

pub fn plans(run: &RunSpec, servers: usize) -> Vec<ServerPlan> {
    ShardPlan::new(&run.parameters, servers, run.sharding).servers
}

/// The number at one place of the model: kind 0 is the values, kinds 1 and 2 are the slots.
pub fn number(version: u64, parameter: ParameterId, kind: usize, element: usize) -> f32 {
    let place = (element as u64) << 8 | u64::from(parameter.0) << 4 | kind as u64;
    let mixed = (place ^ version << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f32
}

/// The state of a server with that plan at that version.
pub fn image(run: &RunSpec, plan: &ServerPlan, version: u64) -> ShardImage {
    let block = |places: Vec<(ParameterId, usize)>, slots: usize| {
        let fill =
            |kind| places.iter().map(|&(parameter, element)| number(version, parameter, kind, element)).collect();
        Block { values: fill(0), slots: (1..=slots).map(fill).collect() }
    };
    let segments = plan.segments.iter();
    let dense = segments.flat_map(|segment| segment.range.clone().map(|element| (segment.parameter, element)));
    let tables = plan.stripes.iter().map(|stripe| {
        let width = run.parameters[stripe.parameter].width();
        let rows = (0..stripe.count).map(|local| stripe.global(local));
        // Frozen parameters have had no steps and have no slots.
        let is_frozen = run.parameters[stripe.parameter].kind == ParameterKind::Constant;
        let steps = rows.clone().map(|row| if is_frozen { 0 } else { row as u64 * 7 + version }).collect();
        let slots = if is_frozen { 0 } else { run.optimizer.slots() };
        let elements = rows.flat_map(|row| (row * width..(row + 1) * width).map(|element| (stripe.parameter, element)));
        RowTable::restore(width, block(elements.collect(), slots), steps)
    });
    ShardImage { dense: block(dense.collect(), run.optimizer.slots()), tables: tables.collect() }
}

#[allow(dead_code, reason = "the tests against a server need no memory")]
pub fn memory() -> Store {
    Store::over(Arc::new(InMemory::new()), "memory")
}

/// Claims the next generation, and takes over from whoever holds the store.
pub async fn claim(store: &Store) -> Result<u64, CheckpointError> {
    Ok(store.lease(Holder::this_process(""), true).await?.generation())
}

/// Writes everything at once.
pub async fn write(part: &mut PartWriter, image: &ShardImage) -> Result<(), CheckpointError> {
    for table in &image.tables {
        part.write_steps(table.steps()).await?;
    }
    for block in std::iter::once(&image.dense).chain(image.tables.iter().map(|table| table.block())) {
        for numbers in std::iter::once(&block.values).chain(&block.slots) {
            part.write(numbers.as_slice()).await?;
        }
    }
    Ok(())
}

/// Writes a whole checkpoint of that version, as its servers and coordinator would.
pub async fn save(store: &Store, run: &RunSpec, servers: usize, id: CheckpointId) -> Result<Manifest, CheckpointError> {
    let mut parts = Vec::new();
    for (server, plan) in plans(run, servers).iter().enumerate() {
        let mut part = store.begin_part(&id, &PartLayout::new(run, plan, server, servers)).await?;
        write(&mut part, &image(run, plan, id.step)).await?;
        parts.push(part.finish().await?);
    }
    let mut manifest = Manifest::new(id, run.clone(), parts);
    manifest.servers.fill(ServerState { version: id.step, state: serde_json::json!({ "ledger": [] }) });
    store.publish(&manifest).await?;
    Ok(manifest)
}

pub async fn restore(store: &Store, manifest: &Manifest, plan: &ServerPlan) -> Result<ShardImage, CheckpointError> {
    let RunSpec { parameters, optimizer, .. } = &manifest.run;
    store.restore(manifest, &Restore { table: parameters, plan, optimizer, slots: SlotPolicy::Restore }).await
}

/// Fails unless every number in the checkpoint is of its version.
pub async fn assert_one_version(store: &Store, manifest: &Manifest) {
    for plan in plans(&manifest.run, 3) {
        let restored = restore(store, manifest, &plan).await.unwrap();
        assert!(restored == image(&manifest.run, &plan, manifest.id.step), "{} holds another version", manifest.id);
    }
}
