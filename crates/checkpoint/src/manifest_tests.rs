//! Tests of `manifest`: what is read back, and what is refused.

use windlass_core::consistency::Mode;
use windlass_core::identity::Identity;
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{ParameterKind, ParameterSpec};
use windlass_core::plan::{ShardPlan, Sharding};
use windlass_core::schedule::Schedule;

use super::*;
use crate::layout::PartLayout;

/// A run of a small model with dense parameters and one that is accessed by row.
pub(crate) fn run(optimizer: Optimizer) -> RunSpec {
    let spec = |name: &str, shape: &[usize], access| ParameterSpec {
        name: name.into(),
        shape: shape.into(),
        access,
        kind: ParameterKind::Trained,
    };
    let parameters = vec![
        spec("hidden.weight", &[64, 64], Access::Dense),
        spec("embedding", &[7, 3], Access::Rows),
        spec("hidden.bias", &[2], Access::Dense),
    ];
    RunSpec {
        model: "small".into(),
        mode: Mode::Async,
        optimizer,
        learning_rate: 0.1,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        steps: Some(10),
        deterministic: false,
        staleness_scaling: false,
        clip_norm: None,
        parameters: ParameterTable::new(parameters).unwrap(),
        identity: Identity::default(),
        data: None,
    }
}

/// A manifest of two servers whose parts were never written.
fn manifest() -> Manifest {
    let run = run(Optimizer::named("adam").unwrap());
    let id = CheckpointId { step: 7, generation: 1, attempt: 2 };
    let plans = ShardPlan::new(&run.parameters, 2, run.sharding).servers;
    let record = |(server, plan): (usize, &ServerPlan)| {
        let layout = PartLayout::new(&run, plan, server, 2);
        let header_bytes = layout.header(&id).len() as u64;
        let bytes = header_bytes + layout.tensor_bytes() as u64;
        let checksums = vec![Checksum::of(b""); chunk_count(bytes) as usize];
        PartRecord { server, object: id.part_object(server, 2), bytes, header_bytes, checksums, plan: plan.clone() }
    };
    let parts = plans.iter().enumerate().map(record).rev().collect();
    let position = WorkerPosition { epoch: 1, batch: 4, local_step: 40 };
    Manifest {
        created: 1_700_000_000,
        workers: vec![WorkerState { worker: WorkerId(3), position, state: serde_json::json!({"seed": 9}) }],
        config: "--model small".into(),
        ..Manifest::new(id, run.clone(), parts)
    }
}

/// Returns why the manifest is rejected after this change.
fn refusal(change: impl FnOnce(&mut Manifest)) -> String {
    let mut manifest = manifest();
    change(&mut manifest);
    manifest.to_json().unwrap_err().to_string()
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let manifest = manifest();
    let json = manifest.to_json().unwrap();
    assert_eq!(Manifest::from_json(&manifest.id.manifest_object(), &json).unwrap(), manifest);
}

#[test]
fn a_manifest_from_before_shards_had_a_least_size_and_models_an_identity_is_read() {
    let manifest = manifest();
    let mut json: Value = serde_json::from_slice(&manifest.to_json().unwrap()).unwrap();
    json["run"]["sharding"] = "balanced".into();
    json["workers"][0].as_object_mut().unwrap().remove("state");
    json.as_object_mut().unwrap().remove("last");
    json["run"].as_object_mut().unwrap().retain(|field, _| field != "identity" && field != "data");
    let read = Manifest::from_json(&manifest.id.manifest_object(), json.to_string().as_bytes()).unwrap();
    assert_eq!(read.run, manifest.run);
    assert_eq!((read.workers[0].position, &read.workers[0].state), (manifest.workers[0].position, &Value::Null));
}

