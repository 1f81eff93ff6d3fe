//! Full disks, vanished directories, and torn or edited files: each has a clear error of its own.

use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;

use futures::StreamExt;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use tempfile::TempDir;
use windlass_checkpoint::{CheckpointError, CheckpointId, Damage, FORMAT, Manifest, PartLayout, Store};

use crate::failing::Failing;
use crate::support::{claim, image, large, plans, restore, save, small, write};

fn id(step: u64) -> CheckpointId {
    CheckpointId { step, generation: 0, attempt: 1 }
}

/// A directory with checkpoints of steps 5 and 6, both by two servers.
async fn two_checkpoints() -> (TempDir, Store, Manifest, Manifest) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap()).unwrap();
    let older = save(&store, &small(), 2, id(5)).await.unwrap();
    let newer = save(&store, &small(), 2, id(6)).await.unwrap();
    (directory, store, older, newer)
}

/// Returns the errors of stores that refuse all changes from the first on, from the second on, and so on.
async fn failures(kind: io::ErrorKind) -> Vec<String> {
    let mut failures = Vec::new();
    for limit in 0.. {
        let objects = Arc::new(InMemory::new());
        let store = Store::over(Arc::new(Failing::refuse(objects.clone(), limit, kind)), "disk");
        match save(&store, &small(), 1, id(5)).await {
            Ok(_) => return failures,
            Err(error) => failures.push(error.to_string()),
        }
        // Readers see nothing of the failed checkpoint.
        assert!(Store::over(objects, "disk").list().await.unwrap().is_empty());
    }
    unreachable!()
}

#[tokio::test]
async fn a_full_disk_is_named_whenever_it_fills() {
    let part = "no space left in `disk` for `000000000005-g000000-00000001/ps-0-of-1.safetensors`: \
                free some, or keep fewer checkpoints";
    let manifest = "no space left in `disk` for `000000000005-g000000-00000001.json`: \
                    free some, or keep fewer checkpoints";
    assert_eq!(failures(io::ErrorKind::StorageFull).await, [part, part, part, manifest]);
}

#[tokio::test]
async fn a_store_that_may_only_be_read_is_named() {
    for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
        for failure in failures(kind).await {
            assert!(failure.starts_with("`disk` does not allow writing `000000000005-g000000-00000001"), "{failure}");
            assert!(failure.ends_with(&kind.to_string()), "{failure}");
        }
    }
}

#[tokio::test]
async fn a_store_that_may_only_be_read_can_be_restored_from() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let manifest = save(&Store::over(objects.clone(), "disk"), &small(), 2, id(5)).await.unwrap();
    let store = Store::over(Arc::new(Failing::refuse(objects, 0, io::ErrorKind::PermissionDenied)), "disk");
    assert!(matches!(claim(&store).await, Err(CheckpointError::NotWritable { .. })));
    assert_eq!(store.newest_verified().await.unwrap().manifest.unwrap(), manifest);
    crate::support::assert_one_version(&store, &manifest).await;
}

#[tokio::test]
async fn a_directory_that_has_gone_is_not_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("run");
    let store = Store::open(directory.to_str().unwrap()).unwrap();
    let generation = claim(&store).await.unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let error = save(&store, &small(), 1, CheckpointId::new(5, generation)).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Vanished { .. }), "{error}");
    assert!(!directory.exists());

    // After a volume is unmounted, the directory exists, but the claims do not.
    fs::create_dir(&directory).unwrap();
    let error = save(&store, &small(), 1, CheckpointId::new(5, generation)).await.unwrap_err();
    assert!(error.to_string().ends_with("has it been removed, emptied or unmounted?"), "{error}");
}

