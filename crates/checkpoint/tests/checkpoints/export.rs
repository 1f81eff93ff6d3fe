//! The values of a checkpoint under the names of the parameters, read by other programs.

use std::fs;
use std::process::Command;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use windlass_checkpoint::{CheckpointError, CheckpointId, Manifest, Store};
use windlass_core::run::RunSpec;

use crate::support::{large, memory, number, save, small};

const STEP: u64 = 5;

/// The values of a parameter, by its position.
fn expected(run: &RunSpec, index: usize) -> Vec<f32> {
    let (parameter, spec) = run.parameters.iter().nth(index).unwrap();
    (0..spec.elements()).map(|element| number(STEP, parameter, 0, element)).collect()
}

async fn saved(run: &RunSpec) -> (Store, Manifest) {
    let store = memory();
    let manifest = save(&store, run, 3, CheckpointId { step: STEP, generation: 0, attempt: 1 }).await.unwrap();
    (store, manifest)
}

#[tokio::test]
async fn values_are_loaded_by_name_in_the_order_of_the_table() {
    for run in [small(), large()] {
        let (store, manifest) = saved(&run).await;
        let values = store.load_values(&manifest).await.unwrap();
        assert_eq!(values.len(), run.parameters.len());
        for (index, ((_, spec), values)) in run.parameters.iter().zip(values).enumerate() {
            assert_eq!((&values.name, &values.shape), (&spec.name, &spec.shape));
            assert!(values.values == expected(&run, index), "{}", spec.name);
        }
    }
}

#[tokio::test]
async fn an_export_is_one_safetensors_file_of_all_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    fs::write(&path, "an older export").unwrap();
    for run in [small(), large()] {
        let (store, manifest) = saved(&run).await;
        store.export(&manifest, &path).await.unwrap();

        let file = fs::read(&path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&file).unwrap();
        let metadata = header.metadata().as_ref().unwrap();
        assert_eq!([&metadata["format"], &metadata["model"], &metadata["step"]], ["pt", "oracle", "5"]);
        let tensors = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(tensors.len(), run.parameters.len());
        for (index, (_, spec)) in run.parameters.iter().enumerate() {
            let tensor = tensors.tensor(&spec.name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &spec.shape[..]));
            assert!(tensor.data() == bytemuck::cast_slice::<f32, u8>(&expected(&run, index)), "{}", spec.name);
        }
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing but the export is left");
}

#[tokio::test]
async fn an_export_that_cannot_be_written_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (store, manifest) = saved(&small()).await;
    let error = store.export(&manifest, &directory.path().join("missing/model.safetensors")).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Export { .. }));
    assert!(error.to_string().contains("missing/model.safetensors`: No such file"), "{error}");
}

#[tokio::test]
async fn python_reads_exports_and_parts() {
    let Ok(python) = std::env::var("WINDLASS_PYTHON") else {
        println!("skipped: WINDLASS_PYTHON names no interpreter with safetensors and numpy");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let run = small();
    let store = Store::open(directory.path().to_str().unwrap()).unwrap();
    let manifest = save(&store, &run, 1, CheckpointId::new(STEP, 0)).await.unwrap();
    store.export(&manifest, &directory.path().join("model.safetensors")).await.unwrap();
    for (index, (_, spec)) in run.parameters.iter().enumerate() {
        let bytes = bytemuck::cast_slice::<f32, u8>(&expected(&run, index)).to_vec();
        fs::write(directory.path().join(&spec.name), bytes).unwrap();
    }
    let script = r#"
import sys, numpy
from safetensors.numpy import load_file
directory, part = sys.argv[1:]
tensors = load_file(f"{directory}/model.safetensors")
for name, tensor in tensors.items():
    expected = numpy.fromfile(f"{directory}/{name}", dtype="<f4").reshape(tensor.shape)
    assert tensor.dtype == numpy.float32 and (tensor == expected).all(), name
assert tensors["positions"].shape == (3, 2, 4) and tensors["temperature"].shape == ()
part = load_file(f"{directory}/{part}")
assert (part["embedding[0::1]"].ravel() == tensors["embedding"].ravel()).all()
assert (part["embedding[0::1]/steps"] == numpy.arange(29) * 7 + 5).all()
assert part["encoder.weight[0..3500]/second_moment"].shape == (3500,)
print(len(tensors), "tensors agree")
"#;
    let output = Command::new(python)
        .args(["-c", script, directory.path().to_str().unwrap(), &manifest.parts[0].object])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "6 tensors agree");
}
