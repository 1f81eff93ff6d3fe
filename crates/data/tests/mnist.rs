//! Loading a directory of four idx files, valid and invalid.

#[path = "support/files.rs"]
mod files;
#[path = "support/idx_file.rs"]
mod idx_file;

use std::path::Path;

use files::{gzip, put};
use idx_file::idx_bytes;
use tempfile::TempDir;
use windlass_data::mnist::{self, LoadError};

/// `count` images in which every pixel is the image's index.
fn images(count: usize) -> Vec<u8> {
    let pixels: Vec<u8> = (0..count).flat_map(|image| [image as u8; 28 * 28]).collect();
    idx_bytes(&[count as u32, 28, 28], &pixels)
}

fn labels(count: usize) -> Vec<u8> {
    let labels: Vec<u8> = (0..count).map(|image| (image % 10) as u8).collect();
    idx_bytes(&[count as u32], &labels)
}

/// A directory with 24 training and 3 test images.
fn small_set() -> TempDir {
    let directory = TempDir::new().unwrap();
    put(directory.path(), "train-images-idx3-ubyte", &images(24));
    put(directory.path(), "train-labels-idx1-ubyte", &labels(24));
    put(directory.path(), "t10k-images-idx3-ubyte", &images(3));
    put(directory.path(), "t10k-labels-idx1-ubyte", &labels(3));
    directory
}

fn message(directory: &Path) -> String {
    let error = mnist::load(directory).unwrap_err();
    error.to_string().replace(directory.to_str().unwrap(), "DIR")
}

#[test]
fn the_first_twelfth_of_the_training_images_is_for_validation() {
    let set = mnist::load(small_set().path()).unwrap();
    assert_eq!(set.validation().labels, [0, 1]);
    assert_eq!(set.validation().image(1), [1; 784]);
    assert_eq!(set.train().len(), 22);
    assert_eq!((set.train().labels[0], set.train().image(0)), (2, &[2; 784][..]));
    assert_eq!(set.test().labels, [0, 1, 2]);
}

#[test]
fn every_common_spelling_of_the_names_is_found() {
    let directory = TempDir::new().unwrap();
    put(directory.path(), "train-images.idx3-ubyte", &images(12));
    put(directory.path(), "train-labels.idx1-ubyte.gz", &gzip(&labels(12)));
    put(directory.path(), "t10k-images-idx3-ubyte.gz", &gzip(&images(1)));
    put(directory.path(), "t10k-labels-idx1-ubyte", &labels(1));
    let set = mnist::load(directory.path()).unwrap();
    assert_eq!((set.train().len(), set.validation().len(), set.test().len()), (11, 1, 1));
}

#[test]
fn a_missing_directory_says_how_to_get_one() {
    let directory = TempDir::new().unwrap();
    let error = mnist::load(&directory.path().join("absent")).unwrap_err();
    let message = error.to_string().replace(directory.path().to_str().unwrap(), "DIR");
    assert_eq!(
        message,
        "there is no directory DIR/absent\n\
         hint: windlass data download mnist --dir DIR/absent"
    );
}

#[test]
fn a_file_in_place_of_the_directory_is_refused() {
    let directory = TempDir::new().unwrap();
    let error = mnist::load(&put(directory.path(), "file", b"")).unwrap_err();
    assert!(matches!(error, LoadError::NotADirectory { .. }), "{error}");
}

#[test]
fn a_missing_file_says_which_names_were_tried() {
    let directory = small_set();
    std::fs::remove_file(directory.path().join("t10k-labels-idx1-ubyte")).unwrap();
    assert_eq!(
        message(directory.path()),
        "DIR has none of t10k-labels-idx1-ubyte, t10k-labels.idx1-ubyte, t10k-labels-idx1-ubyte.gz, \
         t10k-labels.idx1-ubyte.gz\n\
         hint: windlass data download mnist --dir DIR"
    );
}

#[test]
fn more_images_than_labels_are_refused() {
    let directory = small_set();
    put(directory.path(), "t10k-labels-idx1-ubyte", &labels(2));
    assert_eq!(
        message(directory.path()),
        "DIR/t10k-images-idx3-ubyte has 3 images but DIR/t10k-labels-idx1-ubyte has 2 labels, expected the same number\n\
         hint: the two files are of different data sets; download both again"
    );
}

#[test]
fn a_label_out_of_range_is_named() {
    let directory = small_set();
    put(directory.path(), "t10k-labels-idx1-ubyte", &idx_bytes(&[3], &[0, 10, 2]));
    assert_eq!(message(directory.path()), "label 1 in DIR/t10k-labels-idx1-ubyte is 10, expected 0 to 9");
}

#[test]
fn images_of_another_size_are_refused() {
    let directory = small_set();
    put(directory.path(), "t10k-images-idx3-ubyte", &idx_bytes(&[3, 1, 2], &[0; 6]));
    assert_eq!(message(directory.path()), "the images in DIR/t10k-images-idx3-ubyte are 1×2 pixels, expected 28×28");
}

#[test]
fn too_few_images_to_split_are_refused() {
    let directory = small_set();
    put(directory.path(), "train-images-idx3-ubyte", &images(11));
    put(directory.path(), "train-labels-idx1-ubyte", &labels(11));
    assert_eq!(message(directory.path()), "DIR/train-images-idx3-ubyte has 11 images, expected at least 12");
}

#[test]
fn an_unsound_file_is_reported_as_it_is() {
    let directory = small_set();
    put(directory.path(), "train-images-idx3-ubyte", &images(24)[..5000]);
    let message = message(directory.path());
    assert!(message.contains("train-images-idx3-ubyte is cut short: expected 18832 bytes, got 5000"), "{message}");
}
