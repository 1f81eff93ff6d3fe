//! Builds idx files, valid and invalid, for tests.

/// The bytes of an idx file of unsigned bytes.
pub fn idx_bytes(dimensions: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|length| length.to_be_bytes()));
    bytes.extend(elements);
    bytes
}
