//! The models that come with Windlass, written only against the public trait.

pub mod autoencoder;
mod batch_noise;
mod classifier;
mod digits;
pub mod linear;
pub mod mnist;
pub mod picture;
pub mod seq2seq;
pub mod stn;
mod truncated_normal;

pub use autoencoder::Autoencoder;
pub use linear::Linear;
pub use mnist::Mnist;
pub use seq2seq::Seq2Seq;
pub use stn::SpatialTransformer;
