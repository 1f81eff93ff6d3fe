//! The location of a checkpoint, as users write it: a run directory, a store, or one manifest in it.

use std::path::Path;

use windlass_checkpoint::CheckpointId;

use crate::failure::Failure;

pub(crate) use windlass_runs::names::CHECKPOINTS;

/// Splits a location into the store and, if one is named, the checkpoint in it: `DIR`, `DIR/ID.json` or `DIR/ID`.
pub(crate) fn split(place: &str) -> Result<(String, Option<CheckpointId>), Failure> {
    let trimmed = place.trim_end_matches('/');
    let (store, name) = trimmed.rsplit_once('/').unwrap_or((".", trimmed));
    match name.strip_suffix(".json").unwrap_or(name).parse::<CheckpointId>() {
        Ok(id) => Ok((store.to_owned(), Some(id))),
        Err(error) if name.ends_with(".json") => Err(Failure::usage(format!("{place:?} is not a checkpoint: {error}"))
            .with_hint("name a directory of checkpoints, or one of the .json files in it".to_owned())),
        Err(_) => Ok((place.to_owned(), None)),
    }
}

/// The store at a location: for a run directory, its checkpoints.
pub(crate) fn store_in(location: String) -> String {
    let inner = Path::new(&location).join(CHECKPOINTS);
    // A store may have a folder of any name in it, but only a store has claims.
    let is_run_dir = !location.contains("://") && inner.is_dir() && !Path::new(&location).join("generations").is_dir();
    if is_run_dir { inner.display().to_string() } else { location }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_told_from_a_store() {
        let id = CheckpointId { step: 12, generation: 3, attempt: 9 };
        for place in [format!("runs/a/checkpoints/{id}.json"), format!("runs/a/checkpoints/{id}")] {
            assert_eq!(split(&place).unwrap(), ("runs/a/checkpoints".to_owned(), Some(id)));
        }
        assert_eq!(split("s3://bucket/run/").unwrap(), ("s3://bucket/run/".to_owned(), None));
        assert!(split("runs/a/other.json").unwrap_err().to_string().contains("is not a checkpoint"));
    }

    #[test]
    fn a_run_directory_stands_for_its_checkpoints() {
        let run = tempfile::tempdir().unwrap();
        let (run_dir, store) = (run.path().display().to_string(), run.path().join(CHECKPOINTS));
        assert_eq!(store_in(run_dir.clone()), run_dir, "there are none");
        std::fs::create_dir_all(store.join("generations")).unwrap();
        let store = store.display().to_string();
        assert_eq!(store_in(run_dir), store);
        assert_eq!(store_in(store.clone()), store);
    }
}
