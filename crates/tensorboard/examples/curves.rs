//! Example curves: a run that is stopped at step 700 and resumes from step 500, as TensorBoard shows it.
//!
//! `cargo run -p windlass-tensorboard --example curves [DIRECTORY]`, then `tensorboard --logdir DIRECTORY`

use std::ops::RangeInclusive;

use windlass_tensorboard::{BoardError, Description, HParam, RunBoard, tag};

/// The score besides the loss.
const ACCURACY: &str = "score/accuracy";

fn main() -> Result<(), BoardError> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "runs/curves".into());
    let hparams = [("optimizer", HParam::Text("adam".into())), ("learning_rate", HParam::Number(0.01))];
    let description = Description {
        command_line: "windlass train mnist --mode sync --learning-rate 0.01".into(),
        hparams: hparams.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        workers: Some(1),
    };
    train(&mut RunBoard::create(&directory, &description)?, 1..=700, 1.5)?;
    let mut board = RunBoard::resume(&directory, &description, 501, 501)?;
    train(&mut board, 501..=1000, 1.0)?;
    board.end(1000)?;
    board.flush()?;
    println!("tensorboard --logdir {directory}");
    Ok(())
}

/// Writes plausible curves. The first part has more `noise`, none of which may be visible after step 500.
fn train(board: &mut RunBoard, steps: RangeInclusive<u64>, noise: f64) -> Result<(), BoardError> {
    for step in steps {
        let progress = step as f64;
        let wave = (progress * 0.7).sin() * noise;
        let loss = 2.3 * (-progress / 200.0).exp() + 0.2 + 0.05 * wave;
        board.train(
            step,
            &[
                (tag::LOSS, loss),
                (ACCURACY, 1.0 - loss / 2.6),
                (tag::LEARNING_RATE, 0.01 * 0.998_f64.powf(progress)),
                (tag::STEP_MS, 0.9 + 0.1 * wave),
                (tag::SAMPLES_PER_SECOND, 200_000.0 + 20_000.0 * wave),
                (tag::GRADIENT_NORM, 3.0 / progress.sqrt() + 0.1 * wave.abs()),
                (tag::STALENESS, 1.0 + 0.2 * wave),
            ],
        )?;
        if step % 50 == 0 {
            board.eval(step, &[(tag::LOSS, loss + 0.1), (ACCURACY, 0.97 - loss / 2.6)])?;
            let width = 0.05 + progress / 5000.0;
            let weights: Vec<f32> = (0..10_000).map(|index| (bell(index) * width) as f32).collect();
            board.histogram(step, "layer_1/weights", &weights)?;
        }
    }
    board.flush()
}

/// Approximately normally distributed numbers: each a sum of twelve fractional parts of multiples of irrational roots.
fn bell(index: u32) -> f64 {
    let fraction = |factor: u32| (f64::from(index * 12 + factor) * (f64::from(factor) + 2.5).sqrt()).fract();
    (0..12).map(fraction).sum::<f64>() - 6.0
}
