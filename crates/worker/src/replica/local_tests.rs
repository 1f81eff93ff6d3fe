//! Tests of `local`: how the tensors of a network are treated that has more than trained weights.

use burn::module::{Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{Access, ParameterSpec};

use super::*;
use crate::batches::order::DataPosition;
use crate::model::{Defaults, Setup};

/// The special features of a test's network.
#[derive(Default, Clone)]
struct Peculiar {
    dropout: f64,
    frozen: bool,
    /// The network is made on a device without autodiff instead of the given one.
    plain: bool,
    integers: Vec<i64>,
    row_parameters: &'static [&'static str],
}

#[derive(Module, Debug)]
struct Network {
    embedding: Embedding,
    first: Linear,
    norm: BatchNorm,
    mask: Param<Tensor<1, Bool>>,
    order: Param<Tensor<1, Int>>,
    dropout: Dropout,
    last: Linear,
}

#[derive(clap::Args, Debug, Clone)]
struct NoFlags {}

impl Model for Peculiar {
    const NAME: &'static str = "peculiar";
    const ABOUT: &'static str = "";
    type Flags = NoFlags;
    type Network = Network;
    type Batch = Tensor<2>;

    fn defaults(_flags: &NoFlags) -> Defaults {
        Defaults { optimizer: Optimizer::Sgd, learning_rate: 0.1, batch_size: 4, ..Defaults::default() }
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        Ok(Self::default())
    }

    fn network(&self, device: &Device) -> Network {
        let inner = device.clone().inner();
        let device = if self.plain { &inner } else { device };
        let first = LinearConfig::new(2, 3).init(device);
        let order = if self.integers.is_empty() { &[2, 0, 1] } else { &self.integers[..] };
        Network {
            embedding: EmbeddingConfig::new(5, 2).init(device),
            first: if self.frozen { first.no_grad() } else { first },
            norm: BatchNormConfig::new(3).init(device),
            mask: Param::initialized(ParamId::new(), Tensor::from_data([true, false, true], device)),
            order: Param::initialized(ParamId::new(), Tensor::from_data(order, device)),
            dropout: DropoutConfig::new(self.dropout).init(),
            last: LinearConfig::new(3, 1).init(device),
        }
    }

    fn samples(&self) -> usize {
        8
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Tensor<2>> {
        Ok(points(samples, device))
    }

    fn loss(&self, network: &Network, batch: Tensor<2>) -> Tensor<1> {
        let features = network.norm.forward(network.first.forward(batch)).select(1, network.order.val());
        let mask = network.mask.val().unsqueeze::<2>().repeat_dim(0, features.dims()[0]);
        let features = features.mask_fill(mask.bool_not(), 0.5);
        network.last.forward(network.dropout.forward(features)).powi_scalar(2).mean()
    }

    fn evaluate(&self, network: &Network, device: &Device) -> anyhow::Result<Metrics> {
        let loss = self.loss(network, points(&[0, 1, 2, 3], device));
        Ok(Metrics::new().loss("loss", loss.into_data().iter::<f64>().sum()))
    }

    fn row_parameters(&self) -> &[&str] {
        self.row_parameters
    }

    fn rows(&self, _batch: &Tensor<2>) -> Vec<Vec<u32>> {
        self.row_parameters.iter().map(|_| vec![0, 3]).collect()
    }
}

fn points(samples: &[usize], device: &Device) -> Tensor<2> {
    let values: Vec<f32> = samples.iter().flat_map(|sample| [*sample as f32, (sample * sample) as f32]).collect();
    Tensor::from_data(TensorData::new(values, [samples.len(), 2]), device)
}

const BATCH: [usize; 4] = [1, 2, 3, 4];
const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };

fn replica(peculiar: Peculiar) -> Local<Peculiar> {
    Local::new(peculiar, LocalConfig::on_cpu(1)).unwrap()
}

fn load(replica: &mut Local<Peculiar>, values: Vec<Vec<f32>>) {
    replica.load(values.into_iter().map(Into::into).collect());
}

fn step(replica: &mut Local<Peculiar>, draw: Draw) -> (f32, Vec<TensorBuffer>) {
    let step = replica.step(replica.batch(&BATCH, draw).unwrap()).unwrap();
    (step.loss, step.gradients)
}

/// Returns a parameter's index in the table.
fn index(replica: &Local<Peculiar>, name: &str) -> usize {
    replica.table().iter().position(|(_, spec)| spec.name == name).unwrap()
}

