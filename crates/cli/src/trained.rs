//! The values of a trained network, for programs that use them.

use anyhow::Context;
use windlass_checkpoint::Store;

use crate::store_location;

/// A trained network, as a checkpoint has it.
///
/// ```no_run
/// # fn main() -> windlass::anyhow::Result<()> {
/// use windlass::burn::tensor::{Device, Tensor, TensorData};
///
/// let trained = windlass::Trained::load("runs/mnist-1")?;
/// println!("{} after {} steps", trained.model, trained.step);
/// let first = &trained.parameters[0];
/// let weights = TensorData::new(first.values.clone(), first.shape.clone());
/// let weights: Tensor<2> = Tensor::from_data(weights, &Device::flex());
/// # drop(weights);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// The name of its model.
    pub model: String,
    /// The global step that it was trained to.
    pub step: u64,
    /// Its parameters, in the order in which Burn visits them.
    pub parameters: Vec<TrainedParameter>,
}

/// A parameter of a trained network.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedParameter {
    /// Its path in the Burn module, such as `layers.0.weight`.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its values, the last dimension running fastest.
    pub values: Vec<f32>,
}

impl Trained {
    /// Loads the newest whole checkpoint of a run directory or a store (a directory, or s3://, gs:// or az://), or the one
    /// whose manifest is named. Blocks, so it must not be called on an async runtime.
    pub fn load(place: &str) -> anyhow::Result<Self> {
        let (location, id) = store_location::split(place).map_err(|failure| anyhow::anyhow!("{}", failure.message))?;
        let location = store_location::store_in(location);
        anyhow::ensure!(
            location.contains("://") || std::path::Path::new(&location).is_dir(),
            "there is no directory {location}"
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let store = Store::open(&location)?;
            let manifest = match id {
                Some(id) => store.load(&id).await?,
                None => store.newest_whole().await?.manifest.with_context(|| format!("no checkpoint in {location}"))?,
            };
            let values = store.load_values(&manifest).await?.into_iter();
            let parameters =
                values.map(|named| TrainedParameter { name: named.name, shape: named.shape, values: named.values });
            Ok(Self { model: manifest.run.model.clone(), step: manifest.id.step, parameters: parameters.collect() })
        })
    }
}
