//! Clap's errors about an invalid command line, with our own hints added: which other command has an unknown flag.
//! Flags that `launch` passes to its tasks are never suggested.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::settings::Schema;

/// Prints the error, and exits as clap does.
pub(crate) fn exit(error: clap::Error, schema: &Schema) -> ! {
    advised(error, schema).exit()
}

fn advised(mut error: clap::Error, schema: &Schema) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let given = text(&error, ContextKind::InvalidArg);
    let tip = given.and_then(|flag| elsewhere(flag.trim_start_matches('-'), schema));
    let is_hidden = text(&error, ContextKind::SuggestedArg).is_some_and(|flag| is_hidden(&schema.command, flag));
    if tip.is_some() || is_hidden {
        error.remove(ContextKind::SuggestedArg);
        // The usage would otherwise show the suggested flag.
        error.insert(ContextKind::Usage, ContextValue::StyledStr(schema.command.clone().render_usage()));
    }
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Lists the available models if the named one does not exist, and says where `manifest` expects the model.
pub(crate) fn with_models(mut error: clap::Error, verb: &str, models: &[&str]) -> clap::Error {
    let tip = match (error.kind(), verb) {
        (ErrorKind::InvalidSubcommand, "train" | "launch" | "eval") => return no_model(&error, models),
        (ErrorKind::UnknownArgument, "manifest") => text(&error, ContextKind::InvalidArg)
            .filter(|word| models.contains(word))
            .map(|model| format!("put the model and its flags after `--`: -- {model} ...")),
        _ => None,
    };
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Replaces "unrecognized subcommand": a model is a subcommand only to clap.
fn no_model(error: &clap::Error, models: &[&str]) -> clap::Error {
    let given = text(error, ContextKind::InvalidSubcommand).unwrap_or_default();
    let similar = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(similar)) => similar.iter().find(|model| models.contains(&model.as_str())),
        _ => None,
    };
    let perhaps = similar.map(|model| format!("did you mean '{model}'? ")).unwrap_or_default();
    let usage = error.get(ContextKind::Usage).map(|usage| format!("{usage}\n\n")).unwrap_or_default();
    let message = format!(
        "there is no model '{given}'\n\n  tip: {perhaps}the models are {}\n\n{usage}For more information, try '--help'.\n",
        models.join(", ")
    );
    clap::Error::raw(ErrorKind::InvalidSubcommand, message)
}

/// The other command that has a flag which this one lacks.
fn elsewhere(flag: &str, schema: &Schema) -> Option<String> {
    match schema.verb.as_str() {
        "train" if schema.launch.contains(flag) => Some(format!(
            "`{}` takes --{flag}; `train` runs in one process, or as one task of the cluster that --ps_hosts and \
             --worker_hosts name",
            schema.written_with("launch")
        )),
        "launch" if schema.cluster.contains(flag) => Some(format!(
            "`{}` takes --{flag}; `launch` starts all tasks and chooses their addresses",
            schema.written_with("train")
        )),
        _ => None,
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

fn is_hidden(command: &Command, flag: &str) -> bool {
    let flag = flag.trim_start_matches('-');
    command.get_arguments().any(|arg| arg.get_long() == Some(flag) && arg.is_hide_set())
}
