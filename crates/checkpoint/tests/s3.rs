//! Checkpoints in a real S3-speaking server. Skipped unless `WINDLASS_S3_ENDPOINT` names one, such as
//! `http://127.0.0.1:5555`, that has the bucket `windlass` and takes any credentials.

use std::process::Command;

use windlass_checkpoint::{CheckpointError, CheckpointId, Damage, Store};

use support::{assert_one_version, claim, image, large, number, plans, restore, save, small};

#[path = "checkpoints/support.rs"]
mod support;

const INNER: &str = "WINDLASS_S3_INNER";

/// Runs the other test of this file in a process that has the environment which S3 is configured by.
#[test]
fn checkpoints_live_in_s3() {
    let Ok(endpoint) = std::env::var("WINDLASS_S3_ENDPOINT") else {
        println!("skipped: WINDLASS_S3_ENDPOINT names no S3-speaking server");
        return;
    };
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["inner", "--exact", "--nocapture"])
        .env(INNER, "1")
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .status()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn inner() {
    if std::env::var_os(INNER).is_none() {
        return;
    }
    let location = format!("s3://windlass/tests/{:08x}", rand::random::<u32>());
    let store = Store::open(&location).unwrap();
    assert!(store.newest_whole().await.unwrap().manifest.is_none());
    let generation = claim(&store).await.unwrap();

    // Several pieces per part, restored into a different number of servers.
    let manifest = save(&store, &large(), 2, CheckpointId::new(5, generation)).await.unwrap();
    assert_eq!(store.newest_verified().await.unwrap().manifest.as_ref(), Some(&manifest));
    assert_one_version(&store, &manifest).await;
    let plan = &plans(&large(), 1)[0];
    assert!(restore(&store, &manifest, plan).await.unwrap() == image(&large(), plan, 5));
    let values = store.load_values(&manifest).await.unwrap();
    assert_eq!(values[0].values[77], number(5, windlass_core::parameter::ParameterId(0), 0, 77));

    // A manifest is never replaced, and a superseded coordinator is refused.
    let error = store.publish(&manifest).await.unwrap_err();
    assert!(matches!(error, CheckpointError::AlreadyPublished { .. }), "{error}");
    let next = claim(&Store::open(&location).unwrap()).await.unwrap();
    assert_eq!(next, generation + 1);
    let error = save(&store, &small(), 1, CheckpointId::new(6, generation)).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Fenced { .. }), "{error}");

    // Pruning removes the older one and the refused attempt.
    let newest = save(&store, &small(), 2, CheckpointId::new(7, next)).await.unwrap();
    let pruned = store.prune(1).await.unwrap();
    assert_eq!((pruned.checkpoints, pruned.attempts.len()), (vec![manifest.id], 1));
    let listed = store.list().await.unwrap();
    assert_eq!(listed.iter().map(|one| (one.id, one.is_whole())).collect::<Vec<_>>(), [(newest.id, true)]);
    let error = restore(&store, &manifest, plan).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Damaged { damage: Damage::Missing, .. }), "{error}");

    store.delete(&newest.id).await.unwrap();
    assert!(store.newest_whole().await.unwrap().manifest.is_none());

    let error = Store::open("s3://no-such-bucket/run").unwrap().newest_whole().await.unwrap_err();
    assert!(error.to_string().contains("s3://no-such-bucket/run"), "{error}");
}