/// Returns the running statistics after a step, as they are pushed.
fn pushed(replica: &mut Local<Peculiar>) -> [Vec<f32>; 2] {
    let gradients = replica.step(replica.batch(&BATCH, DRAW).unwrap()).unwrap().into_pushed();
    ["norm.running_mean", "norm.running_var"].map(|name| gradients[index(replica, name)].to_vec())
}

#[test]
fn what_burn_knows_of_a_tensor_decides_what_becomes_of_it() {
    let frozen = replica(Peculiar { frozen: true, ..Peculiar::default() });
    let kinds: Vec<_> = frozen.table().iter().map(|(_, spec)| (spec.name.as_str(), spec.kind, spec.access)).collect();
    assert_eq!(
        kinds,
        [
            ("embedding.weight", ParameterKind::Trained, Access::Dense),
            ("first.weight", ParameterKind::Constant, Access::Rows),
            ("first.bias", ParameterKind::Constant, Access::Rows),
            ("norm.gamma", ParameterKind::Trained, Access::Dense),
            ("norm.beta", ParameterKind::Trained, Access::Dense),
            ("norm.running_mean", ParameterKind::State, Access::Dense),
            ("norm.running_var", ParameterKind::State, Access::Dense),
            ("mask", ParameterKind::Constant, Access::Rows),
            ("order", ParameterKind::Constant, Access::Rows),
            ("last.weight", ParameterKind::Trained, Access::Dense),
            ("last.bias", ParameterKind::Trained, Access::Dense),
        ]
    );
    let trained = replica(Peculiar::default());
    let is_trained =
        |(_, spec): (_, &ParameterSpec)| spec.name.starts_with("first") && spec.kind == ParameterKind::Trained;
    assert_eq!(trained.table().iter().filter(|entry| is_trained(*entry)).count(), 2);
    assert_eq!(frozen.values(), trained.values(), "finding out changes nothing");
}

#[test]
fn only_what_is_trained_has_gradients() {
    for plain in [false, true] {
        let mut replica = replica(Peculiar { frozen: true, plain, ..Peculiar::default() });
        let (_, gradients) = step(&mut replica, DRAW);
        for ((_, spec), gradient) in replica.table().iter().zip(&gradients) {
            let expected = if spec.kind == ParameterKind::Trained { spec.elements() } else { 0 };
            assert_eq!(gradient.len(), expected, "{}", spec.name);
        }
        assert!(gradients[index(&replica, "embedding.weight")].iter().all(|value| *value == 0.0), "it is not used");
        assert!(gradients[index(&replica, "last.weight")].iter().any(|value| *value != 0.0));
    }
}

#[test]
fn a_network_is_the_same_whichever_device_it_is_made_on() {
    let [mut given, mut plain] =
        [false, true].map(|plain| replica(Peculiar { frozen: true, plain, ..Peculiar::default() }));
    assert_eq!(given.table(), plain.table());
    assert_eq!(given.values(), plain.values());
    assert_eq!(step(&mut given, DRAW), step(&mut plain, DRAW));
    assert_eq!(pushed(&mut given), pushed(&mut plain));
}

#[test]
fn running_statistics_are_those_after_the_step_and_the_next_goes_on_from_what_is_loaded() {
    let mut replica = replica(Peculiar { frozen: true, ..Peculiar::default() });
    let first = pushed(&mut replica);
    let mut values = replica.values();
    let (mean, variance) = (index(&replica, "norm.running_mean"), index(&replica, "norm.running_var"));
    // With a momentum of 0.1 the second step continues from the first…
    let second = pushed(&mut replica);
    for (first, second) in first[0].iter().zip(&second[0]) {
        assert!((second - 1.9 * first).abs() < 1e-4 * first.abs(), "{second} after {first}");
    }
    // …and a step after other values have been loaded continues from those.
    values[mean].fill(100.0);
    values[variance].fill(0.0);
    load(&mut replica, values);
    let loaded = pushed(&mut replica);
    for ((before, after), [first_mean, first_variance]) in
        loaded[0].iter().zip(&loaded[1]).zip(first[0].iter().zip(&first[1]).map(|(mean, variance)| [mean, variance]))
    {
        assert!((before - (90.0 + first_mean)).abs() < 1e-3, "{before}");
        assert!((after - (first_variance - 0.9)).abs() < 1e-3 * first_variance.abs(), "{after}");
    }
}

