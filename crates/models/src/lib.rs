//! The models that come with Windlass, written only against the public trait.

pub mod linear;
pub mod mnist;
pub mod seq2seq;
mod truncated_normal;

pub use linear::Linear;
pub use mnist::Mnist;
pub use seq2seq::Seq2Seq;
