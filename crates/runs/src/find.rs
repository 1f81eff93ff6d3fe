//! Which directories are run directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use windlass_page::STATUS_FILE;

use crate::error::RunsError;
use crate::files;
use crate::names::{CHECKPOINTS, LOCK_FILE, RUN_FILE, SUMMARY_FILE};
use crate::settings;

/// The number of directory levels that are searched.
const DEPTH: usize = 4;

/// The run directories below a directory.
#[derive(Debug, Default)]
pub struct Found {
    /// Their paths, sorted by name.
    pub runs: Vec<PathBuf>,
    /// Directories that could not be read.
    pub unreadable: Vec<RunsError>,
}

/// Finds run directories: the directory itself, or those a few levels below it, but none inside another. Links and
/// directories whose names begin with a dot are not followed.
///
/// # Errors
/// Fails if the directory is missing or cannot be read.
pub fn find(directory: &Path) -> Result<Found, RunsError> {
    must_be_directory(directory)?;
    let mut found = Found::default();
    if is_run_dir(directory) {
        found.runs.push(directory.to_owned());
        return Ok(found);
    }
    let entries = subdirectories(directory)?;
    entries.into_iter().for_each(|entry| look(entry, DEPTH - 1, &mut found));
    Ok(found)
}

fn look(directory: PathBuf, levels: usize, found: &mut Found) {
    if is_run_dir(&directory) {
        return found.runs.push(directory);
    }
    if levels == 0 {
        return;
    }
    match subdirectories(&directory) {
        Ok(entries) => entries.into_iter().for_each(|entry| look(entry, levels - 1, found)),
        Err(error) => found.unreadable.push(error),
    }
}

/// The subdirectories of a directory, sorted by name.
pub(crate) fn subdirectories(directory: &Path) -> Result<Vec<PathBuf>, RunsError> {
    let unreadable = |error| RunsError::Unreadable { path: directory.to_owned(), error };
    let is_hidden = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(unreadable)?;
    let mut paths: Vec<PathBuf> =
        entries.iter().filter(|entry| is_directory(entry) && !is_hidden(entry)).map(fs::DirEntry::path).collect();
    paths.sort();
    Ok(paths)
}

/// Whether a run has left its files in this directory.
pub fn is_run_dir(directory: &Path) -> bool {
    let json = |name: &str| files::read(&directory.join(name)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let has = |value: &Value, keys: [&str; 2]| keys.iter().all(|key| value.get(key).is_some());
    has_settings(directory)
        || directory.join(CHECKPOINTS).join("generations").is_dir()
        || json(STATUS_FILE).is_some_and(|value| has(&value, ["written", "status"]))
        || json(SUMMARY_FILE).is_some_and(|value| has(&value, ["model", "global_step"]))
}

/// Whether the directory has a settings file of a run, perhaps a damaged one.
fn has_settings(directory: &Path) -> bool {
    let Ok(text) = files::read(&directory.join(RUN_FILE)) else { return false };
    let text = String::from_utf8_lossy(&text);
    settings::is_of_a_run(&text) || directory.join(LOCK_FILE).is_file()
}

/// Fails unless a path is a run directory.
///
/// # Errors
/// Fails if the path does not exist, is not a directory, or has none of the files that a run leaves.
pub fn must_be_run_dir(directory: &Path) -> Result<(), RunsError> {
    must_be_directory(directory)?;
    if is_run_dir(directory) {
        return Ok(());
    }
    let path = directory.to_owned();
    let is_empty =
        fs::read_dir(directory).map_err(|error| RunsError::Unreadable { path: path.clone(), error })?.next().is_none();
    let why = match is_empty {
        true => "it is empty".to_owned(),
        false => format!("it has no {RUN_FILE}, {STATUS_FILE}, {SUMMARY_FILE} or {CHECKPOINTS} of a run"),
    };
    Err(RunsError::NotARun { path, why })
}

fn must_be_directory(path: &Path) -> Result<(), RunsError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(RunsError::NotADirectory { path: path.to_owned(), what: "not a directory" }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(RunsError::Missing { path: path.to_owned() }),
        Err(error) => Err(RunsError::Unreadable { path: path.to_owned(), error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, text: &str) {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn every_file_that_a_run_leaves_tells_of_it() {
        let root = tempfile::tempdir().unwrap();
        for (run, file, text) in [
            ("a", RUN_FILE, "model-name = \"mnist\"\n"),
            ("b/c", SUMMARY_FILE, r#"{"model": "mnist", "global_step": 3}"#),
            ("d", STATUS_FILE, r#"{"written": 3, "status": {}}"#),
            ("e", "checkpoints/generations/000001", "{}"),
        ] {
            write(&root.path().join(run), file, text);
        }
        // Neither hidden directories, nor those inside a run, nor those that only look like runs.
        write(&root.path().join(".f"), RUN_FILE, "model-name = \"mnist\"\n");
        write(&root.path().join("a/within"), RUN_FILE, "model-name = \"mnist\"\n");
        write(&root.path().join("g"), RUN_FILE, "[package]\nname = \"run\"\n");
        write(&root.path().join("g"), SUMMARY_FILE, "[]");
        std::os::unix::fs::symlink(root.path().join("a"), root.path().join("link")).unwrap();
        let found = find(root.path()).unwrap();
        let names = ["a", "b/c", "d", "e"].map(|name| root.path().join(name));
        assert_eq!((found.runs.as_slice(), found.unreadable.len()), (&names[..], 0));
        assert_eq!(find(&names[0]).unwrap().runs, [names[0].clone()]);
    }

    #[test]
    fn a_damaged_file_of_settings_is_still_that_of_a_run_if_there_is_a_lock() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), RUN_FILE, "model-na\u{0}me = [[[");
        assert!(!is_run_dir(root.path()));
        write(root.path(), LOCK_FILE, "");
        assert!(is_run_dir(root.path()));
    }

    #[test]
    fn what_is_no_run_directory_is_refused_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let refused = |path: &Path| must_be_run_dir(path).unwrap_err().to_string();
        assert!(refused(root.path()).ends_with("is not a run directory: it is empty"));
        write(root.path(), "notes.txt", "");
        assert!(refused(root.path()).contains("it has no run.toml"));
        assert!(refused(&root.path().join("notes.txt")).ends_with("is not a directory"));
        assert!(refused(&root.path().join("nothing")).starts_with("there is no directory"));
        assert!(find(root.path()).unwrap().runs.is_empty());
    }
}
