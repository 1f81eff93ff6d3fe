//! Small data sets in the format of MNIST, intact or damaged.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;
use windlass_data::{Images, digits};

/// A directory with the four files of MNIST.
pub struct DigitFiles(TempDir);

impl DigitFiles {
    /// Built-in digits, few enough to be read quickly.
    pub fn new(train: usize, test: usize) -> Self {
        let files = Self(TempDir::new().unwrap());
        for (part, images) in [("train", digits::training(1, train)), ("t10k", digits::test(1, test))] {
            fs::write(files.images(part), image_file(&images)).unwrap();
            fs::write(files.labels(part), label_file(&images)).unwrap();
        }
        files
    }

    /// The same files, compressed as for download.
    pub fn compressed(train: usize, test: usize) -> Self {
        let files = Self::new(train, test);
        for part in ["train", "t10k"] {
            compress(&files.images(part));
            compress(&files.labels(part));
        }
        files
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn images(&self, part: &str) -> PathBuf {
        self.path().join(format!("{part}-images-idx3-ubyte"))
    }

    pub fn labels(&self, part: &str) -> PathBuf {
        self.path().join(format!("{part}-labels-idx1-ubyte"))
    }

    /// Changes the contents of a file.
    pub fn damage(&self, file: &Path, how: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(file).unwrap();
        how(&mut bytes);
        fs::write(file, bytes).unwrap();
    }
}

fn image_file(images: &Images) -> Vec<u8> {
    idx(&[images.len(), images.rows, images.columns], &images.pixels)
}

fn label_file(images: &Images) -> Vec<u8> {
    idx(&[images.len()], &images.labels)
}

fn idx(dimensions: &[usize], bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, dimensions.len() as u8];
    dimensions.iter().for_each(|length| file.extend((*length as u32).to_be_bytes()));
    file.extend(bytes);
    file
}

fn compress(file: &Path) {
    let compressed = fs::File::create(file.with_added_extension("gz")).unwrap();
    let mut encoder = GzEncoder::new(compressed, Compression::fast());
    encoder.write_all(&fs::read(file).unwrap()).unwrap();
    encoder.finish().unwrap();
    fs::remove_file(file).unwrap();
}
