//! Measures how fast a part is written, verified and restored. Run it with `--release`. An argument names a directory
//! on the disk to measure; the default is the system's temporary directory.

use std::hint::black_box;
use std::time::Instant;

use windlass_checkpoint::{CHUNK_BYTES, CheckpointId, Checksum, Manifest, PartLayout, Restore, SlotPolicy, Store};
use windlass_core::consistency::Mode;
use windlass_core::identity::Identity;
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{Access, ParameterKind, ParameterSpec, ParameterTable};
use windlass_core::plan::{ShardPlan, Sharding};
use windlass_core::run::RunSpec;
use windlass_core::schedule::Schedule;

const ELEMENTS: usize = 25_000_000;
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let directory = tempfile::tempdir_in(parent)?;
    let store = Store::open(directory.path().to_str().ok_or("a directory with a plain name")?)?;
    let run = run()?;
    let plan = &ShardPlan::new(&run.parameters, 1, run.sharding).servers[0];
    let values: Vec<f32> = (0..ELEMENTS).map(|element| element as f32).collect();
    let bytes: &[u8] = bytemuck::cast_slice(&values);

    for round in 1..=ROUNDS {
        let started = Instant::now();
        black_box(bytes.to_vec());
        report("copy", started);

        let started = Instant::now();
        bytes.chunks(CHUNK_BYTES).for_each(|chunk| {
            black_box(Checksum::of(chunk));
        });
        report("checksum", started);

        let started = Instant::now();
        let id = CheckpointId::new(round as u64, 0);
        let mut part = store.begin_part(&id, &PartLayout::new(&run, plan, 0, 1)).await?;
        part.write(values.as_slice()).await?;
        let manifest = Manifest::new(id, run.clone(), vec![part.finish().await?]);
        store.publish(&manifest).await?;
        report("write, synced", started);

        let started = Instant::now();
        assert!(store.verify(&manifest).await?.is_whole());
        report("verify", started);

        let started = Instant::now();
        let slots = SlotPolicy::Restore;
        let wanted = Restore { table: &run.parameters, plan, optimizer: &run.optimizer, slots };
        let image = store.restore(&manifest, &wanted).await?;
        report("restore", started);
        assert!(image.dense.values == values);
        store.prune(1).await?;
    }
    Ok(())
}

fn run() -> Result<RunSpec, Box<dyn std::error::Error>> {
    let spec =
        ParameterSpec { name: "w".into(), shape: vec![ELEMENTS], access: Access::Dense, kind: ParameterKind::Trained };
    Ok(RunSpec {
        model: "throughput".into(),
        mode: Mode::Async,
        optimizer: Optimizer::Sgd,
        learning_rate: 0.1,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        steps: None,
        deterministic: false,
        staleness_scaling: false,
        clip_norm: None,
        parameters: ParameterTable::new(vec![spec])?,
        identity: Identity::default(),
        data: None,
    })
}

fn report(what: &str, started: Instant) {
    let megabytes = (ELEMENTS * size_of::<f32>()) as f64 / 1e6;
    println!("{what:>14}: {:>7.0} MB/s", megabytes / started.elapsed().as_secs_f64());
}
