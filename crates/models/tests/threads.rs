//! The number of threads does not change a single bit of any model's step, so the results of a run do not depend on how
//! many threads a worker has, or found to be fastest.

use clap::{Args, Command, FromArgMatches};
use windlass_models::{Autoencoder, Mnist, Seq2Seq, SpatialTransformer};
use windlass_worker::batches::order::DataPosition;
use windlass_worker::model::{Model, Setup};
use windlass_worker::randomness::Draw;
use windlass_worker::replica::{Local, LocalConfig, Replica};

const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };

/// A model with these flags, and a batch of its first samples.
fn load<M: Model>(flags: &str, samples: usize) -> (Local<M>, Vec<usize>) {
    let command = M::Flags::augment_args(Command::new(M::NAME).no_binary_name(true));
    let flags = M::Flags::from_arg_matches(&command.get_matches_from(flags.split_whitespace())).unwrap();
    let model = M::load(&flags, &Setup { seed: 1, data_dir: None }).unwrap();
    let mut replica = Local::new(model, LocalConfig::on_cpu(1)).unwrap();
    let samples: Vec<usize> = (0..samples).collect();
    load_rows(&mut replica, &samples);
    (replica, samples)
}

/// Returns the loss and the gradients of a step, as bits, computed on this many threads.
fn step<M: Model>(replica: &mut Local<M>, samples: &[usize], threads: usize) -> Vec<Vec<u32>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let result = pool.install(move || replica.step(replica.batch(samples, DRAW).unwrap())).unwrap();
    assert!(result.loss.is_finite());
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    std::iter::once(vec![result.loss.to_bits()]).chain(result.gradients.iter().map(|gradient| bits(gradient))).collect()
}

/// Loads the rows that the batch touches: a step has no others.
fn load_rows<M: Model>(replica: &mut Local<M>, samples: &[usize]) {
    let batch = replica.batch(samples, DRAW).unwrap();
    let mut values = replica.values();
    for asked in batch.rows() {
        let (width, table) = (replica.table()[asked.parameter].width(), &mut values[asked.parameter.0 as usize]);
        *table = asked.rows.iter().flat_map(|row| &table[*row as usize * width..][..width]).copied().collect();
    }
    replica.load(values.into_iter().map(Into::into).collect());
}

fn assert_same_bits<M: Model>(flags: &str, samples: usize) {
    let (mut replica, samples) = load::<M>(flags, samples);
    let one = step(&mut replica, &samples, 1);
    for threads in [2, 3, 4, 7] {
        let several = step(&mut replica, &samples, threads);
        let differ: Vec<usize> = (0..one.len()).filter(|index| one[*index] != several[*index]).collect();
        assert!(differ.is_empty(), "{} {flags}, {threads} threads: the loss (0) or gradients {differ:?}", M::NAME);
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_mnist() {
    assert_same_bits::<Mnist>("", 100);
    assert_same_bits::<Mnist>("--variant sigmoid --hidden 1024,1024", 101);
}

#[test]
fn the_number_of_threads_changes_no_bit_of_the_autoencoder() {
    for variant in ["plain", "variational"] {
        assert_same_bits::<Autoencoder>(&format!("--variant {variant}"), 128);
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_the_spatial_transformer() {
    assert_same_bits::<SpatialTransformer>("--images 200", 101);
}

#[test]
fn the_number_of_threads_changes_no_bit_of_translation() {
    assert_same_bits::<Seq2Seq>("", 64);
    assert_same_bits::<Seq2Seq>("--size 100 --layers 1", 37);
    assert_same_bits::<Seq2Seq>("--cell lstm", 50);
}
