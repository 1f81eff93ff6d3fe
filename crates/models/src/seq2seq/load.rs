//! Builds a network from values by name, as in a checkpoint.

use burn::tensor::Device;
pub use windlass_worker::replica::tensors::MissingValues;
use windlass_worker::replica::tensors::load_by_name;

use super::network::{Shape, Translator};

impl Shape {
    /// Checks that the values fit a network of this shape, before such a network is allocated.
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
    /// Builds the network with these values, by the names of its parameters; tables are whole.
    pub fn with_values(
        shape: &Shape,
        values: impl FnMut(&str) -> Option<Vec<f32>>,
        device: &Device,
    ) -> Result<Self, MissingValues> {
        load_by_name(Self::new(shape, device), values, device)
    }
}
