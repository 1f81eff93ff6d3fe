//! A model's own flags, as stored in checkpoints: recording them, and restoring those that the user omitted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command};
use windlass_checkpoint::{CheckpointId, Manifest, Store};
use windlass_core::identity::{FlagRole, ModelFlag};
use windlass_core::lifecycle::exit_code;
use windlass_worker::model::Model;

use crate::args::{CheckpointArgs, OutputArgs};
use crate::config::{absolute_path, checkpoint_location};
use crate::failure::Failure;
use crate::settings::{Settings, arguments, name, values};
use crate::store_location;

/// How long a task of a cluster looks for a checkpoint. Workers do not need access to the store: in that case ps 0
/// tells them about a wrong flag.
const LOOK_FOR: Duration = Duration::from_secs(10);

/// The flags by name.
pub(crate) type ModelFlags = BTreeMap<String, ModelFlag>;

/// The model's flags to record in a checkpoint.
pub(crate) fn recorded<M: Model>(matches: &ArgMatches) -> ModelFlags {
    let command = M::Flags::augment_args(Command::new(M::NAME));
    let flag = |arg: &Arg| {
        let name = name(arg);
        let role = M::flag_role(&name);
        let values = values(matches, arg).into_iter();
        let mut values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
        if role == FlagRole::Input {
            values.iter_mut().for_each(|value| *value = absolute_path(Path::new(value)));
        }
        (role != FlagRole::Output).then_some((name, ModelFlag { role, values }))
    };
    command.get_arguments().filter_map(flag).collect()
}

/// The recorded values of flags that the model still has.
pub(crate) fn of_checkpoint(command: &Command, recorded: &ModelFlags) -> BTreeMap<String, Vec<OsString>> {
    let named = command.get_arguments().filter(|arg| arg.get_long().is_some()).map(name);
    let values = |flag: &ModelFlag| flag.values.iter().map(OsString::from).collect();
    named.filter_map(|name| recorded.get(&name).map(|flag| (name, values(flag)))).collect()
}

/// The model's own flags as given by the user, completed from a checkpoint.
pub(crate) fn completed<M: Model>(
    matches: &ArgMatches,
    settings: &Settings,
    trained: &Manifest,
) -> Result<ArgMatches, Failure> {
    let command = M::Flags::augment_args(Command::new(M::NAME));
    let recorded = of_checkpoint(&command, &trained.run.identity.flags);
    let defaults = command.clone().ignore_errors(true).try_get_matches_from([M::NAME]).unwrap_or_default();
    let words = command.get_arguments().filter(|arg| arg.get_long().is_some()).flat_map(|arg| {
        let of_checkpoint = recorded.get(&name(arg)).filter(|_| !settings.is_given(&name(arg)));
        let wanted = of_checkpoint.cloned().unwrap_or_else(|| values(matches, arg));
        if wanted == values(&defaults, arg) { Vec::new() } else { arguments(arg, &wanted) }
    });
    let words: Vec<OsString> = std::iter::once(OsString::from(M::NAME)).chain(words).collect();
    command.try_get_matches_from(words).map_err(|error| contradiction(trained.id, &error))
}

/// The failure for flags that contradict those of a checkpoint.
pub(crate) fn contradiction(id: CheckpointId, error: &clap::Error) -> Failure {
    let error = error.to_string();
    let reason = error.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let message = format!("the flags conflict with those of checkpoint {id}: {reason}");
    Failure { exit_code: exit_code::CHECKPOINT, message, hint: None }
}

/// The checkpoint that a run will resume from, if it is visible from here.
pub(crate) fn resumed(checkpoint: &CheckpointArgs, output: &OutputArgs) -> Result<Option<Manifest>, Failure> {
    let (location, id) = match checkpoint.resume.as_str() {
        "never" => return Ok(None),
        "auto" => match checkpoint_location(checkpoint, output.run_dir.as_deref()) {
            Some(location) => (location, None),
            None => return Ok(None),
        },
        place => {
            let (location, id) = store_location::split(place)?;
            (store_location::store_in(location), id)
        }
    };
    if !can_be_looked_at(&location) {
        return Ok(None);
    }
    Ok(in_time(find_manifest(&location, id)).flatten())
}

/// The newest checkpoint in a store, or `Some(None)` if it has none; `None` if the store cannot be read from here.
pub(crate) fn newest_in(location: &str) -> Option<Option<Manifest>> {
    match can_be_looked_at(location) {
        true => in_time(find_manifest(location, None)),
        false => (!location.contains("://")).then_some(None),
    }
}

