//! Opens a location such as `/data/run` or `s3://bucket/run` as an object store.

use std::path::{self, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, parse_url_opts};
use url::Url;

use crate::error::CheckpointError;

/// Prefixes of variables that configure object stores. Others could be mistaken for options.
const OPTION_PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// An opened location.
pub(crate) struct OpenedLocation {
    pub objects: Arc<dyn ObjectStore>,
    /// The prefix of every object's name.
    pub prefix: Path,
    /// The directory, if it is one.
    pub directory: Option<PathBuf>,
}

/// Opens a path, or a URL with the scheme file, s3, gs, az or memory.
pub(crate) fn open(location: &str) -> Result<OpenedLocation, CheckpointError> {
    let bad = |reason: String| CheckpointError::BadLocation { location: location.to_owned(), reason };
    if location.trim().is_empty() {
        return Err(bad("it is empty; give a directory or a URL such as s3://bucket/run".to_owned()));
    }
    if !location.contains("://") {
        return open_directory(location, location.into());
    }
    let url = Url::parse(location).map_err(|error| bad(format!("it is not a URL: {error}")))?;
    let unknown = || bad("expected a directory, file://, s3://bucket/…, gs://bucket/… or az://container/…".to_owned());
    let (scheme, _) = ObjectStoreScheme::parse(&url).map_err(|_| unknown())?;
    match scheme {
        ObjectStoreScheme::Local => {
            let path = url.to_file_path().map_err(|()| bad("it is not a path on this machine".to_owned()))?;
            open_directory(location, path)
        }
        ObjectStoreScheme::Memory => {
            Ok(OpenedLocation { objects: Arc::new(InMemory::new()), prefix: Path::default(), directory: None })
        }
        ObjectStoreScheme::AmazonS3 => {
            open_remote(&url).map_err(|text| bad(format!("{text}; see the AWS_… variables")))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            open_remote(&url).map_err(|text| bad(format!("{text}; see the GOOGLE_… variables")))
        }
        ObjectStoreScheme::MicrosoftAzure => {
            open_remote(&url).map_err(|text| bad(format!("{text}; see the AZURE_… variables")))
        }
        _ => Err(unknown()),
    }
}

fn open_directory(location: &str, path: PathBuf) -> Result<OpenedLocation, CheckpointError> {
    let failed = |error: io::Error| CheckpointError::opening(location, &error);
    let path = path::absolute(path).map_err(failed)?;
    fs::create_dir_all(&path).map_err(failed)?;
    let directory = path.canonicalize().map_err(failed)?;
    let objects = LocalFileSystem::new_with_prefix(&directory);
    let objects = objects.map_err(|error| CheckpointError::store(location, "open", "/", &error))?;
    // Sync every write: a checkpoint must survive a power failure.
    let objects = Arc::new(objects.with_fsync(true));
    Ok(OpenedLocation { objects, prefix: Path::default(), directory: Some(directory) })
}

fn open_remote(url: &Url) -> Result<OpenedLocation, String> {
    // The HTTP client is built without a TLS provider of its own. This call fails if a provider is already installed,
    // which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| OPTION_PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    let (objects, prefix) = parse_url_opts(url, options).map_err(|error| error.to_string())?;
    Ok(OpenedLocation { objects: objects.into(), prefix, directory: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(location: &str) -> String {
        open(location).err().expect("refused").to_string()
    }

    #[test]
    fn a_directory_is_made_if_it_is_missing() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("a/b");
        open(directory.to_str().unwrap()).unwrap();
        assert!(directory.is_dir());
        open(Url::from_file_path(parent.path().join("c")).unwrap().as_str()).unwrap();
        assert!(parent.path().join("c").is_dir());
    }

    #[test]
    fn a_location_that_cannot_be_opened_is_named_with_what_to_do() {
        assert_eq!(
            refusal("ftp://host/run"),
            "cannot keep checkpoints in `ftp://host/run`: \
             expected a directory, file://, s3://bucket/…, gs://bucket/… or az://container/…"
        );
        assert!(refusal("").contains("give a directory or a URL"));
        assert!(refusal("s3://").contains("`s3://`"), "{}", refusal("s3://"));
    }

    #[test]
    fn a_directory_below_a_file_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refusal = refusal(file.path().join("run").to_str().unwrap());
        assert!(refusal.contains("Not a directory") && refusal.contains("give a directory"), "{refusal}");
        let refusal = self::refusal(file.path().to_str().unwrap());
        assert!(refusal.starts_with("cannot keep checkpoints in ") && refusal.contains("File exists"), "{refusal}");
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_that_cannot_be_opened_for_a_moment_is_not_a_bad_location() {
        let parent = tempfile::tempdir().unwrap();
        // A link to itself neither exists nor is missing.
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        let error = open(link.join("run").to_str().unwrap()).err().expect("refused");
        assert!(matches!(&error, CheckpointError::Store { action: "open", .. }) && error.may_pass(), "{error}");
    }
}
