//! Listing, pruning, and who may publish.

use std::collections::BTreeSet;
use std::fs;

use windlass_checkpoint::{CheckpointError, CheckpointId, FORMAT, Manifest, PartLayout, Store};

use crate::support::{assert_one_version, claim, memory, plans, save, small, write};

fn id(step: u64, generation: u64, attempt: u32) -> CheckpointId {
    CheckpointId { step, generation, attempt }
}

async fn steps(store: &Store) -> Vec<u64> {
    store.list().await.unwrap().iter().map(|listed| listed.id.step).collect()
}

fn remove_a_part(directory: &tempfile::TempDir, manifest: &Manifest) {
    fs::remove_file(directory.path().join(&manifest.parts[0].object)).unwrap();
}

#[tokio::test]
async fn a_store_without_checkpoints_has_none() {
    let store = memory();
    assert!(store.list().await.unwrap().is_empty());
    assert!(store.newest_whole().await.unwrap().manifest.is_none());
    let error = store.load(&id(1, 0, 1)).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no checkpoint 000000000001-g000000-00000001 in `memory`");
    assert_eq!(store.prune(1).await.unwrap(), Default::default());
}

#[tokio::test]
async fn checkpoints_are_listed_newest_first_and_loaded_as_published() {
    let (store, run) = (memory(), small());
    let saved = save(&store, &run, 1, id(9, 0, 1)).await.unwrap();
    save(&store, &run, 2, id(10, 0, 1)).await.unwrap();
    save(&store, &run, 2, id(8, 0, 1)).await.unwrap();
    assert_eq!(steps(&store).await, [10, 9, 8]);
    assert_eq!(store.load(&saved.id).await.unwrap(), saved);
    assert_eq!(store.newest_whole().await.unwrap().manifest.unwrap().id.step, 10);
}

#[tokio::test]
async fn a_checkpoint_is_not_there_before_its_manifest() {
    let (store, run) = (memory(), small());
    let layout = PartLayout::new(&run, &plans(&run, 1)[0], 0, 1);
    let mut part = store.begin_part(&id(5, 0, 1), &layout).await.unwrap();
    write(&mut part, &crate::support::image(&run, &plans(&run, 1)[0], 5)).await.unwrap();
    part.finish().await.unwrap();
    assert!(store.newest_whole().await.unwrap().manifest.is_none());
}

#[tokio::test]
async fn a_manifest_is_never_replaced() {
    let (store, run) = (memory(), small());
    let first = save(&store, &run, 1, id(5, 0, 1)).await.unwrap();
    let error = store.publish(&Manifest { config: "other".into(), ..first.clone() }).await.unwrap_err();
    assert_eq!(error.to_string(), "checkpoint 000000000005-g000000-00000001 has already been published");
    assert_eq!(store.load(&first.id).await.unwrap(), first);
}

#[tokio::test]
async fn a_retry_of_the_same_step_is_a_checkpoint_of_its_own() {
    let (store, run) = (memory(), small());
    save(&store, &run, 1, CheckpointId::new(5, 0)).await.unwrap();
    save(&store, &run, 2, CheckpointId::new(5, 0)).await.unwrap();
    assert_eq!(steps(&store).await, [5, 5]);
}

#[tokio::test]
async fn a_torn_checkpoint_is_passed_over_and_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let (store, run) = (Store::open(directory.path().to_str().unwrap()).unwrap(), small());
    let older = save(&store, &run, 2, id(5, 0, 1)).await.unwrap();
    let newer = save(&store, &run, 2, id(6, 0, 1)).await.unwrap();
    remove_a_part(&directory, &newer);

    let found = store.newest_whole().await.unwrap();
    assert_eq!(found.manifest.as_ref(), Some(&older));
    assert_eq!(found.skipped[0].0, newer.id);
    assert_eq!(found.skipped[0].1.to_string(), "`000000000006-g000000-00000001/ps-0-of-2.safetensors` is missing");
    assert_one_version(&store, &older).await;
    let listed = store.list().await.unwrap();
    assert_eq!(
        listed.iter().map(|one| (one.id, one.is_whole())).collect::<Vec<_>>(),
        [(newer.id, false), (older.id, true)]
    );
}

