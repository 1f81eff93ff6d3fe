//! Data that cannot be trained on.

use insta::assert_snapshot;

use crate::cluster::Hosts;
use crate::digits::DigitFiles;
use crate::process::{Told, windlass};

fn train_on(files: &DigitFiles) -> Told {
    let told = windlass("train mnist --steps 1 --data-dir").with(files.path()).run();
    told.naming(&files.path().display().to_string(), "[DATA]")
}

#[test]
fn a_batch_larger_than_the_data_is_refused() {
    assert_snapshot!(windlass("train linear --batch-size 102").run().without_log(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --batch-size 102 is more than this worker's 101 samples
    ");
}

#[test]
fn a_step_of_more_batches_than_the_data_has_is_refused() {
    assert_snapshot!(windlass("train linear --batch-size 51 --accumulate 2").run().without_log(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --accumulate 2 makes a step of 102 samples with --batch-size 51, more than this worker's 101
    ");
}

#[test]
fn a_batch_larger_than_a_shard_of_the_data_is_refused() {
    let hosts = Hosts::new(0, 2);
    let place = format!("--colocate --job_name worker --task_index 1 --worker_hosts {}", hosts.workers.join(","));
    let told = windlass(&format!("train linear --shard-data --batch-size 51 {place}")).run();
    assert_snapshot!(told.without_log(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --batch-size 51 is more than this worker's 50 samples
    ");
}

#[test]
fn a_missing_directory_is_refused() {
    assert_snapshot!(windlass("train mnist --data-dir nowhere").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: read the images: there is no directory nowhere
    hint: windlass data download mnist --dir nowhere
    ");
}

#[test]
fn a_directory_without_the_files_is_refused() {
    assert_snapshot!(windlass("train mnist --data-dir .").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: read the images: . has none of train-images-idx3-ubyte, train-images.idx3-ubyte, train-images-idx3-ubyte.gz, train-images.idx3-ubyte.gz
    hint: windlass data download mnist --dir .
    ");
}

#[test]
fn a_file_that_is_cut_short_is_refused() {
    let files = DigitFiles::new(24, 1);
    files.damage(&files.images("train"), |bytes| bytes.truncate(1000));
    assert_snapshot!(train_on(&files), @"
    exit code 2
    --- stdout
    --- stderr
    error: read the images: [DATA]/train-images-idx3-ubyte is cut short: expected 18832 bytes, got 1000
    hint: remove the file and download it again
    ");
}

#[test]
fn a_file_that_is_not_idx_is_refused() {
    let files = DigitFiles::new(24, 1);
    files.damage(&files.labels("t10k"), |bytes| *bytes = b"<!DOCTYPE html>".to_vec());
    assert_snapshot!(train_on(&files), @"
    exit code 2
    --- stdout
    --- stderr
    error: read the images: [DATA]/t10k-labels-idx1-ubyte is not an idx file: it begins with 3c 21 44 4f, expected 00 00 08 01, or 1f 8b for gzip
    hint: was a web page saved in its place? download it again
    ");
}

#[test]
fn a_label_out_of_range_is_refused() {
    let files = DigitFiles::new(24, 1);
    files.damage(&files.labels("train"), |bytes| bytes[8 + 7] = 10);
    assert_snapshot!(train_on(&files), @"
    exit code 2
    --- stdout
    --- stderr
    error: read the images: label 7 in [DATA]/train-labels-idx1-ubyte is 10, expected 0 to 9
    ");
}

#[test]
fn images_and_labels_of_different_number_are_refused() {
    let files = DigitFiles::new(24, 1);
    files.damage(&files.labels("train"), |bytes| {
        bytes.pop();
        bytes[7] = 23;
    });
    assert_snapshot!(train_on(&files), @"
    exit code 2
    --- stdout
    --- stderr
    error: read the images: [DATA]/train-images-idx3-ubyte has 24 images but [DATA]/train-labels-idx1-ubyte has 23 labels, expected the same number
    hint: the two files are of different data sets; download both again
    ");
}

#[test]
fn a_damaged_compressed_file_is_refused() {
    let files = DigitFiles::compressed(24, 1);
    files.damage(&files.images("train").with_added_extension("gz"), |bytes| bytes.truncate(bytes.len() / 2));
    assert_snapshot!(train_on(&files), @"
    exit code 2
    --- stdout
    --- stderr
    error: read the images: the gzip data in [DATA]/train-images-idx3-ubyte.gz is damaged: incomplete deflate stream
    hint: remove the file and download it again
    ");
}

#[test]
fn layers_without_units_are_refused() {
    assert_snapshot!(windlass("train mnist --hidden 100,0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --hidden has a layer of 0 units
    ");
}
