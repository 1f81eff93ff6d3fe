//! Writes a file at once: whoever reads it, at any time and from any process, sees all of it or the one before.
//!
//! It must not wait for the disk: what a power failure tears is for the reader's checksum to find.

use std::io::{self, Write};
use std::path::Path;

/// Writes `pieces` one after the other as the file `path`, in place of any that is there.
pub(super) fn write(path: &Path, pieces: &[&[u8]]) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".windlass-").suffix(".part");
    // Others may share the directory: as open as the user's mask lets any new file be.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(directory)?;
    pieces.iter().try_for_each(|piece| file.write_all(piece))?;
    file.persist(path)?;
    Ok(())
}
