//! Files that appear all at once: whoever reads one, at any time and from any process, sees all of it or the one before.
//!
//! Nothing here knows what the files hold.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file in the making, beside the one that it will replace. Dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct AtomicFile {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl AtomicFile {
    /// Begins to write what will be the file `path`, under a name that no other process uses.
    ///
    /// # Errors
    /// If no file can be created in that directory.
    pub fn create(path: &Path) -> io::Result<Self> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".windlass-").suffix(".part");
        // Others may share the directory: as open as the user's mask lets any new file be.
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o666);
        // Opened here and not by `tempfile`, whose errors tell the user of a path that is none of theirs.
        let file = builder.make_in(directory, |path| options.open(path))?;
        Ok(Self { file: BufWriter::new(file), path: path.to_path_buf() })
    }

    /// Gives the file its name, in place of any that is there. It does not wait for the disk: after a power failure the
    /// file may be torn.
    ///
    /// # Errors
    /// If the rest cannot be written, or the name not be given.
    pub fn finish(self) -> io::Result<()> {
        self.file.into_inner()?.persist(&self.path)?;
        Ok(())
    }

    /// As [`AtomicFile::finish`], once the disk has the content.
    ///
    /// # Errors
    /// If the rest cannot be written, or the name not be given.
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
/// If the file cannot be written; any that was there stays as it is.
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
