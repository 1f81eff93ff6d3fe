//! `linear`: fits a line to 101 noisy points of y = 2x + 10, one point per step.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};
use windlass_core::optimizer::Optimizer;
use windlass_worker::model::{Defaults, FlagRole, Metrics, Model, Setup};

/// The number of points.
const POINTS: usize = 101;

/// Fits a line.
#[derive(Debug)]
pub struct Linear {
    points: Vec<(f32, f32)>,
}

/// The flags of `linear`.
#[derive(Debug, Clone, clap::Args)]
pub struct LinearFlags {
    /// Standard deviation of the points from the line
    #[arg(long, default_value_t = 0.33)]
    pub noise: f32,
}

/// y = weight · x + bias.
#[derive(Module, Debug)]
pub struct Line {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
}

impl Model for Linear {
    const NAME: &'static str = "linear";
    const ABOUT: &'static str = "fit a line to 101 noisy points of y = 2x + 10";
    type Flags = LinearFlags;
    type Network = Line;
    type Batch = (Tensor<1>, Tensor<1>);

    fn defaults(_flags: &LinearFlags) -> Defaults {
        Defaults {
            optimizer: Optimizer::Sgd,
            learning_rate: 0.01,
            batch_size: 1,
            steps: None,
            epochs: Some(10),
            shuffle: false,
            clip_norm: None,
        }
    }

    /// However noisy the points are, the network is a line.
    fn flag_role(_name: &str) -> FlagRole {
        FlagRole::Training
    }

    fn without_data(_flags: &LinearFlags, _setup: &Setup, _files: &[(String, String)]) -> anyhow::Result<Self> {
        Ok(Self { points: Vec::new() })
    }

    fn load(flags: &LinearFlags, setup: &Setup) -> anyhow::Result<Self> {
        anyhow::ensure!(
            flags.noise.is_finite() && flags.noise >= 0.0,
            "--noise is {}, expected zero or more",
            flags.noise
        );
        let mut rng = StdRng::seed_from_u64(setup.seed);
        let point = |index: usize| {
            let x = -1.0 + 2.0 * index as f32 / (POINTS - 1) as f32;
            let noise: f32 = StandardNormal.sample(&mut rng);
            (x, 2.0 * x + 10.0 + flags.noise * noise)
        };
        Ok(Self { points: (0..POINTS).map(point).collect() })
    }

    fn network(&self, device: &Device) -> Line {
        let zero = || Param::from_tensor(Tensor::zeros([1], device));
        Line { weight: zero(), bias: zero() }
    }

    fn samples(&self) -> usize {
        self.points.len()
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Self::Batch> {
        Ok(self.points(samples, device))
    }

    /// The mean squared error. For one point its gradient is 2 · error · x, as in the original experiment.
    fn loss(&self, line: &Line, (x, y): Self::Batch) -> Tensor<1> {
        let error = x * line.weight.val() + line.bias.val() - y;
        (error.clone() * error).mean()
    }

    fn evaluate(&self, line: &Line, device: &Device) -> anyhow::Result<Metrics> {
        let all: Vec<usize> = (0..self.points.len()).collect();
        let scalar = |tensor: Tensor<1>| tensor.into_data().iter::<f64>().next().unwrap_or(f64::NAN);
        let loss = scalar(self.loss(line, self.points(&all, device)));
        Ok(Metrics::new()
            .number("w", scalar(line.weight.val()))
            .number("b", scalar(line.bias.val()))
            .loss("mean_squared_error", loss))
    }
}

impl Linear {
    /// x and y of these points.
    fn points(&self, samples: &[usize], device: &Device) -> (Tensor<1>, Tensor<1>) {
        let column = |pick: fn(&(f32, f32)) -> f32| {
            let values: Vec<f32> = samples.iter().map(|index| pick(&self.points[*index])).collect();
            Tensor::from_data(TensorData::new(values, [samples.len()]), device)
        };
        (column(|point| point.0), column(|point| point.1))
    }
}
