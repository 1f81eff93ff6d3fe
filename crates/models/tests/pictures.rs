//! Tests each image model on its own: it memorises a few samples, and does so the same way every time.

use windlass_core::block::Block;
use windlass_core::optimizer::{Adam, Optimizer, Update};
use windlass_models::autoencoder::{Autoencoder, AutoencoderFlags, Variant};
use windlass_models::stn::{self, SpatialTransformer, StnFlags, Transformer};
use windlass_worker::batches::order::DataPosition;
use windlass_worker::model::{Model, Setup};
use windlass_worker::randomness::Draw;
use windlass_worker::replica::{Local, LocalConfig, Replica};

const SAMPLES: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// These models derive their random numbers from their samples.
const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };

fn setup(seed: u64) -> Setup {
    Setup { seed, data_dir: None }
}

fn autoencoder(variant: Variant, seed: u64) -> Autoencoder {
    let flags = AutoencoderFlags {
        variant,
        hidden: 64,
        noise_scale: None,
        keep_probability: None,
        latent: None,
        samples: None,
    };
    Autoencoder::load(&flags, &setup(seed)).unwrap()
}

fn stn(variant: stn::Variant, transformer: Transformer, seed: u64) -> SpatialTransformer {
    let flags = StnFlags {
        variant,
        transformer,
        localisation: 20,
        filters: 8,
        hidden: 64,
        keep_probability: 0.8,
        images: 100,
        samples: None,
    };
    SpatialTransformer::load(&flags, &setup(seed)).unwrap()
}

/// The loss on the same few samples before each of `steps` steps of Adam.
fn losses<M: Model>(model: M, steps: u64) -> Vec<f32> {
    let optimizer = Optimizer::Adam(Adam::default());
    let mut replica = Local::new(model, LocalConfig::on_cpu(1)).unwrap();
    let mut blocks: Vec<Block> = replica
        .values()
        .into_iter()
        .map(|values| Block { values: values.clone(), ..Block::new(values.len(), &optimizer) })
        .collect();
    let mut step = |step: u64| {
        let result = replica.step(replica.batch(&SAMPLES, DRAW).unwrap()).unwrap();
        for (block, gradient) in blocks.iter_mut().zip(&result.gradients) {
            block.apply(&optimizer, &Update { learning_rate: 0.003, step, scale: 1.0 }, gradient);
        }
        replica.load(blocks.iter().map(|block| block.values.clone().into()).collect());
        result.loss
    };
    (1..=steps).map(&mut step).collect()
}

fn assert_learns<M: Model>(model: M, steps: u64, share: f32) {
    let losses = losses(model, steps);
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last < share * first, "from {first} to {last} in {steps} steps");
}

#[test]
fn every_variant_of_the_autoencoder_learns_a_few_digits_by_heart() {
    assert_learns(autoencoder(Variant::Plain, 1), 60, 0.3);
    assert_learns(autoencoder(Variant::Noise, 1), 60, 0.3);
    assert_learns(autoencoder(Variant::Masking, 1), 60, 0.3);
    assert_learns(autoencoder(Variant::Variational, 1), 150, 0.6);
}

#[test]
fn every_variant_of_the_transformer_learns_a_few_canvases_by_heart() {
    assert_learns(stn(stn::Variant::Small, Transformer::On, 1), 50, 0.3);
    assert_learns(stn(stn::Variant::Small, Transformer::Off, 1), 50, 0.3);
    assert_learns(stn(stn::Variant::Large, Transformer::On, 1), 60, 0.5);
}

#[test]
fn a_seed_gives_the_same_losses_bit_for_bit_and_another_seed_gives_others() {
    let drawn = |seed| losses(autoencoder(Variant::Variational, seed), 5);
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
    let read = |seed| losses(stn(stn::Variant::Large, Transformer::On, seed), 3);
    assert_eq!(read(1), read(1));
    assert_ne!(read(1), read(2));
}

#[test]
fn noise_depends_on_the_batch_and_not_on_what_was_drawn_before() {
    let model = autoencoder(Variant::Noise, 1);
    let mut replica = Local::new(model, LocalConfig::on_cpu(1)).unwrap();
    let mut loss = |samples: &[usize]| replica.step(replica.batch(samples, DRAW).unwrap()).unwrap().gradients;
    let (first, other) = (loss(&SAMPLES), loss(&SAMPLES[1..]));
    assert_eq!(loss(&SAMPLES), first);
    assert_ne!(other, first);
}
