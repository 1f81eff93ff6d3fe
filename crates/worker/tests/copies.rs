//! Checks at the allocator that a step's gradients leave Burn, and values enter it, without being copied.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use rand::rngs::StdRng;
use windlass_worker::batches::order::DataPosition;
use windlass_worker::model::{Defaults, Metrics, Model, Setup};
use windlass_worker::randomness::Draw;
use windlass_worker::replica::{Local, LocalConfig, Replica};

const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };

const INPUTS: usize = 389;
const OUTPUTS: usize = 97;
/// Nothing else in a step is as large.
const WEIGHT_BYTES: usize = INPUTS * OUTPUTS * size_of::<f32>();

/// The number of allocations of the weight's size.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all is left to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

fn count(layout: Layout) {
    ALLOCATED.fetch_add(usize::from(layout.size() == WEIGHT_BYTES), Ordering::Relaxed);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct OneLayer;

#[derive(Clone, clap::Args)]
struct NoFlags {}

#[derive(Module, Debug)]
struct Network {
    layer: Linear,
}

impl Model for OneLayer {
    const NAME: &'static str = "one-layer";
    const ABOUT: &'static str = "one matrix";
    type Flags = NoFlags;
    type Network = Network;
    type Batch = Tensor<2>;

    fn defaults(_flags: &NoFlags) -> Defaults {
        unreachable!("the test makes the model")
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        unreachable!("the test makes the model")
    }

    fn network(&self, device: &Device) -> Network {
        Network { layer: LinearConfig::new(INPUTS, OUTPUTS).init(device) }
    }

    fn samples(&self) -> usize {
        10
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Tensor<2>> {
        Ok(Tensor::ones([samples.len(), INPUTS], device))
    }

    fn loss(&self, network: &Network, batch: Tensor<2>) -> Tensor<1> {
        network.layer.forward(batch).tanh().sum()
    }

    fn evaluate(&self, _network: &Network, _device: &Device) -> anyhow::Result<Metrics> {
        Ok(Metrics::new())
    }
}

#[test]
fn a_step_allocates_each_gradient_once_and_values_are_loaded_in_its_place() {
    let mut replica = Local::new(OneLayer, LocalConfig::on_cpu(1)).unwrap();
    let batch = replica.batch(&[1, 2, 3], DRAW).unwrap();
    let before = ALLOCATED.load(Ordering::Relaxed);
    let result = replica.step(batch).unwrap();
    assert!(result.loss.is_finite());
    let stepped = ALLOCATED.load(Ordering::Relaxed);
    replica.load(result.gradients);
    let loaded = ALLOCATED.load(Ordering::Relaxed);
    assert_eq!((stepped - before, loaded - stepped), (1, 0), "allocations of a step, and of a load");
}