#[tokio::test]
async fn a_directory_that_goes_while_a_part_is_written_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("run");
    let store = Store::open(directory.to_str().unwrap()).unwrap();
    let (run, plan) = (small(), &plans(&small(), 1)[0]);
    let mut part = store.begin_part(&id(5), &PartLayout::new(&run, plan, 0, 1)).await.unwrap();
    fs::remove_dir_all(&directory).unwrap();
    write(&mut part, &image(&run, plan, 5)).await.unwrap();
    let error = part.finish().await.unwrap_err();
    assert!(matches!(error, CheckpointError::Vanished { .. } | CheckpointError::Store { .. }), "{error}");
    assert!(error.to_string().contains(directory.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_part_that_is_dropped_or_fails_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (run, plan) = (large(), &plans(&large(), 1)[0]);
    let layout = PartLayout::new(&run, plan, 0, 1);
    let local = Arc::new(LocalFileSystem::new_with_prefix(&directory).unwrap());
    let files = || fs::read_dir(directory.path().join(id(5).to_string())).unwrap().count();

    let store = Store::over(Arc::new(Failing::refuse(local.clone(), 2, io::ErrorKind::StorageFull)), "disk");
    let mut part = store.begin_part(&id(5), &layout).await.unwrap();
    assert_eq!(files(), 1);
    write(&mut part, &image(&run, plan, 5)).await.unwrap();
    let error = part.finish().await.unwrap_err();
    assert!(matches!(error, CheckpointError::Full { .. }), "{error}");
    assert_eq!(files(), 0);

    let mut part = Store::over(local, "disk").begin_part(&id(5), &layout).await.unwrap();
    part.write_steps(&[0; 9]).await.unwrap();
    drop(part);
    // The removal runs in a spawned task; it is done when no file is left.
    while files() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_part_that_comes_to_nothing_leaves_no_folder_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap()).unwrap();
    let (run, plan) = (small(), &plans(&small(), 1)[0]);
    let layout = PartLayout::new(&run, plan, 0, 1);
    let folder = directory.path().join(id(5).to_string());

    let unfinished = store.begin_part(&id(5), &layout).await.unwrap();
    assert!(folder.is_dir());
    unfinished.finish().await.unwrap_err();
    assert!(!folder.exists());

    drop(store.begin_part(&id(5), &layout).await.unwrap());
    // The removal runs in a spawned task.
    while folder.exists() {
        tokio::task::yield_now().await;
    }

    let mut written = store.begin_part(&id(5), &layout).await.unwrap();
    write(&mut written, &image(&run, plan, 5)).await.unwrap();
    let written = written.finish().await.unwrap();
    fs::write(folder.join("of another server"), "").unwrap();
    store.discard_part(&written.object).await;
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "what others have written stays");
}

#[tokio::test]
async fn an_attempt_that_could_not_be_published_is_removed_and_one_that_was_stays() {
    let (directory, store, older, newer) = two_checkpoints().await;
    fs::remove_file(directory.path().join(newer.id.manifest_object())).unwrap();
    store.discard(&older.id).await;
    store.discard(&newer.id).await;
    assert!(!directory.path().join(newer.id.to_string()).exists());
    assert_eq!(store.newest_verified().await.unwrap().manifest.unwrap(), older);
}

#[tokio::test]
async fn a_part_with_other_numbers_than_its_layout_is_refused() {
    let objects = Arc::new(InMemory::new());
    let store = Store::over(objects.clone(), "memory");
    let (run, plan) = (small(), &plans(&small(), 1)[0]);
    let layout = PartLayout::new(&run, plan, 0, 1);
    let begin = async || store.begin_part(&id(5), &layout).await.unwrap();
    let object = "`000000000005-g000000-00000001/ps-0-of-1.safetensors`";

    let error = begin().await.write(&[1.0]).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{object} lacks the steps of some rows, which must be written first"));
    let error = begin().await.write_steps(&[0; 33]).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{object} has no more rows to count the steps of"));
    let mut part = begin().await;
    part.write_steps(&[0; 32]).await.unwrap();
    let error = part.write(&[0.0; 100_000]).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{object} has no room for more numbers"));
    let error = begin().await.finish().await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("{object} is not finished: ")), "{error}");
    assert_eq!(objects.list(None).count().await, 0);
}

#[tokio::test]
async fn verify_says_exactly_what_is_damaged() {
    let (directory, store, older, newer) = two_checkpoints().await;
    let path = directory.path().join(&newer.parts[1].object);
    let bytes = newer.parts[1].bytes;
    let report = async || store.verify(&newer).await.unwrap().parts.remove(1).damage;
    let original = fs::read(&path).unwrap();
    assert!(store.verify(&newer).await.unwrap().is_whole());

    let mut edited = original.clone();
    edited[bytes as usize - 5] ^= 1;
    fs::write(&path, &edited).unwrap();
    assert_eq!(report().await, [Damage::Edited { bytes: 0..bytes }]);

    let mut edited = original.clone();
    edited[9] = b'!';
    fs::write(&path, &edited).unwrap();
    let found = report().await;
    assert!(matches!(&found[..], [Damage::Header { .. }, Damage::Edited { .. }]), "{found:?}");

    fs::write(&path, &original[..100]).unwrap();
    assert_eq!(report().await, [Damage::WrongSize { expected: bytes, found: 100 }]);
    fs::write(&path, "").unwrap();
    assert_eq!(report().await, [Damage::WrongSize { expected: bytes, found: 0 }]);
    fs::write(&path, [&original[..], b"more"].concat()).unwrap();
    assert_eq!(report().await, [Damage::WrongSize { expected: bytes, found: bytes + 4 }]);
    fs::remove_file(&path).unwrap();
    assert_eq!(report().await, [Damage::Missing]);

    assert!(store.verify(&older).await.unwrap().is_whole());
    assert_eq!(store.newest_verified().await.unwrap().manifest.unwrap(), older);
}

