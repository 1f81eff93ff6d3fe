//! Batches packed part by part to be sent to another process, and the tensors of a message that carry them.

use burn::tensor::{DType, TensorData};
use windlass_wire::compute::{Contents, ElementKind, Section, Tensor};

use crate::travel::{Parcel, TravelError};

/// The part of a batch that is computed at a time, packed. The rows that it needs follow from the batch.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedPart {
    /// The number of samples.
    pub samples: usize,
    /// The seed of Burn's random numbers in the forward pass.
    pub seed: u64,
    /// The batch.
    pub parcel: Parcel,
}

/// Returns a tensor of a parcel as a section that is sent without a copy.
pub(crate) fn section(data: &TensorData) -> Section<'_> {
    let kind = match data.dtype() {
        DType::F32 => ElementKind::F32,
        DType::I64 => ElementKind::I64,
        _ => ElementKind::U8, // as parcels have no others
    };
    Section::of_bytes(kind, data.shape().as_slice(), data.as_bytes())
}

/// Takes the next `count` tensors of a message as a parcel.
pub(crate) fn parcel(tensors: &mut impl Iterator<Item = Tensor>, count: usize) -> Result<Parcel, TravelError> {
    let mut parcel = Parcel::default();
    for _ in 0..count {
        let Tensor { shape, contents } =
            tensors.next().ok_or_else(|| TravelError::Malformed("too few tensors".to_owned()))?;
        parcel.put(match contents {
            Contents::F32(values) => TensorData::new(values, shape),
            Contents::I64(values) => TensorData::new(values, shape),
            Contents::U8(values) => TensorData::new(values, shape),
        });
    }
    Ok(parcel)
}
