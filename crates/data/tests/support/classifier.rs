//! Two small classifiers in plain loops, to measure the difficulty of a set of images.
//!
//! A yardstick for this crate's tests and examples only: no batches, no threads, no tuning. It must not become a
//! general-purpose trainer.

use windlass_data::Images;

const CLASSES: usize = 10;

/// A softmax classifier, linear or with one hidden layer of rectified units.
pub struct Classifier {
    hidden: Option<Layer>,
    output: Layer,
}

/// The training parameters: plain stochastic gradient descent, one image per step.
#[derive(Clone, Copy)]
pub struct Training {
    /// Passes over the images.
    pub epochs: usize,
    /// The learning rate of the first epoch; it falls linearly to zero.
    pub rate: f32,
}

impl Classifier {
    /// A classifier without a hidden layer.
    pub fn linear(inputs: usize) -> Self {
        Self { hidden: None, output: Layer::zero(inputs, CLASSES) }
    }

    /// A classifier with one hidden layer.
    pub fn with_hidden(inputs: usize, hidden: usize) -> Self {
        Self { hidden: Some(Layer::random(inputs, hidden)), output: Layer::zero(hidden, CLASSES) }
    }

    /// Trains on all of the images, in their order.
    pub fn train(&mut self, images: &Images, training: Training) {
        let mut input = Vec::new();
        let steps = (training.epochs * images.len()) as f32;
        for epoch in 0..training.epochs {
            for index in 0..images.len() {
                let done = (epoch * images.len() + index) as f32 / steps;
                images.gather(&[index], &mut input);
                self.step(&input, images.labels[index], training.rate * (1.0 - done));
            }
        }
    }

    /// The share of images that are classified correctly.
    pub fn accuracy(&self, images: &Images) -> f64 {
        let mut input = Vec::new();
        let right = (0..images.len()).filter(|&index| {
            images.gather(&[index], &mut input);
            let (_, scores) = self.forward(&input);
            let best = (0..CLASSES).max_by(|&one, &other| scores[one].total_cmp(&scores[other]));
            best == Some(usize::from(images.labels[index]))
        });
        right.count() as f64 / images.len() as f64
    }

    fn forward(&self, input: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let Some(layer) = &self.hidden else {
            return (Vec::new(), self.output.forward(input));
        };
        let mut hidden = layer.forward(input);
        hidden.iter_mut().for_each(|value| *value = value.max(0.0));
        let scores = self.output.forward(&hidden);
        (hidden, scores)
    }

    fn step(&mut self, input: &[f32], label: u8, rate: f32) {
        let (hidden, mut error) = self.forward(input);
        softmax(&mut error);
        error[usize::from(label)] -= 1.0;
        match &mut self.hidden {
            None => self.output.descend(input, &error, rate),
            Some(layer) => {
                let mut hidden_error = self.output.backward(&error);
                for (error, &value) in hidden_error.iter_mut().zip(&hidden) {
                    if value == 0.0 {
                        *error = 0.0;
                    }
                }
                self.output.descend(&hidden, &error, rate);
                layer.descend(input, &hidden_error, rate);
            }
        }
    }
}

struct Layer {
    /// One row of weights per input: most inputs are zero, and their rows are skipped.
    weights: Vec<f32>,
    biases: Vec<f32>,
}

impl Layer {
    fn zero(inputs: usize, outputs: usize) -> Self {
        Self { weights: vec![0.0; inputs * outputs], biases: vec![0.0; outputs] }
    }

    /// Weights uniformly distributed over ±√(6 / inputs), always the same.
    fn random(inputs: usize, outputs: usize) -> Self {
        let mut layer = Self::zero(inputs, outputs);
        let spread = (6.0 / inputs as f32).sqrt();
        let mut state = 1u64;
        for weight in &mut layer.weights {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *weight = ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * spread;
        }
        layer
    }

    fn forward(&self, input: &[f32]) -> Vec<f32> {
        let mut output = self.biases.clone();
        for (row, &value) in self.weights.chunks_exact(self.biases.len()).zip(input) {
            if value != 0.0 {
                add_scaled(&mut output, row, value);
            }
        }
        output
    }

    fn backward(&self, error: &[f32]) -> Vec<f32> {
        let rows = self.weights.chunks_exact(error.len());
        rows.map(|row| row.iter().zip(error).map(|(weight, error)| weight * error).sum()).collect()
    }

    fn descend(&mut self, input: &[f32], error: &[f32], rate: f32) {
        for (row, &value) in self.weights.chunks_exact_mut(error.len()).zip(input) {
            if value != 0.0 {
                add_scaled(row, error, -rate * value);
            }
        }
        add_scaled(&mut self.biases, error, -rate);
    }
}

fn add_scaled(target: &mut [f32], source: &[f32], factor: f32) {
    for (target, source) in target.iter_mut().zip(source) {
        *target += factor * source;
    }
}

fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}