#[test]
fn damage_is_told_in_words() {
    let told = [
        Damage::Missing,
        Damage::WrongSize { expected: 9, found: 0 },
        Damage::WrongSize { expected: 9, found: 4 },
        Damage::WrongSize { expected: 9, found: 12 },
        Damage::Edited { bytes: 0..9 },
        Damage::Header { reason: "invalid JSON".into() },
    ]
    .map(|damage| CheckpointError::Damaged { object: "part".into(), damage }.to_string());
    assert_eq!(
        told,
        [
            "`part` is missing",
            "`part` is empty instead of 9 bytes long",
            "`part` is truncated: 4 of 9 bytes",
            "`part` has 12 bytes instead of 9",
            "`part` was changed after it was written: bytes 0..9 differ",
            "`part` has an unreadable header: invalid JSON",
        ]
    );
}

#[tokio::test]
async fn an_edited_part_is_found_out_by_whoever_reads_the_edited_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap()).unwrap();
    let manifest = save(&store, &large(), 1, id(5)).await.unwrap();
    let part = &manifest.parts[0];
    let mut file = OpenOptions::new().write(true).open(directory.path().join(&part.object)).unwrap();
    // The last bytes are slots of the embedding, in the last row of the last server.
    file.seek(SeekFrom::Start(part.bytes - 1)).unwrap();
    file.write_all(&[0xff]).unwrap();

    let error = restore(&store, &manifest, &plans(&large(), 1)[0]).await.unwrap_err();
    assert!(error.is_damage());
    let chunk = (4 << 20) * (part.bytes / (4 << 20));
    assert_eq!(
        error.to_string(),
        format!("`{}` was changed after it was written: bytes {chunk}..{} differ", part.object, part.bytes)
    );
    // It is whole by its size alone, and damaged by its checksum.
    assert!(store.newest_whole().await.unwrap().manifest.is_some());
    assert!(store.newest_verified().await.unwrap().manifest.is_none());
    // The values themselves are in other chunks.
    assert!(store.load_values(&manifest).await.is_ok());
}

#[tokio::test]
async fn a_part_that_is_torn_after_it_was_found_is_reported_by_the_restore() {
    let (directory, store, _, newer) = two_checkpoints().await;
    let path = directory.path().join(&newer.parts[1].object);
    let plan = &plans(&small(), 1)[0];
    let original = fs::read(&path).unwrap();
    for length in [0, 50, original.len() - 1] {
        fs::write(&path, &original[..length]).unwrap();
        let error = restore(&store, &newer, plan).await.unwrap_err();
        assert!(
            matches!(error, CheckpointError::Damaged { damage: Damage::WrongSize { .. }, .. }),
            "{length}: {error}"
        );
    }
    fs::remove_file(&path).unwrap();
    let error = restore(&store, &newer, plan).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Damaged { damage: Damage::Missing, .. }), "{error}");
}

#[tokio::test]
async fn a_spoilt_manifest_is_passed_over_and_one_of_a_later_format_is_not() {
    let (directory, store, older, newer) = two_checkpoints().await;
    let path = directory.path().join(newer.id.manifest_object());
    for spoilt in ["", "not json", r#"{"format": 1, "id": 3}"#, "\0\0\0\0\0\0\0\0"] {
        fs::write(&path, spoilt).unwrap();
        let found = store.newest_whole().await.unwrap();
        assert_eq!(found.manifest.as_ref(), Some(&older));
        assert!(matches!(found.skipped[0].1, CheckpointError::BadManifest { .. }), "{:?}", found.skipped);
    }
    fs::write(&path, r#"{"format": 7}"#).unwrap();
    let error = store.newest_whole().await.unwrap_err();
    assert!(matches!(error, CheckpointError::LaterFormat { format: 7, supported: FORMAT, .. }), "{error}");
}
