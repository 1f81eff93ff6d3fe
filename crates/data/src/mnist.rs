//! MNIST, or another set of 28×28 images in ten classes, from a directory of four idx files.
//!
//! Finds the files, reads them, checks that they belong together, and splits off the validation images. This module
//! must not download anything or generate data.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::idx::{self, IdxError};
use crate::images::{ImageSet, Images};

/// Height and width of an image in pixels.
pub const SIDE: usize = 28;

/// The number of classes. Labels are less than this.
pub const CLASSES: u8 = 10;

/// One in this many training images is used for validation: 5,000 of 60,000.
const TRAINING_IMAGES_PER_VALIDATION_IMAGE: usize = 12;

/// Why a directory could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The directory does not exist.
    #[error("there is no directory {}\nhint: windlass data download mnist --dir {}", path.display(), path.display())]
    DirectoryMissing {
        /// The directory.
        path: PathBuf,
    },
    /// The path is not a directory.
    #[error("{} is not a directory, expected one that holds the four mnist files\nhint: windlass data download mnist --dir DIRECTORY", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// One of the four files is not in the directory.
    #[error("{} has none of {}\nhint: windlass data download mnist --dir {}", directory.display(), tried.join(", "), directory.display())]
    FileMissing {
        /// The directory.
        directory: PathBuf,
        /// The names under which the file was looked for.
        tried: Vec<String>,
    },
    /// One of the files is not a valid idx file.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// The images are not of the expected size.
    #[error("the images in {} are {rows}×{columns} pixels, expected {SIDE}×{SIDE}", path.display())]
    ImageSize {
        /// The file.
        path: PathBuf,
        /// Height in the file.
        rows: usize,
        /// Width in the file.
        columns: usize,
    },
    /// The numbers of labels and images differ.
    #[error("{} has {images} images but {} has {labels} labels, expected the same number\nhint: the two files are of different data sets; download both again", images_path.display(), labels_path.display())]
    CountsDiffer {
        /// The file of images.
        images_path: PathBuf,
        /// The number of images in it.
        images: usize,
        /// The file of labels.
        labels_path: PathBuf,
        /// The number of labels in it.
        labels: usize,
    },
    /// A label is not one of the ten classes.
    #[error("label {index} in {} is {label}, expected 0 to {}", path.display(), CLASSES - 1)]
    LabelOutOfRange {
        /// The file.
        path: PathBuf,
        /// The index of the label, counted from 0.
        index: usize,
        /// The label.
        label: u8,
    },
    /// There are too few images to split.
    #[error("{} has {images} images, expected at least {least}", path.display())]
    TooFew {
        /// The file.
        path: PathBuf,
        /// The number of images in it.
        images: usize,
        /// The minimum number of images.
        least: usize,
    },
}

/// Loads the data set in `directory`, decompressing on the current rayon pool.
///
/// The first twelfth of the training images is used for validation: the first 5,000 of MNIST's 60,000, as in
/// TensorFlow's `read_data_sets`. Other sets of the same form, such as Fashion-MNIST or smaller ones, are split in the
/// same way.
///
/// # Errors
/// Fails if a file is missing or invalid, or if the files do not belong together.
pub fn load(directory: &Path) -> Result<ImageSet, LoadError> {
    if !directory.exists() {
        let path = directory.to_path_buf();
        return Err(LoadError::DirectoryMissing { path });
    }
    if !directory.is_dir() {
        let path = directory.to_path_buf();
        return Err(LoadError::NotADirectory { path });
    }
    let train = Files::find(directory, "train")?;
    let test = Files::find(directory, "t10k")?;
    let (train, test) = rayon::join(|| train.read(TRAINING_IMAGES_PER_VALIDATION_IMAGE), || test.read(1));
    let (mut train, test) = (train?, test?);
    let validation = train.take_first(train.len() / TRAINING_IMAGES_PER_VALIDATION_IMAGE);
    Ok(ImageSet::new(train, validation, test))
}

/// The files of one half of the data set.
struct Files {
    images: PathBuf,
    labels: PathBuf,
}

impl Files {
    fn find(directory: &Path, part: &str) -> Result<Self, LoadError> {
        Ok(Self {
            images: find(directory, &format!("{part}-images"), "idx3-ubyte")?,
            labels: find(directory, &format!("{part}-labels"), "idx1-ubyte")?,
        })
    }

    fn read(self, least: usize) -> Result<Images, LoadError> {
        let images = idx::read(&self.images, 3)?;
        let labels = idx::read(&self.labels, 1)?.bytes;
        let (count, rows, columns) = match images.dimensions[..] {
            [count, rows, columns] => (count, rows, columns),
            _ => unreachable!("the reader was asked for rank 3"),
        };
        if (rows, columns) != (SIDE, SIDE) {
            return Err(LoadError::ImageSize { path: self.images, rows, columns });
        }
        if count != labels.len() {
            return Err(LoadError::CountsDiffer {
                images_path: self.images,
                images: count,
                labels_path: self.labels,
                labels: labels.len(),
            });
        }
        if let Some(index) = labels.iter().position(|&label| label >= CLASSES) {
            return Err(LoadError::LabelOutOfRange { path: self.labels, index, label: labels[index] });
        }
        if count < least {
            return Err(LoadError::TooFew { path: self.images, images: count, least });
        }
        Ok(Images::new(rows, columns, images.bytes, labels))
    }
}

/// Finds a file under any of its names. A plain file is preferred, since it is faster to read than a compressed one.
fn find(directory: &Path, part: &str, kind: &str) -> Result<PathBuf, LoadError> {
    let tried =
        [format!("{part}-{kind}"), format!("{part}.{kind}"), format!("{part}-{kind}.gz"), format!("{part}.{kind}.gz")];
    let found = tried.iter().map(|name| directory.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| LoadError::FileMissing { directory: directory.to_path_buf(), tried: tried.to_vec() })
}