#[test]
fn a_step_that_is_thrown_away_leaves_the_running_statistics_as_they_were() {
    for row_parameters in [&[][..], &["embedding.weight"]] {
        let mut replica = replica(Peculiar { row_parameters, ..Peculiar::default() });
        let before = replica.values();
        replica.rehearse(replica.batch(&BATCH, DRAW).unwrap()).unwrap();
        assert_eq!(replica.values(), before);
        assert_eq!(replica.first_values(), before.into_iter().map(TensorBuffer::from).collect::<Vec<_>>());
    }
}

#[test]
fn a_network_in_use_has_the_statistics_that_were_loaded() {
    let mut replica = replica(Peculiar::default());
    let fresh = replica.evaluate().unwrap();
    step(&mut replica, DRAW);
    let values = replica.first_values();
    replica.load(values);
    assert_eq!(replica.evaluate().unwrap(), fresh);
}

#[test]
fn integers_and_booleans_go_out_and_come_in_as_they_are() {
    let mut replica = replica(Peculiar::default());
    let (mask, order) = (index(&replica, "mask"), index(&replica, "order"));
    let mut values = replica.values();
    assert_eq!((&values[mask][..], &values[order][..]), (&[1.0, 0.0, 1.0][..], &[2.0, 0.0, 1.0][..]));
    let before = step(&mut replica, DRAW).0;
    values[order] = vec![0.0, 0.0, 0.0];
    load(&mut replica, values.clone());
    assert_eq!(replica.values()[order], [0.0, 0.0, 0.0]);
    assert_ne!(step(&mut replica, DRAW).0, before);
    values[mask] = Vec::new();
    values[order] = vec![2.0, 0.0, 1.0];
    load(&mut replica, values);
    assert_eq!(step(&mut replica, DRAW).0, before, "what is left out stays");
}

#[test]
fn an_integer_that_a_float_cannot_hold_is_refused() {
    let integers = vec![0, 1, (1 << 24) + 1];
    let refused = Local::new(Peculiar { integers, ..Peculiar::default() }, LocalConfig::on_cpu(1)).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "`order` of the network holds 16777217, but 16777216 is the largest integer stored exactly"
    );
}

#[test]
fn running_statistics_are_not_reached_by_rows() {
    let peculiar = Peculiar { row_parameters: &["norm.running_mean"], ..Peculiar::default() };
    let refused = Local::new(peculiar, LocalConfig::on_cpu(1)).err().unwrap();
    assert_eq!(refused.to_string(), "`norm.running_mean` has running statistics, which cannot be accessed by row");
}

#[test]
fn units_are_dropped_by_seed_worker_and_position_and_nothing_else() {
    let mut dropping = replica(Peculiar { dropout: 0.5, ..Peculiar::default() });
    let mut losses = |draw: Draw| (0..2).map(|_| step(&mut dropping, draw).1).collect::<Vec<_>>();
    let first = losses(DRAW);
    assert_eq!(first[0], first[1]);
    let others = [
        Draw { worker: 1, ..DRAW },
        Draw { position: DataPosition { epoch: 2, batch: 1 }, ..DRAW },
        Draw { position: DataPosition { epoch: 1, batch: 2 }, ..DRAW },
    ];
    // With three units, one draw in eight drops the same ones; with the twelve of a batch, hardly any does.
    for other in others {
        assert_ne!(losses(other)[0], first[0], "{other:?}");
    }
    assert_eq!(losses(DRAW), first);
}

#[test]
fn a_step_in_parts_uses_every_sample_and_moves_running_statistics_once_a_part() {
    let config = LocalConfig { accumulate: 2, ..LocalConfig::on_cpu(1) };
    let mut parts = Local::new(Peculiar::default(), config).unwrap();
    let mut halves = replica(Peculiar::default());
    let result = parts.step(parts.batch(&BATCH, DRAW).unwrap()).unwrap();
    let [first, second] = [[1, 2], [3, 4]].map(|half| halves.step(halves.batch(&half, DRAW).unwrap()).unwrap());
    assert_eq!(result.samples, 4);
    assert_eq!(result.loss, (first.loss + second.loss) * 0.5);
    assert_eq!(result.state, second.state);
    for ((sum, one), other) in result.gradients.iter().zip(&first.gradients).zip(&second.gradients) {
        let mean: Vec<f32> = one.iter().zip(&**other).map(|(one, other)| (one + other) * 0.5).collect();
        assert_eq!(&**sum, &mean[..]);
    }
}
