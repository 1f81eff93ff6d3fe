//! The values of a checkpoint by the names of the parameters, for other programs and for evaluation.

use std::io::Write;
use std::path::Path;

use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{Access, ParameterId, ParameterSpec};
use windlass_core::plan::{RowStripe, Segment, ServerPlan};
use windlass_files::AtomicFile;

use crate::error::CheckpointError;
use crate::header::{self, TensorSpec};
use crate::manifest::Manifest;
use crate::restore::{Restore, SlotPolicy};
use crate::store::Store;

/// How many elements are gathered at a time, if no parameter is larger: 64 MiB.
const BATCH_ELEMENTS: usize = 16 << 20;

/// A parameter with its values.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedValues {
    /// The module path of the parameter.
    pub name: String,
    /// The shape of the parameter.
    pub shape: Vec<usize>,
    /// The values in row-major order.
    pub values: Vec<f32>,
}

impl Store {
    /// All values of a checkpoint, in the order of the parameter table.
    pub async fn load_values(&self, manifest: &Manifest) -> Result<Vec<NamedValues>, CheckpointError> {
        let mut all = Vec::with_capacity(manifest.run.parameters.len());
        for batch in batches(manifest) {
            all.extend(self.gather(manifest, &batch).await?);
        }
        Ok(all)
    }

    /// Writes all values of a checkpoint to one safetensors file, each under its module path. The file appears once it
    /// is complete, and replaces any that exists. Needs memory for the largest parameter.
    pub async fn export(&self, manifest: &Manifest, path: &Path) -> Result<(), CheckpointError> {
        let failed = |source| CheckpointError::Export { path: path.display().to_string(), source };
        let mut file = AtomicFile::create(path).map_err(failed)?;
        file.write_all(&export_header(manifest)).map_err(failed)?;
        for batch in batches(manifest) {
            for parameter in self.gather(manifest, &batch).await? {
                file.write_all(bytemuck::cast_slice(&parameter.values)).map_err(failed)?;
            }
        }
        file.finish_durably().map_err(failed)
    }

    async fn gather(&self, manifest: &Manifest, batch: &[Parameter<'_>]) -> Result<Vec<NamedValues>, CheckpointError> {
        let mut plan = ServerPlan::default();
        for &(parameter, spec) in batch {
            match spec.access {
                Access::Dense => plan.segments.push(Segment { parameter, range: 0..spec.elements() }),
                Access::Rows => plan.stripes.push(RowStripe { parameter, first: 0, stride: 1, count: spec.rows() }),
            }
        }
        let table = &manifest.run.parameters;
        let wanted = Restore { table, plan: &plan, optimizer: &Optimizer::Sgd, slots: SlotPolicy::Reset };
        let image = self.assemble(manifest, &wanted).await?;
        let (mut dense, mut tables) = (image.dense.values.as_slice(), image.tables.iter());
        let values = batch.iter().map(|(_, spec)| {
            let values = match spec.access {
                Access::Dense => dense.split_off(..spec.elements()).expect("the plan has all of them"),
                Access::Rows => &tables.next().expect("the plan has all of them").block().values,
            };
            NamedValues { name: spec.name.clone(), shape: spec.shape.clone(), values: values.to_vec() }
        });
        Ok(values.collect())
    }
}

type Parameter<'a> = (ParameterId, &'a ParameterSpec);

/// The parameters in order, a few at a time: a chunk of a part often holds many small ones.
fn batches(manifest: &Manifest) -> Vec<Vec<Parameter<'_>>> {
    let mut batches: Vec<Vec<Parameter<'_>>> = Vec::new();
    let mut room = 0;
    for parameter in manifest.run.parameters.iter() {
        let elements = parameter.1.elements();
        match batches.last_mut() {
            Some(batch) if elements <= room => batch.push(parameter),
            _ => {
                batches.push(vec![parameter]);
                room = BATCH_ELEMENTS;
            }
        }
        room = room.saturating_sub(elements);
    }
    batches
}

fn export_header(manifest: &Manifest) -> Vec<u8> {
    let parameters = manifest.run.parameters.iter();
    let tensors: Vec<_> = parameters.map(|(_, spec)| TensorSpec::f32(&*spec.name, spec.shape.clone())).collect();
    let metadata = [
        // PyTorch's loaders look for this entry.
        ("format", "pt".to_owned()),
        ("model", manifest.run.model.clone()),
        ("step", manifest.id.step.to_string()),
        ("checkpoint", manifest.id.to_string()),
    ];
    header::encode(metadata, &tensors)
}