#[tokio::test]
async fn prune_keeps_the_newest_whole_ones_and_what_is_newer() {
    let directory = tempfile::tempdir().unwrap();
    let (store, run) = (Store::open(directory.path().to_str().unwrap()).unwrap(), small());
    let mut saved = Vec::new();
    for step in 1..=6 {
        saved.push(save(&store, &run, 1, id(step, 0, 1)).await.unwrap());
    }
    remove_a_part(&directory, &saved[5]);
    remove_a_part(&directory, &saved[3]);
    let pruned = store.prune(2).await.unwrap();
    assert_eq!(pruned.checkpoints.iter().map(|id| id.step).collect::<Vec<_>>(), [4, 2, 1]);
    assert_eq!(steps(&store).await, [6, 5, 3]);
    store.prune(0).await.unwrap();
    assert_eq!(steps(&store).await, [6, 5]);
    assert_one_version(&store, &saved[4]).await;
}

/// Changes a byte of a part but not its size.
fn edit_a_part(directory: &tempfile::TempDir, manifest: &Manifest) {
    let path = directory.path().join(&manifest.parts[0].object);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn prune_does_not_count_a_checkpoint_whose_bytes_have_changed() {
    let directory = tempfile::tempdir().unwrap();
    let (store, run) = (Store::open(directory.path().to_str().unwrap()).unwrap(), small());
    let mut saved = Vec::new();
    for step in 1..=5 {
        saved.push(save(&store, &run, 1, id(step, 0, 1)).await.unwrap());
    }
    edit_a_part(&directory, &saved[4]);
    edit_a_part(&directory, &saved[2]);
    let pruned = store.prune(2).await.unwrap();
    assert_eq!(pruned.checkpoints.iter().map(|id| id.step).collect::<Vec<_>>(), [3, 1]);
    assert_eq!(steps(&store).await, [5, 4, 2], "the newest is damaged, and stays as evidence");
}

#[tokio::test]
async fn a_checkpoint_that_a_run_has_passed_over_as_damaged_takes_no_place_of_a_good_one() {
    let directory = tempfile::tempdir().unwrap();
    let (store, run) = (Store::open(directory.path().to_str().unwrap()).unwrap(), small());
    let good = save(&store, &run, 1, id(1, 0, 1)).await.unwrap();
    let damaged = save(&store, &run, 1, id(2, 0, 1)).await.unwrap();
    edit_a_part(&directory, &damaged);
    assert_eq!(store.newest_verified().await.unwrap().manifest, Some(good));
    save(&store, &run, 1, id(3, 0, 1)).await.unwrap();
    assert_eq!(store.prune_since(0, 2, None).await.unwrap().checkpoints, [damaged.id]);
    assert_eq!(steps(&store).await, [3, 1]);
}

#[tokio::test]
async fn prune_sweeps_old_attempts_and_spares_the_one_in_the_making() {
    let directory = tempfile::tempdir().unwrap();
    let (store, run) = (Store::open(directory.path().to_str().unwrap()).unwrap(), small());
    let plan = &plans(&run, 1)[0];
    let layout = PartLayout::new(&run, plan, 0, 1);
    let mut parts = Vec::new();
    for step in [1, 9] {
        let mut part = store.begin_part(&id(step, 0, 7), &layout).await.unwrap();
        write(&mut part, &crate::support::image(&run, plan, step)).await.unwrap();
        parts.push(part.finish().await.unwrap());
    }
    save(&store, &run, 1, id(5, 0, 1)).await.unwrap();
    fs::write(directory.path().join("000000000003-g000000-00000001.json#1"), "{").unwrap();
    fs::write(directory.path().join("notes.txt"), "not ours").unwrap();

    assert_eq!(store.prune(3).await.unwrap().attempts, [id(1, 0, 7)]);
    let names: BTreeSet<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let expected = [
        "000000000005-g000000-00000001",
        "000000000005-g000000-00000001.json",
        "000000000009-g000000-00000007",
        "notes.txt",
    ];
    assert_eq!(names, expected.map(Into::into).into());

    // The attempt that was not finished can still be published.
    let manifest = Manifest::new(id(9, 0, 7), run.clone(), parts.split_off(1));
    store.publish(&manifest).await.unwrap();
    assert_one_version(&store, &manifest).await;
}

#[tokio::test]
async fn prune_leaves_checkpoints_of_a_later_format_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (store, run) = (Store::open(directory.path().to_str().unwrap()).unwrap(), small());
    let later = format!(r#"{{"format": {}}}"#, FORMAT + 1);
    fs::write(directory.path().join("000000000001-g000000-00000001.json"), later).unwrap();
    save(&store, &run, 1, id(5, 0, 1)).await.unwrap();
    assert_eq!(store.prune(1).await.unwrap().checkpoints, []);
    assert_eq!(steps(&store).await, [5, 1]);
}

#[tokio::test]
async fn a_deleted_checkpoint_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap()).unwrap();
    let manifest = save(&store, &small(), 2, id(5, 0, 1)).await.unwrap();
    store.delete(&manifest.id).await.unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    store.delete(&manifest.id).await.unwrap();
}