async fn find_manifest(location: &str, id: Option<CheckpointId>) -> Option<Option<Manifest>> {
    let store = Store::open(location).ok()?;
    match id {
        Some(id) => store.load(&id).await.ok().map(Some),
        None => Some(store.newest_whole().await.ok()?.manifest),
    }
}

fn in_time<T>(looking: impl Future<Output = Option<T>>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async { tokio::time::timeout(LOOK_FOR, looking).await }).ok().flatten()
}

/// Whether a store may be opened. Opening a directory would create it. An object store is always queried: whether
/// credentials are available, for instance from the machine itself, cannot be known beforehand.
fn can_be_looked_at(location: &str) -> bool {
    match location.split_once("://") {
        None => Path::new(location).is_dir(),
        Some(("file", path)) => Path::new(path).is_dir(),
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use windlass_models::{Mnist, Seq2Seq};

    use super::*;
    use crate::settings::{Resolver, Schema};

    fn command<M: Model>() -> Command {
        M::Flags::augment_args(Command::new(M::NAME))
    }

    fn parse<M: Model>(words: &str) -> ArgMatches {
        command::<M>().get_matches_from(std::iter::once("model").chain(words.split_whitespace()))
    }

    /// The flags of a run that continues a run started with `first` and gives the flags `again`.
    fn taken_up<M: Model>(first: &str, again: &str) -> ModelFlags {
        let trained = recorded::<M>(&parse::<M>(first));
        let root = Command::new("windlass").subcommand(Command::new("train").subcommand(command::<M>()));
        let mut built = command::<M>();
        built.build();
        let schema = Schema {
            verb: "train".to_owned(),
            model: Some(M::NAME.to_owned()),
            command: built,
            launch: BTreeSet::new(),
            cluster: BTreeSet::new(),
            join: BTreeSet::new(),
            models: Vec::new(),
        };
        let words: Vec<OsString> =
            ["windlass", "train", M::NAME].into_iter().chain(again.split_whitespace()).map(OsString::from).collect();
        let mut resolver = Resolver::new(&root, &words, &schema).unwrap();
        resolver.add_checkpoint("an earlier one", of_checkpoint(&command::<M>(), &trained));
        let matches = resolver.matches().unwrap();
        recorded::<M>(matches.subcommand_matches("train").unwrap().subcommand_matches(M::NAME).unwrap())
    }

    #[test]
    fn every_store_is_looked_into_but_a_directory_that_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path().to_str().unwrap();
        for location in [here, &format!("file://{here}"), "s3://bucket/run", "gs://bucket/run", "az://container/run"] {
            assert!(can_be_looked_at(location), "{location}");
        }
        for location in [format!("{here}/none"), format!("file://{here}/none")] {
            assert!(!can_be_looked_at(&location), "{location}");
            assert!(newest_in(&location).is_none_or(|found| found.is_none()), "{location}");
        }
        assert!(!directory.path().join("none").exists(), "looking makes nothing");
    }

    #[test]
    fn flags_that_are_not_given_are_those_of_the_checkpoint() {
        let trained = recorded::<Mnist>(&parse::<Mnist>("--variant sigmoid --hidden 8,9"));
        assert_eq!(trained["hidden"].values, ["8", "9"]);
        assert_eq!(taken_up::<Mnist>("--variant sigmoid --hidden 8,9", ""), trained);
        let given = taken_up::<Mnist>("--variant sigmoid --hidden 8,9", "--variant relu");
        assert_eq!((&given["variant"].values[0][..], given["hidden"].values.len()), ("relu", 2));
    }

    #[test]
    fn switches_lists_and_places_are_taken_up_too() {
        let first = "--dense-tables --buckets 5,10 7,12 --train-from /a --train-to /b --text-cache /c";
        let flags = taken_up::<Seq2Seq>(first, "--train-from /d --train-to /e");
        assert_eq!(flags["dense-tables"].values, ["true"]);
        assert_eq!(flags["buckets"].values, ["5,10", "7,12"]);
        assert_eq!(flags["train-from"].values, ["/d"]);
        assert!(!flags.contains_key("text-cache"), "it is of no concern to others");
        assert_eq!(taken_up::<Seq2Seq>(first, "")["train-to"].values, ["/b"]);
    }
}
