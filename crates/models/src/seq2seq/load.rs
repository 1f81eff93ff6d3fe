//! Makes a network of values that are known by name, as a checkpoint has them.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::network::{Shape, Translator};

/// A parameter whose values are not there or are not as many as they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parameter `{name}` of shape {shape:?} has {} values", got.map_or("no".to_owned(), |got| got.to_string()))]
pub struct MissingValues {
    /// The parameter.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How many values there are, if any.
    pub got: Option<usize>,
}

impl Shape {
    /// Whether the values are of such a network. It looks before a network as large as the shape says is made.
    pub(super) fn check(&self, values: &impl Fn(&str) -> Option<Vec<f32>>) -> Result<(), MissingValues> {
        let encoder = |layer: usize| format!("encoder.{layer}.bias");
        let expect = |name: String, shape: Vec<usize>| {
            let got = values(&name).map(|values| values.len());
            let expected = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
            if got.is_some() && got == expected { Ok(()) } else { Err(MissingValues { name, shape, got }) }
        };
        expect("from_embedding".to_owned(), vec![self.from_words, self.size])?;
        expect("to_embedding".to_owned(), vec![self.to_words, self.size])?;
        let gates = self.cell.gates() * self.size;
        expect(encoder(self.layers.saturating_sub(1)), vec![gates])?;
        match values(&encoder(self.layers)) {
            Some(values) => {
                Err(MissingValues { name: encoder(self.layers), shape: Vec::new(), got: Some(values.len()) })
            }
            None => Ok(()),
        }
    }
}

impl Translator {
    /// The network with these values, by the names of its parameters; tables are whole.
    pub fn with_values(
        shape: &Shape,
        values: impl FnMut(&str) -> Option<Vec<f32>>,
        device: &Device,
    ) -> Result<Self, MissingValues> {
        let mut loader = Loader { path: Vec::new(), values, device, missing: None };
        let network = Self::new(shape, device).map(&mut loader);
        loader.missing.map_or(Ok(network), Err)
    }
}

struct Loader<'a, F> {
    path: Vec<String>,
    values: F,
    device: &'a Device,
    /// The first that could not be loaded.
    missing: Option<MissingValues>,
}

impl<F: FnMut(&str) -> Option<Vec<f32>>> ModuleMapper for Loader<'_, F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        let shape = param.val().dims().to_vec();
        let values = (self.values)(&name);
        let got = values.as_ref().map(Vec::len);
        match values.filter(|values| values.len() == shape.iter().product::<usize>()) {
            Some(values) => param.map(|_| Tensor::from_data(TensorData::new(values, shape), self.device)),
            None => {
                self.missing.get_or_insert(MissingValues { name, shape, got });
                param
            }
        }
    }
}