#[tokio::test]
async fn no_two_claims_get_the_same_generation() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap()).unwrap();
    let claims = (0..16).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { claim(&store).await.unwrap() })
    });
    let mut generations = BTreeSet::new();
    for claim in claims.collect::<Vec<_>>() {
        generations.insert(claim.await.unwrap());
    }
    assert_eq!(generations, (1..=16).collect());
    assert_eq!(store.newest_generation().await.unwrap(), 16);
}

#[tokio::test]
async fn a_coordinator_that_was_replaced_may_not_publish() {
    let (store, run) = (memory(), small());
    let first = claim(&store).await.unwrap();
    save(&store, &run, 1, CheckpointId::new(5, first)).await.unwrap();
    let second = claim(&store).await.unwrap();
    let error = save(&store, &run, 1, CheckpointId::new(6, first)).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Fenced { generation: 1, newest: 2 }));
    assert_eq!(error.to_string(), "generation 2 has taken over from generation 1, which can no longer publish");
    save(&store, &run, 1, CheckpointId::new(4, second)).await.unwrap();
    assert_eq!(store.newest_whole().await.unwrap().manifest.unwrap().id.step, 4);
}

#[tokio::test]
async fn generations_go_on_counting_after_old_claims_are_pruned() {
    let (store, run) = (memory(), small());
    for step in 1..=3 {
        let generation = claim(&store).await.unwrap();
        assert_eq!(generation, step);
        save(&store, &run, 1, CheckpointId::new(step, generation)).await.unwrap();
        store.prune(1).await.unwrap();
    }
    assert_eq!(store.newest_generation().await.unwrap(), 3);
}

#[tokio::test]
async fn a_coordinator_that_was_replaced_may_not_remove_checkpoints() {
    let (store, run) = (memory(), small());
    let first = claim(&store).await.unwrap();
    for step in [5, 6] {
        save(&store, &run, 1, id(step, first, 1)).await.unwrap();
    }
    claim(&store).await.unwrap();
    let pruned = store.prune_since(0, 1, Some(first)).await;
    assert!(matches!(pruned, Err(CheckpointError::Fenced { generation: 1, newest: 2 })), "{pruned:?}");
    assert_eq!(steps(&store).await, [6, 5]);
}

#[tokio::test]
async fn a_checkpoint_that_was_given_up_is_neither_published_nor_found() {
    let (store, run) = (memory(), small());
    save(&store, &run, 1, id(4, 0, 1)).await.unwrap();
    // Disown one just before and one just after the store has accepted the manifest.
    let early = id(5, 0, 1);
    store.disown(early);
    assert!(matches!(save(&store, &run, 1, early).await, Err(CheckpointError::GivenUp { .. })));
    let late = save(&store, &run, 1, id(6, 0, 1)).await.unwrap().id;
    store.disown(late);
    assert_eq!(steps(&store).await, [4]);
    assert_eq!(store.newest_whole().await.unwrap().manifest.unwrap().id.step, 4);
}
