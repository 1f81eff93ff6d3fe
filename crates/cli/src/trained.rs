//! The values of a trained network, for programs that use them.

use anyhow::Context;
use burn::module::Module;
use burn::tensor::Device;
use windlass_checkpoint::Store;
use windlass_worker::replica::tensors::{MissingValues, load_by_name};

use crate::store_location;

/// A trained network, loaded from a checkpoint.
///
/// ```no_run
/// # fn main() -> windlass::anyhow::Result<()> {
/// use windlass::burn::nn::LinearConfig;
/// use windlass::burn::tensor::Device;
///
/// let trained = windlass::Trained::load("runs/mine-1")?;
/// println!("{} after {} steps", trained.model, trained.step);
/// let device = Device::flex();
/// let network = trained.fill(LinearConfig::new(2, 1).init(&device), &device)?;
/// # drop(network);
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
    /// Its values in row-major order: the last dimension varies fastest.
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

    /// Fills a network of the same structure with the trained values.
    ///
    /// # Errors
    /// Fails if a parameter of the network has no values here, or a different number of them.
    pub fn fill<M: Module>(&self, network: M, device: &Device) -> Result<M, MissingValues> {
        let values = |name: &str| self.parameters.iter().find(|parameter| parameter.name == name);
        load_by_name(network, |name| values(name).map(|parameter| parameter.values.clone()), device)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;
    use burn::tensor::Tensor;

    use super::*;

    #[test]
    fn a_network_of_the_same_structure_gets_the_trained_values() {
        let parameter = |name: &str, shape: &[usize], values: &[f32]| TrainedParameter {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        let parameters = vec![parameter("weight", &[2, 1], &[1.0, 2.0]), parameter("bias", &[1], &[3.0])];
        let trained = Trained { model: "line".to_owned(), step: 1, parameters };
        let device = Device::flex();
        let network = trained.fill(LinearConfig::new(2, 1).init(&device), &device).unwrap();
        let answer = network.forward(Tensor::<2>::from_data([[10.0, 100.0]], &device));
        assert_eq!(answer.into_data().try_to_vec::<f32>().unwrap(), [213.0]);
        let error = trained.fill(LinearConfig::new(3, 1).init(&device), &device).unwrap_err();
        assert_eq!(error.to_string(), "parameter `weight` of shape [3, 1] has 2 values");
    }
}