#[test]
fn a_later_format_is_refused_whatever_else_it_holds() {
    let error = Manifest::from_json("a.json", br#"{"format": 4, "shards": {}}"#).unwrap_err();
    assert_eq!(error.to_string(), "`a.json` has format 4, and this version reads up to 3: upgrade windlass");
    assert!(!error.is_damage());
}

#[test]
fn only_a_run_with_parameters_that_are_not_trained_needs_the_later_format() {
    let manifest = manifest();
    assert_eq!(manifest.format, 1);
    let mut specs: Vec<ParameterSpec> = manifest.run.parameters.iter().map(|(_, spec)| spec.clone()).collect();
    let dense = specs.iter_mut().find(|spec| spec.access == Access::Dense).unwrap();
    dense.kind = ParameterKind::State;
    let run = RunSpec { parameters: ParameterTable::new(specs).unwrap(), ..manifest.run };
    let later = Manifest::new(manifest.id, run, manifest.parts);
    assert_eq!(later.format, 2);
    let read = Manifest::from_json(&later.id.manifest_object(), &later.to_json().unwrap()).unwrap();
    assert_eq!(read, later);
}

#[test]
fn a_manifest_says_which_parameters_came_to_be_trained_later_in_a_format_of_its_own() {
    let mut late = manifest();
    late.set_trained_since(BTreeMap::from([("hidden.bias".to_owned(), 5)]));
    assert_eq!(late.format, 3);
    let read = Manifest::from_json(&late.id.manifest_object(), &late.to_json().unwrap()).unwrap();
    assert_eq!(read, late);
    let refused = refusal(|it| it.set_trained_since(BTreeMap::from([("hidden.bias".to_owned(), 8)])));
    assert!(refused.contains("it has `hidden.bias` trained only after step 8"), "{refused}");
}

#[test]
fn what_is_thawed_is_trained_since_the_checkpoint_and_what_was_thawed_before_since_then() {
    let mut saved = manifest();
    let kind = |kind: ParameterKind, access: Access, name: &str, table: &ParameterTable| {
        let spec = |spec: &ParameterSpec| match spec.name == name {
            true => ParameterSpec { kind, access, ..spec.clone() },
            false => spec.clone(),
        };
        ParameterTable::new(table.iter().map(|(_, it)| spec(it)).collect()).unwrap()
    };
    let trained = saved.run.parameters.clone();
    assert_eq!(saved.trained_since_in(&trained), BTreeMap::new());
    saved.run.parameters = kind(ParameterKind::Constant, Access::Rows, "hidden.bias", &trained);
    saved.trained_since = BTreeMap::from([("hidden.weight".to_owned(), 3)]);
    let thawed = saved.trained_since_in(&trained);
    assert_eq!(thawed, BTreeMap::from([("hidden.bias".to_owned(), 7), ("hidden.weight".to_owned(), 3)]));
    let frozen = kind(ParameterKind::Constant, Access::Rows, "hidden.weight", &trained);
    assert_eq!(saved.trained_since_in(&frozen), BTreeMap::from([("hidden.bias".to_owned(), 7)]));
}

#[test]
fn what_is_not_json_is_refused() {
    let refusal = |json: &[u8]| Manifest::from_json("a.json", json).unwrap_err().to_string();
    assert_eq!(refusal(b""), "`a.json` is not a manifest: it is empty");
    assert!(refusal(b"\0\0\0\0").starts_with("`a.json` is not a manifest: expected value"));
    assert!(refusal(br#"{"format": 1}"#).contains("missing field `id`"));
}

#[test]
fn a_cut_manifest_is_refused_wherever_it_was_cut() {
    let manifest = manifest();
    let json = manifest.to_json().unwrap();
    for end in 0..json.len() {
        let error = Manifest::from_json(&manifest.id.manifest_object(), &json[..end]).unwrap_err();
        assert!(error.is_damage(), "cut at {end}: {error}");
    }
}

#[test]
fn a_manifest_under_another_name_is_refused() {
    let json = manifest().to_json().unwrap();
    let error = Manifest::from_json("000000000009-g000001-00000002.json", &json).unwrap_err();
    assert!(error.to_string().ends_with("it is that of checkpoint 000000000007-g000001-00000002"), "{error}");
}

#[test]
fn a_learning_rate_that_is_not_a_number_is_not_published() {
    assert!(refusal(|manifest| manifest.learning_rate.rate = f32::NAN).contains("is not a manifest"));
}

#[test]
fn parts_that_do_not_make_up_the_model_are_refused() {
    let names = "its parts do not hold every element of `hidden.weight` once";
    assert!(
        refusal(|it| drop(it.parts.pop().and(it.servers.pop()))).contains("part 0 is"),
        "objects name their number"
    );
    assert!(refusal(|it| it.parts.clear()).contains("it has no parts"));
    assert!(refusal(|it| it.servers.clear()).contains("it has 2 parts but 0 servers"));
    assert!(refusal(|it| it.parts[1].object = "../secret".into()).contains("is `../secret` of server 1"));
    assert!(refusal(|it| it.parts[0].bytes += 1).contains("by its plan"));
    assert!(refusal(|it| it.parts[0].checksums.clear()).contains("has 0 checksums"));
    assert!(refusal(|it| it.parts[0].plan.stripes[0].stride = 0).contains("a stripe that no parameter has"));
    assert!(refusal(|it| it.parts[0].plan.segments[0].range.end = usize::MAX).contains("a segment that no parameter"));
    assert!(refusal(|it| it.parts[1].plan.segments[0].range = 2047..4095).contains(names));
}
