//! `--accumulate`: a step computed in parts is the step of the whole batch, for every model.

use clap::{Args, Command, FromArgMatches};
use windlass_models::{Autoencoder, Linear, Mnist, Seq2Seq, SpatialTransformer};
use windlass_worker::batches::order::DataPosition;
use windlass_worker::model::{Model, Setup};
use windlass_worker::randomness::Draw;
use windlass_worker::replica::{Local, LocalConfig, Replica, StepResult};

const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 } };

/// The first step of a model on its first samples, in so many parts.
fn step<M: Model>(flags: &str, samples: usize, accumulate: usize) -> StepResult {
    let command = M::Flags::augment_args(Command::new(M::NAME).no_binary_name(true));
    let flags = M::Flags::from_arg_matches(&command.get_matches_from(flags.split_whitespace())).unwrap();
    let model = M::load(&flags, &Setup { seed: 1, data_dir: None }).unwrap();
    let mut replica = Local::new(model, LocalConfig { accumulate, ..LocalConfig::on_cpu(1) }).unwrap();
    let batch = replica.batch(&(0..samples).collect::<Vec<_>>(), DRAW).unwrap();
    let mut values = replica.values();
    for asked in batch.rows() {
        let (width, table) = (replica.table()[asked.parameter].width(), &mut values[asked.parameter.0 as usize]);
        *table = asked.rows.iter().flat_map(|row| &table[*row as usize * width..][..width]).copied().collect();
    }
    replica.load(values.into_iter().map(Into::into).collect());
    replica.step(batch).unwrap()
}

fn assert_same<M: Model>(flags: &str, samples: usize) {
    let whole = step::<M>(flags, samples, 1);
    for parts in [2, 3, 4] {
        let several = step::<M>(flags, samples, parts);
        let name = format!("{} {flags} in {parts} parts", M::NAME);
        assert_eq!(several.samples, samples, "{name}");
        assert!(
            (several.loss - whole.loss).abs() <= 1e-4 * whole.loss.abs(),
            "{name}: {} {}",
            several.loss,
            whole.loss
        );
        for (index, (parts, whole)) in several.gradients.iter().zip(&whole.gradients).enumerate() {
            assert_eq!(parts.len(), whole.len(), "{name}: rows of gradient {index}");
            let largest = whole.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for (one, other) in parts.iter().zip(&**whole) {
                assert!((one - other).abs() <= 1e-4 * largest + 1e-7, "{name}: gradient {index}: {one} {other}");
            }
        }
    }
}

#[test]
fn a_summed_and_a_mean_loss_make_the_same_gradient_in_parts() {
    assert_same::<Mnist>("", 96);
    assert_same::<Mnist>("--variant sigmoid", 96);
    assert_same::<Linear>("", 12);
}

#[test]
fn pictures_make_the_same_gradient_in_parts() {
    assert_same::<Autoencoder>("", 48);
    assert_same::<SpatialTransformer>("--images 100 --keep-probability 1", 24);
}

/// With tables by row each part has the rows of its own sentences, and the step those of all.
#[test]
fn translation_makes_the_same_gradient_in_parts() {
    for tables in ["", "--dense-tables"] {
        assert_same::<Seq2Seq>(&format!("--size 32 --layers 1 --samples 100000 {tables}"), 24);
    }
}
