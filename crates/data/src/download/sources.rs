//! The files of each data set, their sizes and checksums, and the mirrors that serve them.
//!
//! Plain facts, and how to verify a file against them. This module must not open a connection.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::DownloadError;

/// A file on the web whose content is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its name, on the mirrors and on disk.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256, in lowercase hexadecimal.
    pub sha256: String,
}

/// A set of files and the mirrors that have all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The files.
    pub files: Vec<RemoteFile>,
    /// Addresses to which a file's name is appended, in the order in which they are tried.
    pub mirrors: Vec<String>,
}

/// The data sets known by name.
const KNOWN: &[&str] = &["mnist"];

const MNIST_MIRRORS: &[&str] =
    &["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"];

const MNIST_FILES: &[(&str, u64, &str)] = &[
    ("train-images-idx3-ubyte.gz", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    ("train-labels-idx1-ubyte.gz", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ("t10k-images-idx3-ubyte.gz", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    ("t10k-labels-idx1-ubyte.gz", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
];

impl Source {
    /// The files and public mirrors of a data set.
    ///
    /// # Errors
    /// Fails if there is no data set of that name.
    pub fn named(dataset: &str) -> Result<Self, DownloadError> {
        if dataset != "mnist" {
            return Err(DownloadError::UnknownDataset { name: dataset.to_owned(), known: KNOWN.join(", ") });
        }
        let files = MNIST_FILES.iter().map(|&(name, bytes, sha256)| RemoteFile {
            name: name.to_owned(),
            bytes,
            sha256: sha256.to_owned(),
        });
        Ok(Self { files: files.collect(), mirrors: MNIST_MIRRORS.iter().map(|&mirror| mirror.to_owned()).collect() })
    }

    /// Rejects addresses that no request can be sent to.
    pub(super) fn check(&self) -> Result<(), DownloadError> {
        let usable = |mirror: &str| {
            let address: Result<ureq::http::Uri, _> = mirror.parse();
            address.is_ok_and(|address| {
                matches!(address.scheme_str(), Some("http" | "https")) && address.query().is_none()
            })
        };
        match self.mirrors.iter().find(|mirror| !usable(mirror)) {
            Some(mirror) => Err(DownloadError::BaseUrl { url: mirror.clone() }),
            None => Ok(()),
        }
    }
}

/// The SHA-256 of a file's content.
pub(super) fn digest_of(path: &Path) -> io::Result<String> {
    let mut digest = Sha256::new();
    absorb(&mut digest, &mut File::open(path)?)?;
    Ok(hexadecimal(digest))
}

/// Adds the rest of a reader to the digest.
pub(super) fn absorb(digest: &mut Sha256, reader: &mut impl Read) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => digest.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The finished digest in hexadecimal, as in lists of checksums.
pub(super) fn hexadecimal(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
