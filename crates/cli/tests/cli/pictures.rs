//! The image models: every mode trains them, runs are reproducible, and the final picture is good.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde_json::Value;

use crate::cluster::summary;
use crate::digits::DigitFiles;
use crate::process::{Told, windlass};

const AUTOENCODER: &str = "autoencoder --hidden 32 --batch-size 32 --learning-rate 0.003 --run-dir run";
const STN: &str = "stn --filters 4 --hidden 64 --images 1000 --batch-size 50 --run-dir run";

macro_rules! every_mode_learns {
    ($($mode:ident: $command:literal, $flags:literal;)*) => {
        $(mod $mode {
            #[test]
            fn to_draw_digits_again() {
                super::learns_to_draw($command, $flags);
            }

            #[test]
            fn to_read_digits_in_clutter() {
                super::learns_to_read($command, $flags);
            }
        })*
    };
}

every_mode_learns! {
    in_one_process: "train", "";
    in_async_mode: "launch", "--mode async --ps 2 --min-shard-bytes 0";
    in_sync_mode: "launch", "--mode sync";
    in_ssp_mode: "launch", "--mode ssp --staleness 2 --colocate";
}

fn train(command: &str, words: &str) -> Told {
    let files = DigitFiles::new(1200, 200);
    windlass(&format!("{command} {words} --format json --data-dir")).with(files.path()).run().succeeded()
}

fn learns_to_draw(command: &str, flags: &str) {
    let loss = |steps: u32| {
        let told = train(command, &format!("{AUTOENCODER} {flags} --evaluate end --steps {steps}"));
        summary(&told)["metrics"]["test_loss"].as_f64().unwrap()
    };
    let (before, after) = (loss(1), loss(300));
    assert!(after < 0.75 * before, "from {before} to {after}");
}

fn learns_to_read(command: &str, flags: &str) {
    let told = train(command, &format!("{STN} {flags} --evaluate end --steps 200 --learning-rate 0.003"));
    let metrics = &summary(&told)["metrics"];
    // Guessing gets one in ten right.
    assert!(metrics["test_accuracy"].as_f64() > Some(0.3), "{metrics:#}");
}

#[test]
fn a_run_of_two_workers_in_sync_mode_is_the_same_bit_for_bit_each_time() {
    let variants = ["noise", "masking", "variational"].map(|variant| format!("{AUTOENCODER} --variant {variant}"));
    for words in variants.into_iter().chain([STN.to_owned()]) {
        let metrics = || summary(&train("launch", &format!("{words} --mode sync --steps 15")))["metrics"].clone();
        let (first, second): (Value, Value) = (metrics(), metrics());
        assert_eq!(first, second, "{words}");
    }
}

#[test]
fn a_plain_autoencoder_draws_originals_above_what_it_made_of_them() {
    let told = train("train", &format!("{AUTOENCODER} --steps 20 --samples out.png"));
    assert!(told.stdout.contains(r#"{"event":"wrote","path":"out.png"}"#), "{told}");
    let picture = Image::read(&told.directory().join("out.png"));
    // Two groups of two rows of ten digits, twice their size.
    assert_eq!(picture.height, 16 + 16 + 2 * (16 + 56 + 4 + 56) + 16);
    assert!(picture.width > 10 * 60 && picture.width < 10 * 60 + 200, "{}", picture.width);
    assert!(picture.colours() > 50, "{}", picture.colours());
}

#[test]
fn corrupted_images_have_a_row_of_their_own_and_made_up_ones_four() {
    let height = |variant: &str| {
        let told = train("train", &format!("{AUTOENCODER} --variant {variant} --steps 5 --samples out.png"));
        Image::read(&told.directory().join("out.png")).height
    };
    assert_eq!(height("noise"), 48 + 2 * (16 + 56 + 60 + 60));
    assert_eq!(height("masking"), 48 + 2 * (16 + 56 + 60 + 60));
    assert_eq!(height("variational"), 48 + 2 * (16 + 56 + 60) + 16 + 56 + 3 * 60);
}

#[test]
fn a_transformer_draws_where_it_looks_and_what_it_sees_also_from_a_cluster() {
    let told = train("launch", &format!("{STN} --steps 20 --samples out.png"));
    let picture = Image::read(&told.directory().join("out.png"));
    // Three groups of two rows of ten canvases, twice their size, with a line of what was read.
    assert_eq!(picture.height, 16 + 16 + 3 * (16 + 80 + 4 + 80 + 16) + 16);
    let has = |colour: [u8; 3]| picture.pixels.chunks(3).any(|pixel| pixel == colour);
    assert!(has([255, 140, 0]), "an outline is drawn");
    assert!(has([0, 0, 0]) && picture.colours() > 50);
}

#[test]
fn eval_draws_the_picture_of_a_checkpoint_as_the_run_itself_did() {
    let files = DigitFiles::new(1200, 200);
    let flags = "--filters 4 --hidden 64 --images 1000";
    let words = format!("train stn {flags} --batch-size 50 --steps 20 --run-dir run --samples run.png --data-dir");
    let first = windlass(&words).with(files.path()).run().succeeded();
    let eval = format!("eval stn {flags} --checkpoint run/checkpoints --samples eval.png --data-dir");
    let told = first.windlass(&eval).with(files.path()).run().succeeded();
    assert_eq!(told.stdout.lines().last(), Some("wrote eval.png"), "{told}");
    let pixels = |name: &str| Image::read(&first.directory().join(name)).pixels;
    assert!(pixels("eval.png") == pixels("run.png"));
}

#[test]
fn a_picture_that_can_no_longer_be_written_is_said_and_the_summary_is_there_all_the_same() {
    let files = DigitFiles::new(1200, 200);
    let flags = "--steps 1500 --evaluate end --format json --samples kept/out.png --data-dir";
    let words = format!("train {AUTOENCODER} {flags}");
    let process = windlass(&words).with_file("kept/made", "").with(files.path()).start();
    process.event(|event| event["event"] == "started");
    std::fs::remove_dir_all(process.directory().join("kept")).unwrap();
    let told = process.wait();
    assert_eq!(told.exit_code(), Some(1), "{told}");
    assert!(told.stderr.contains("cannot write a picture to kept/out.png: No such file or directory"), "{told}");
    assert_eq!(summary(&told)["global_step"], 1500);
}

struct Image {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Image {
    fn read(path: &Path) -> Self {
        let mut reader = png::Decoder::new(BufReader::new(File::open(path).unwrap())).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        Self { width: info.width, height: info.height, pixels }
    }

    fn colours(&self) -> usize {
        self.pixels.chunks(3).collect::<BTreeSet<_>>().len()
    }
}
