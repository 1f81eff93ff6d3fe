//! Wherever a write is interrupted, a whole checkpoint is found afterwards: the previous one or the new one.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use windlass_checkpoint::{CheckpointError, CheckpointId, Store};
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::Access;
use windlass_core::run::RunSpec;

use crate::failing::Failing;
use crate::support::{assert_one_version, claim, run, save, small, spec};

const KILLS: usize = 36;
const DIRECTORY_VARIABLE: &str = "WINDLASS_CHECKPOINT_CRASH_DIRECTORY";

/// Starts a coordinator that takes the next two checkpoints and keeps one.
async fn one_life(store: &Store, run: &RunSpec, servers: usize) -> Result<(), CheckpointError> {
    let generation = claim(store).await?;
    let newest = store.newest_whole().await?.manifest.map_or(0, |manifest| manifest.id.step);
    for step in newest + 1..=newest + 2 {
        save(store, run, servers, CheckpointId::new(step, generation)).await?;
        store.prune(1).await?;
    }
    Ok(())
}

async fn survives_a_crash_at_every_change(objects: impl Fn() -> Arc<dyn ObjectStore>, run: &RunSpec, servers: usize) {
    for limit in 0.. {
        let objects = objects();
        one_life(&Store::over(objects.clone(), "before"), run, servers).await.unwrap();
        let failing = Failing::crash(objects.clone(), limit);
        let life = one_life(&Store::over(Arc::new(failing.clone()), "crashing"), run, servers).await;

        let store = Store::over(objects, "after");
        let found = store.newest_whole().await.unwrap();
        assert!(found.skipped.is_empty(), "crash at {limit}: {:?}", found.skipped);
        let manifest = found.manifest.unwrap_or_else(|| panic!("crash at {limit}: no checkpoint is left"));
        assert!((2..=4).contains(&manifest.id.step), "crash at {limit}: {}", manifest.id);
        assert!(store.verify(&manifest).await.unwrap().is_whole(), "crash at {limit}");
        assert_one_version(&store, &manifest).await;

        // The next coordinator continues, and leaves no garbage.
        one_life(&store, run, servers).await.unwrap();
        let listed = store.list().await.unwrap();
        assert_eq!(listed.iter().map(|one| one.id.step).collect::<Vec<_>>(), [manifest.id.step + 2]);
        if life.is_ok() {
            assert!(limit > 10, "only {limit} changes");
            return;
        }
    }
}

#[tokio::test]
async fn a_crash_at_any_change_of_an_object_store_leaves_a_whole_checkpoint() {
    // Parts have several pieces, so that some crashes happen in the middle of an upload.
    let dense = spec("w", &[2_200_000], Access::Dense);
    let run = RunSpec { optimizer: Optimizer::Sgd, ..run(vec![dense]) };
    survives_a_crash_at_every_change(|| Arc::new(InMemory::new()), &run, 1).await;
}

#[tokio::test]
async fn a_crash_at_any_change_of_a_directory_leaves_a_whole_checkpoint() {
    let parent = tempfile::tempdir().unwrap();
    let fresh = || -> Arc<dyn ObjectStore> {
        let directory = tempfile::tempdir_in(&parent).unwrap().keep();
        Arc::new(LocalFileSystem::new_with_prefix(directory).unwrap())
    };
    survives_a_crash_at_every_change(fresh, &small(), 2).await;
}

/// Not a test of its own: the process that the next one kills. It takes checkpoints until then.
#[tokio::test]
async fn child_that_takes_checkpoints() {
    let Ok(directory) = std::env::var(DIRECTORY_VARIABLE) else { return };
    let store = Store::open(&directory).unwrap();
    let generation = claim(&store).await.unwrap();
    let newest = store.newest_verified().await.unwrap().manifest.map_or(0, |manifest| manifest.id.step);
    for step in newest + 1.. {
        eprintln!("begin");
        save(&store, &small(), 2, CheckpointId::new(step, generation)).await.unwrap();
        eprintln!("published");
        store.prune(2).await.unwrap();
    }
}

#[tokio::test]
async fn a_process_killed_at_any_moment_leaves_a_whole_checkpoint() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let location = directory.path().to_str().unwrap();
    let mut newest = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::child_that_takes_checkpoints", "--exact", "--nocapture"])
            .env(DIRECTORY_VARIABLE, location)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut published = 0;
        for line in lines.by_ref().take(random.random_range(1..8)) {
            assert!(line == "begin" || line == "published", "{line}");
            published += u64::from(line == "published");
        }
        // Wait for a random moment in the work that follows that line.
        for _ in 0..random.random_range(0..200_000) {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let store = Store::open(location).unwrap();
        let found = store.newest_verified().await.unwrap();
        assert!(found.skipped.is_empty(), "kill {kill}: {:?}", found.skipped);
        let step = match &found.manifest {
            Some(manifest) => {
                assert_one_version(&store, manifest).await;
                manifest.id.step
            }
            None => 0,
        };
        assert!(step >= newest + published, "kill {kill}: step {step} after {newest} and {published} more");
        newest = step;
    }
    assert!(newest > 0);

    // What the killed processes left is removed once a newer checkpoint exists.
    let store = Store::open(location).unwrap();
    let generation = claim(&store).await.unwrap();
    let last = save(&store, &small(), 1, CheckpointId::new(newest + 1, generation)).await.unwrap();
    store.prune(1).await.unwrap();
    let names = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, [last.id.to_string(), last.id.manifest_object(), "generations".to_owned()]);
}
