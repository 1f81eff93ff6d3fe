//! `windlass checkpoint`: manages the checkpoints of a run.

use std::path::PathBuf;

use clap::{ArgMatches, Command, FromArgMatches, Parser};
use comfy_table::CellAlignment;
use serde::Serialize;
use windlass_checkpoint::{CheckpointError, CheckpointId, Listed, Manifest, Store};
use windlass_core::lifecycle::exit_code;
use windlass_core::parameter::ParameterKind;

use crate::failure::Failure;
use crate::output::{count, plain_table, print_json, print_line};
use crate::{logging, store_location};

/// Manage the checkpoints of a run
#[derive(Debug, Parser)]
struct CheckpointCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the checkpoints, newest first
    List {
        /// Run directory, checkpoint directory, or s3://, gs:// or az://BUCKET/PREFIX
        location: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read checkpoints in full, verify their checksums, and report any damage
    Verify {
        /// Checkpoint location, or a manifest (a .json file)
        location: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a checkpoint holds
    Inspect {
        /// Checkpoint location (shows the newest), or a manifest
        location: String,
        /// Print the whole manifest as JSON
        #[arg(long)]
        json: bool,
    },
    /// Export the values to one safetensors file, under the parameter names
    Export {
        /// Checkpoint location (exports the newest), or a manifest
        location: String,
        /// The file to write
        #[arg(long, short, value_name = "FILE", default_value = "model.safetensors")]
        output: PathBuf,
    },
    /// Remove all but the newest checkpoints, and what crashes left behind
    Prune {
        /// Checkpoint location
        location: String,
        /// How many whole checkpoints to keep
        #[arg(long, value_name = "N", default_value_t = 3)]
        keep: usize,
    },
}

pub(crate) fn command() -> Command {
    <CheckpointCommand as clap::CommandFactory>::command().name("checkpoint")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let command = CheckpointCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    logging::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    runtime.block_on(async {
        match command.action {
            Action::List { location, json } => list(&location, json).await,
            Action::Verify { location, json } => verify(&location, json).await,
            Action::Inspect { location, json } => inspect(&location, json).await,
            Action::Export { location, output } => {
                let (store, manifest) = find(&location).await?;
                store.export(&manifest, &output).await.map_err(unusable)?;
                let parameters = count(manifest.run.parameters.len(), "parameter");
                print_line(&format!("wrote {parameters} of step {} to {}", manifest.id.step, output.display()));
                Ok(())
            }
            Action::Prune { location, keep } => prune(&location, keep).await,
        }
    })
}

/// A checkpoint in a list, as JSON. Unknown values of a damaged checkpoint are omitted.
#[derive(Serialize)]
struct ListedJson {
    checkpoint: String,
    step: u64,
    /// In seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ps: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
}

impl From<&Listed> for ListedJson {
    fn from(listed: &Listed) -> Self {
        let manifest = listed.outcome.as_ref().ok();
        Self {
            checkpoint: listed.id.to_string(),
            step: listed.id.step,
            created: manifest.map(|manifest| manifest.created),
            bytes: manifest.map(Manifest::bytes),
            ps: manifest.map(|manifest| manifest.parts.len()),
            model: manifest.map(|manifest| manifest.run.model.clone()),
            damage: listed.outcome.as_ref().err().map(ToString::to_string),
        }
    }
}

async fn list(place: &str, json: bool) -> Result<(), Failure> {
    let (store, _) = open(place)?;
    let listed = store.list().await.map_err(unusable)?;
    if json {
        return print_json(&listed.iter().map(ListedJson::from).collect::<Vec<_>>());
    }
    if listed.is_empty() {
        print_line(&format!("no checkpoints in {place}"));
        return Ok(());
    }
    let mut table = plain_table();
    table.set_header(["step", "taken (UTC)", "MB", "ps", "model", "checkpoint", ""]);
    for column in [0, 2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for entry in &listed {
        let (step, id) = (entry.id.step.to_string(), entry.id.to_string());
        match &entry.outcome {
            Ok(manifest) => table.add_row([
                step,
                time(manifest.created),
                format!("{:.1}", manifest.bytes() as f64 * 1e-6),
                manifest.parts.len().to_string(),
                manifest.run.model.clone(),
                id,
                String::new(),
            ]),
            Err(error) => table.add_row([
                step,
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                id,
                format!("damaged: {error}"),
            ]),
        };
    }
    print_line(&table.to_string());
    Ok(())
}

/// The problems of a checkpoint, as JSON.
#[derive(Serialize)]
struct VerifiedJson {
    checkpoint: String,
    whole: bool,
    damage: Vec<String>,
}

async fn verify(place: &str, json: bool) -> Result<(), Failure> {
    let (store, id) = open(place)?;
    let ids: Vec<CheckpointId> = match id {
        Some(id) => vec![id],
        None => store.list().await.map_err(unusable)?.into_iter().map(|listed| listed.id).collect(),
    };
    if ids.is_empty() {
        return Err(nothing_in(place));
    }
    let mut verified = Vec::new();
    for id in &ids {
        let damage = problems(&store, id).await?;
        if !json {
            print_line(&format!("{id}: {}", if damage.is_empty() { "whole" } else { "DAMAGED" }));
            damage.iter().for_each(|problem| print_line(&format!("  {problem}")));
        }
        verified.push(VerifiedJson { checkpoint: id.to_string(), whole: damage.is_empty(), damage });
    }
    if json {
        print_json(&verified)?;
    }
    let damaged = verified.iter().filter(|verified| !verified.whole).count();
    if damaged == 0 {
        return Ok(());
    }
    let message = format!("{damaged} of {} damaged", count(ids.len(), "checkpoint"));
    Err(Failure { exit_code: exit_code::CHECKPOINT, message, hint: None })
}

/// All problems of a checkpoint.
async fn problems(store: &Store, id: &CheckpointId) -> Result<Vec<String>, Failure> {
    let manifest = match store.load(id).await {
        Ok(manifest) => manifest,
        Err(error) if error.is_damage() => return Ok(vec![error.to_string()]),
        Err(error) => return Err(unusable(error)),
    };
    let report = store.verify(&manifest).await.map_err(unusable)?;
    let of_part = |part: windlass_checkpoint::PartReport| {
        part.damage.into_iter().map(move |damage| format!("`{}` {damage}", part.object))
    };
    Ok(report.parts.into_iter().flat_map(of_part).collect())
}

/// A checkpoint as JSON: its manifest, its name and its size.
#[derive(Serialize)]
struct InspectedJson<'a> {
    checkpoint: String,
    bytes: u64,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

async fn inspect(place: &str, json: bool) -> Result<(), Failure> {
    let (_, manifest) = find(place).await?;
    if json {
        let (checkpoint, bytes) = (manifest.id.to_string(), manifest.bytes());
        return print_json(&InspectedJson { checkpoint, bytes, manifest: &manifest });
    }
    let run = &manifest.run;
    let mut facts = plain_table();
    let mut row = |name: &str, value: String| {
        facts.add_row([name.to_owned(), value]);
    };
    row("checkpoint", manifest.id.to_string());
    row("taken", format!("{} UTC", time(manifest.created)));
    row("model", format!("{}, {} values", run.model, run.parameters.elements()));
    for (name, flag) in run.identity.flags.iter().filter(|(_, flag)| !flag.values.is_empty()) {
        row(&format!("--{name}"), flag.values.join(" "));
    }
    row("training", format!("step {}, {}, {}", manifest.id.step, run.mode.name(), run.optimizer));
    row("learning rate", manifest.learning_rate.rate.to_string());
    row("parts", format!("{} of {:.1} MB in all", manifest.parts.len(), manifest.bytes() as f64 * 1e-6));
    for worker in &manifest.workers {
        let position = worker.position;
        let place = format!("epoch {}, batch {}", position.epoch + 1, position.batch);
        row(&worker.worker.to_string(), format!("{} batches, now in {place}", position.local_step));
    }
    row("command", manifest.config.clone());
    print_line(&facts.trim_fmt());
    let mut parameters = plain_table();
    parameters.set_header(["parameter", "shape"]);
    for (_, spec) in run.parameters.iter() {
        let shape: Vec<String> = spec.shape.iter().map(ToString::to_string).collect();
        let kind = match spec.kind {
            ParameterKind::Trained => "",
            ParameterKind::State => " (running statistics)",
            ParameterKind::Constant => " (frozen)",
        };
        parameters.add_row([spec.name.clone(), format!("{}{kind}", shape.join(" x "))]);
    }
    print_line(&format!("\n{}", parameters.trim_fmt()));
    Ok(())
}

async fn prune(place: &str, keep: usize) -> Result<(), Failure> {
    if keep == 0 {
        return Err(Failure::usage("--keep is 0, but must be at least 1")
            .with_hint("to keep no checkpoint at all, remove the directory".to_owned()));
    }
    let (store, _) = open(place)?;
    let pruned = store.prune(keep).await.map_err(unusable)?;
    pruned.checkpoints.iter().for_each(|id| print_line(&format!("removed {id}")));
    pruned.attempts.iter().for_each(|id| print_line(&format!("removed what was left of {id}")));
    let left = store.list().await.map_err(unusable)?.len();
    print_line(&format!("{} left in {place}", count(left, "checkpoint")));
    Ok(())
}

/// The checkpoint that a user names, or the newest undamaged one in the named place.
pub(crate) async fn find(place: &str) -> Result<(Store, Manifest), Failure> {
    let (store, id) = open(place)?;
    let manifest = match id {
        Some(id) => store.load(&id).await.map_err(unusable)?,
        None => store.newest_whole().await.map_err(unusable)?.manifest.ok_or_else(|| nothing_in(place))?,
    };
    Ok((store, manifest))
}

/// Opens an existing store: a command that only reads must not create a directory.
fn open(place: &str) -> Result<(Store, Option<CheckpointId>), Failure> {
    let (location, id) = store_location::split(place)?;
    let location = store_location::store_in(location);
    if !location.contains("://") && !std::path::Path::new(&location).is_dir() {
        return Err(Failure::usage(format!("there is no directory {location}"))
            .with_hint("a run keeps its checkpoints in RUN_DIR/checkpoints".to_owned()));
    }
    Ok((Store::open(&location).map_err(unusable)?, id))
}

fn nothing_in(place: &str) -> Failure {
    let message = format!("there is no whole checkpoint in {place}");
    Failure { exit_code: exit_code::CHECKPOINT, message, hint: None }
}

pub(crate) fn unusable(error: CheckpointError) -> Failure {
    let exit_code =
        if matches!(error, CheckpointError::BadLocation { .. }) { exit_code::USAGE } else { exit_code::CHECKPOINT };
    let hint = error.hint().map(str::to_owned);
    Failure { exit_code, message: error.to_string(), hint }
}

/// Formats seconds since 1970 as a date and time of day.
fn time(seconds: u64) -> String {
    chrono::DateTime::from_timestamp(seconds as i64, 0)
        .map_or_else(|| seconds.to_string(), |time| time.format("%Y-%m-%d %H:%M:%S").to_string())
}
