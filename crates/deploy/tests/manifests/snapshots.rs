//! Every kind, with the options that change it most. The plain forms are in `deploy/`.

use insta::assert_snapshot;

use crate::manifest;

#[test]
fn of_plain_kubernetes_with_gpus_an_object_store_and_a_queue() {
    assert_snapshot!(manifest(
        "k8s --ps 1 --workers 2 --gpus 1 --cpu 500m --memory 1.5Gi --image registry.example.org/windlass:1 \
         --storage gs://bucket/runs/ --storage-secret keys --namespace team-a --queue training --layout together \
         --scrape-from monitoring --name digits -- stn --transformer off --checkpoint-stall-secs 60"
    ));
}

#[test]
fn of_plain_kubernetes_without_ps() {
    assert_snapshot!(manifest("k8s --ps 0 --workers 3 --name digits -- mnist"));
}

#[test]
fn of_a_jobset() {
    assert_snapshot!(manifest("jobset --storage pvc:runs --queue training --name digits -- mnist --steps 500"));
}

#[test]
fn of_a_tfjob_without_ps() {
    assert_snapshot!(manifest("tfjob --ps 0 --workers 2 --storage pvc:runs --name digits -- mnist"));
}

#[test]
fn of_a_trainjob() {
    assert_snapshot!(manifest("trainjob --namespace team-a --storage az://container --gpus 2 --name digits -- mnist"));
}

#[test]
fn of_compose_with_gpus_and_a_directory() {
    assert_snapshot!(manifest(
        "compose --workers 1 --gpus 1 --storage file:/data/runs --name digits -- mnist --x $HOME"
    ));
}

#[test]
fn of_slurm_with_gpus_and_an_object_store() {
    assert_snapshot!(manifest(
        "slurm --ps 0 --workers 2 --gpus 1 --cpu 4 --memory 10Gi --storage s3://bucket/runs --layout together \
         --name digits -- mnist --note it's"
    ));
}
