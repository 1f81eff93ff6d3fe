//! The models that come with Windlass, written only against the public trait.

pub mod autoencoder;
mod digits;
pub mod linear;
pub mod mnist;
pub mod picture;
mod randomness;
pub mod stn;
mod truncated_normal;

pub use autoencoder::Autoencoder;
pub use linear::Linear;
pub use mnist::Mnist;
pub use stn::SpatialTransformer;
