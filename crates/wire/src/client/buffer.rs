//! Where a parameter's floats are.

/// The memory of one parameter: a gradient leaves from it, and values arrive in it. The client works on whatever memory
/// the caller's tensors have, because another kind would take a copy.
pub trait FloatBuffer: Default {
    /// So many zeros.
    fn zeros(len: usize) -> Self;

    /// What is in it.
    fn floats(&self) -> &[f32];

    /// The same, to be replaced.
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
