//! Training the default network, ReLU with Adam, leaves no denormal numbers, though a third of its units die.

use windlass_core::block::Block;
use windlass_core::optimizer::Update;
use windlass_models::Mnist;
use windlass_models::mnist::{MnistFlags, Variant};
use windlass_worker::batches::order::DataPosition;
use windlass_worker::model::{Model, Setup};
use windlass_worker::randomness::Draw;
use windlass_worker::replica::{Local, LocalConfig, Replica};

const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };

#[test]
fn a_thousand_steps_of_mnist_leave_no_denormal_number_behind() {
    let flags = MnistFlags { variant: Variant::Relu, hidden: vec![100] };
    let defaults = Mnist::defaults(&flags);
    let model = Mnist::load(&flags, &Setup { seed: 1, data_dir: None }).unwrap();
    let samples = model.samples();
    let mut replica = Local::new(model, LocalConfig::on_cpu(1)).unwrap();
    let mut blocks: Vec<Block> = Vec::new();
    for values in replica.values() {
        blocks.push(Block { values: values.clone(), ..Block::new(values.len(), &defaults.optimizer) });
    }
    for step in 1..=1000 {
        let batch: Vec<usize> = (0..100).map(|index| (step as usize * 100 + index) * 7919 % samples).collect();
        let gradients = replica.step(replica.batch(&batch, DRAW).unwrap()).unwrap().gradients;
        let update = Update { learning_rate: defaults.learning_rate, step, scale: 1.0 };
        for (block, gradient) in blocks.iter_mut().zip(&gradients) {
            block.apply(&defaults.optimizer, &update, gradient);
            assert!(!gradient.iter().any(|value| value.is_subnormal()), "a gradient in step {step}");
        }
        replica.load(blocks.iter().map(|block| block.values.clone().into()).collect());
    }
    let state = || blocks.iter().flat_map(|block| block.slots.iter().chain([&block.values])).flatten();
    let denormal = state().filter(|value| value.is_subnormal()).count();
    assert_eq!(denormal, 0, "of {}", state().count());
    // The means of gradients that are now zero have become zero.
    let means = &blocks[0].slots[0];
    assert!(means.iter().filter(|mean| **mean == 0.0).count() > means.len() / 10);
}
