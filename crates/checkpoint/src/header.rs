//! The head of a safetensors file: eight bytes with its length, then names, types, shapes and offsets as JSON.
//! Written before the tensors, so that these can follow as a stream.

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorSpec {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl TensorSpec {
    pub fn f32(name: impl Into<String>, shape: Vec<usize>) -> Self {
        Self { name: name.into(), dtype: Dtype::F32, shape }
    }

    /// Returns how many bytes the tensor takes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// Encodes the header of a file that holds these tensors one after the other, padded so that they start aligned.
pub(crate) fn encode<'a>(metadata: impl IntoIterator<Item = (&'a str, String)>, tensors: &[TensorSpec]) -> Vec<u8> {
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.bytes();
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
        (tensor.name.clone(), info)
    });
    let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let metadata = Metadata::new(Some(metadata), infos.collect()).expect("offsets follow from shapes");
    let mut json = serde_json::to_vec(&metadata).expect("a header is plain JSON");
    json.resize(json.len().next_multiple_of(8), b' ');
    [(json.len() as u64).to_le_bytes().as_slice(), &json].concat()
}

/// Decodes the tensors that a header lists, by offset, or explains why it cannot.
pub(crate) fn decode(head: &[u8]) -> Result<Vec<TensorSpec>, String> {
    let (length, json) = head.split_first_chunk().ok_or("it is shorter than eight bytes")?;
    let json = usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|length| json.get(..length));
    let json = json.ok_or("its length is not that of the header")?;
    let metadata: Metadata = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let mut tensors: Vec<_> = metadata.tensors().into_iter().collect();
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let spec = |(name, info): (String, &TensorInfo)| TensorSpec { name, dtype: info.dtype, shape: info.shape.clone() };
    Ok(tensors.into_iter().map(spec).collect())
}
