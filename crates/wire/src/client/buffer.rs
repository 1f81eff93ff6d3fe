//! The memory that holds a parameter's floats.

/// The memory of one parameter: a gradient is sent from it, and values are received into it. The client works on the
/// memory of the caller's own tensors, because any other would need a copy.
pub trait FloatBuffer: Default {
    /// A buffer of `len` zeros.
    fn zeros(len: usize) -> Self;

    /// The contents.
    fn floats(&self) -> &[f32];

    /// The contents, for writing.
    fn floats_mut(&mut self) -> &mut [f32];
}

impl FloatBuffer for Vec<f32> {
    fn zeros(len: usize) -> Self {
        vec![0.0; len]
    }

    fn floats(&self) -> &[f32] {
        self
    }

    fn floats_mut(&mut self) -> &mut [f32] {
        self
    }
}
