//! `--accumulate` and `--towers`: for every model, a step computed in parts, one after another or in parallel, equals
//! the step on the whole batch.

use burn::tensor::Device;
use clap::{Args, Command, FromArgMatches};
use windlass_models::{Autoencoder, Linear, Mnist, Seq2Seq, SpatialTransformer};
use windlass_worker::batches::order::DataPosition;
use windlass_worker::model::{Model, Setup};
use windlass_worker::randomness::Draw;
use windlass_worker::replica::{Local, LocalConfig, Replica, StepResult, Towers};

const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };

/// How a step is computed.
#[derive(Debug, Clone, Copy)]
enum Split {
    Parts(usize),
    Towers(usize),
    /// Two towers of two parts each.
    Both,
}

fn replica<M: Model>(model: M, split: Split) -> Box<dyn Replica> {
    let (towers, accumulate) = match split {
        Split::Parts(parts) => (1, parts),
        Split::Towers(towers) => (towers, 1),
        Split::Both => (2, 2),
    };
    let config = LocalConfig { accumulate, ..LocalConfig::on_cpu(1) };
    match towers {
        1 => Box::new(Local::new(model, config).unwrap()),
        _ => Box::new(Towers::of(model, &vec![Device::flex(); towers], towers, &config).unwrap()),
    }
}

/// Makes the first step of a model on its first samples.
fn step<M: Model>(flags: &str, samples: usize, split: Split) -> StepResult {
    let command = M::Flags::augment_args(Command::new(M::NAME).no_binary_name(true));
    let flags = M::Flags::from_arg_matches(&command.get_matches_from(flags.split_whitespace())).unwrap();
    let mut replica = replica(M::load(&flags, &Setup { seed: 1, data_dir: None }).unwrap(), split);
    let batch = || replica.source().batch(&(0..samples).collect::<Vec<_>>(), DRAW).unwrap();
    let (batch, again) = (batch(), batch());
    let mut values = replica.first_values();
    for asked in batch.rows() {
        let (width, table) = (replica.table()[asked.parameter].width(), &mut values[asked.parameter.0 as usize]);
        let rows = asked.rows.iter().flat_map(|row| &table[*row as usize * width..][..width]);
        *table = rows.copied().collect::<Vec<f32>>().into();
    }
    replica.load(values.clone());
    let first = replica.step(batch).unwrap();
    replica.load(values);
    let second = replica.step(again).unwrap();
    assert_eq!(first.gradients, second.gradients, "{}, {split:?}: the same batch again", M::NAME);
    first
}

fn assert_same<M: Model>(flags: &str, samples: usize) {
    let whole = step::<M>(flags, samples, Split::Parts(1));
    let splits = [2, 3, 4].map(Split::Parts).into_iter().chain([2, 3, 5].map(Split::Towers)).chain([Split::Both]);
    for split in splits {
        let several = step::<M>(flags, samples, split);
        let name = format!("{} {flags} in {split:?}", M::NAME);
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

/// Ten samples make two shares of five, each of parts of three and two; fourteen make parts of four and three.
#[test]
fn every_sample_counts_the_same_in_parts_of_unequal_size() {
    assert_same::<Mnist>("--variant sigmoid", 10);
    [10, 14].into_iter().for_each(|samples| assert_same::<Linear>("", samples));
}

#[test]
fn pictures_make_the_same_gradient_in_parts() {
    assert_same::<Autoencoder>("", 48);
    assert_same::<SpatialTransformer>("--images 100 --keep-probability 1", 24);
}

/// With tables by row, each part has the rows of its own sentences, and the step has those of all.
#[test]
fn translation_makes_the_same_gradient_in_parts() {
    for tables in ["", "--dense-tables"] {
        assert_same::<Seq2Seq>(&format!("--size 32 --layers 1 --samples 100000 {tables}"), 24);
    }
}
