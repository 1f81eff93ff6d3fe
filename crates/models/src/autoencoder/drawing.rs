//! The picture of an autoencoder: test images, its inputs, its reconstructions, and images made from random codes.

use burn::tensor::{Device, Tensor, TensorData};

use super::{Autoencoder, Coder, PIXELS, Variant};
use crate::batch_noise::{BatchNoise, Purpose};
use crate::digits;
use crate::picture::{Picture, Tile};

const SIDE: usize = windlass_data::mnist::SIDE;
/// The number of images per row.
const COLUMNS: usize = 10;
/// The number of groups of test images; below, of rows of generated ones.
const GROUPS: usize = 2;
const SAMPLE_ROWS: usize = 4;

impl Autoencoder {
    pub(super) fn draw(&self, network: &Coder, device: &Device) -> Picture {
        let test = self.images.test();
        let shown = digits::one_of_each(&test.labels, GROUPS * COLUMNS);
        let mut picture = Picture::new(&self.title());
        for samples in shown.chunks(COLUMNS) {
            let batch = self.make_batch(test, samples, device);
            picture = picture.with_group("original", self.tiles(batch.target.clone()));
            if let Some(corrupted) = &batch.corrupted {
                picture = picture.with_row("corrupted", self.tiles(corrupted.clone()));
            }
            let input = batch.corrupted.unwrap_or(batch.target);
            let (drawn, _divergence) = network.forward(input, None);
            picture = picture.with_row("drawn again", self.tiles(drawn));
        }
        if let Some((code, latent)) = network.code.as_ref().zip(self.flags.latent()) {
            let codes = BatchNoise::of_batch(self.seed, &[]).normal(Purpose::Latent, SAMPLE_ROWS * COLUMNS, latent);
            let codes = Tensor::from_data(TensorData::new(codes, [SAMPLE_ROWS * COLUMNS, latent]), device);
            let tiles = self.tiles(network.decode(code, codes));
            for (index, row) in tiles.chunks(COLUMNS).enumerate() {
                picture = match index {
                    0 => picture.with_group("made up", row.to_vec()),
                    _ => picture.with_row("", row.to_vec()),
                };
            }
        }
        picture
    }

    fn title(&self) -> String {
        let variant = match self.flags.variant {
            Variant::Plain => String::new(),
            Variant::Noise => format!(", noise {}", self.flags.noise_scale.unwrap_or(super::NOISE_SCALE)),
            Variant::Masking => format!(", keeping {}", self.flags.keep_probability.unwrap_or(super::KEEP)),
            Variant::Variational => format!(", code of {}", self.flags.latent.unwrap_or(super::LATENT)),
        };
        format!("autoencoder of {} units{variant}: test images", self.flags.hidden)
    }

    fn tiles(&self, images: Tensor<2>) -> Vec<Tile> {
        let mut values: Vec<f32> = images.into_data().iter::<f32>().collect();
        self.standard.undo(&mut values);
        values.chunks_exact(PIXELS).map(|image| Tile::new(SIDE, image)).collect()
    }
}
