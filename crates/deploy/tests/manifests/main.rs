//! Tests of printed manifests.

mod clusters;
mod examples;
mod monitoring;
mod names;
mod pods;
mod refusals;
mod slurm;
mod snapshots;

use clap::Parser;
use serde_json::Value;
use windlass_deploy::{Arguments, Error, Request, render};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

/// Parses the flags of `windlass manifest` into a request.
fn request(words: &str) -> Result<Request, Error> {
    let words = ["manifest"].into_iter().chain(words.split_whitespace());
    Command::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).arguments.try_into()
}

/// What `windlass manifest` prints.
fn manifest(words: &str) -> String {
    request(words).and_then(|request| render(&request)).unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// The documents of a manifest.
fn documents(manifest: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(manifest).unwrap_or_else(|error| panic!("{error}: {manifest}"))
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no text at {pointer} in {value}"))
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {pointer} in {value}"))
}

/// The pod templates of a manifest of any kind, each with its Job, or with the object from which a controller creates
/// the Job.
fn templates(manifest: &str) -> Vec<(Value, Value)> {
    let mut found = Vec::new();
    for document in documents(manifest) {
        collect(&document, &mut found);
    }
    found
}

fn collect(value: &Value, found: &mut Vec<(Value, Value)>) {
    match value {
        Value::Object(fields) => {
            if let Some(template) = fields.get("template").filter(|template| template["spec"]["containers"].is_array())
            {
                found.push((value.clone(), template.clone()));
            }
            fields.values().for_each(|field| collect(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        _ => {}
    }
}
