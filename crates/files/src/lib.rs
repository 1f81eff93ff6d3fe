//! Files that appear atomically: a reader, at any time and in any process, sees either the complete file or the
//! previous one.
//!
//! Nothing here knows what the files hold.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that is being written, next to the one that it will replace. Dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub struct AtomicFile {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl AtomicFile {
    /// Begins to write the file `path`, under a temporary name that no other process uses.
    ///
    /// # Errors
    /// Fails if no file can be created in that directory.
    pub fn create(path: &Path) -> io::Result<Self> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".windlass-").suffix(".part");
        // Others may share the directory: use the permissions that the user's umask gives any new file.
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o666);
        // Opened here and not by `tempfile`, whose errors would show the user the temporary path.
        let mut refused = None;
        let open = |path: &Path| options.open(path).inspect_err(|error| refused = error.raw_os_error());
        let file = builder.make_in(directory, open);
        let file = file.map_err(|error| refused.map_or(error, io::Error::from_raw_os_error))?;
        Ok(Self { file: BufWriter::new(file), path: path.to_path_buf() })
    }

    /// Renames the file to its final name, replacing any that exists. Does not wait for the disk: after a power failure
    /// the file may be torn.
    ///
    /// # Errors
    /// Fails if the rest cannot be written or the file cannot be renamed.
    pub fn finish(self) -> io::Result<()> {
        self.file.into_inner()?.persist(&self.path)?;
        Ok(())
    }

    /// Like [`AtomicFile::finish`], but waits until the disk has the content.
    ///
    /// # Errors
    /// Fails if the rest cannot be written or the file cannot be renamed.
    pub fn finish_durably(self) -> io::Result<()> {
        let file = self.file.into_inner()?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Refuses what exists and is not a file: opening a pipe, for one, would wait for its other end.
///
/// # Errors
/// Fails if `path` is a directory, a pipe, a socket or a device.
pub fn require_file(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(io::Error::other("it is not a file")),
        _ => Ok(()),
    }
}

/// Writes `pieces` one after the other as the file `path`, in place of any that is there.
///
/// # Errors
/// Fails if the file cannot be written; an existing one then stays as it is.
pub fn write(path: &Path, pieces: &[&[u8]]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    pieces.iter().try_for_each(|piece| file.write_all(piece))?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_has_its_name_only_when_it_is_finished() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("summary.json");
        fs::write(&path, "before").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        write(&path, &[b"all ", b"of it"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"all of it");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_error_does_not_name_the_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let error = AtomicFile::create(&directory.path().join("missing/summary.json")).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().contains(".windlass-")),
            (io::ErrorKind::NotFound, false),
            "{error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn what_is_not_a_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(require_file(&socket).is_err() && require_file(directory.path()).is_err());
        fs::write(directory.path().join("file"), "").unwrap();
        assert!(["file", "nothing"].iter().all(|name| require_file(&directory.path().join(name)).is_ok()));
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = AtomicFile::create(&directory.path().join("export")).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_as_readable_as_any_other_new_file() {
        use std::os::unix::fs::PermissionsExt;

        let directory = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
        fs::write(directory.path().join("usual"), "").unwrap();
        let file = AtomicFile::create(&directory.path().join("atomic")).unwrap();
        file.finish_durably().unwrap();
        assert_eq!(mode("atomic"), mode("usual"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        assert_eq!(AtomicFile::create(Path::new("/nowhere/at/all")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
