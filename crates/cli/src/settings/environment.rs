//! Settings from the environment: the variable of `--learning-rate` is `WINDLASS_LEARNING_RATE`. Every flag has one,
//! including those of users' own models.

use std::ffi::{OsStr, OsString};

use clap::Arg;

use super::schema::{Schema, is_switch, joined_by_commas, name, switch_value, takes_many};
use super::{Origin, Stated, similar, split_values};
use crate::failure::Failure;
use crate::verbosity;

const PREFIX: &str = "WINDLASS_";

/// Variables with that prefix that are not settings: messages from the launcher to its tasks, a switch that disables a
/// transport, one that makes a cluster of Slurm's tasks, the file for the termination message, and variables for the
/// tests. A flag with such a name has no variable. (`WINDLASS_SEED` is also read by randomized tests, which start no
/// `windlass`; the tests that do start it remove all these variables from its environment.)
const RESERVED: [&str; 10] = [
    "LAUNCHED_AS",
    "LISTENER",
    "NO_SHARED_MEMORY",
    "NO_UNIX",
    "PYTHON",
    "S3_ENDPOINT",
    "SEEDS",
    "SLURM_PORT",
    "SLURM_PS",
    "TERMINATION_LOG",
];

/// Reads the settings of a command from the environment.
pub(super) fn read(schema: &Schema, get: impl Fn(&str) -> Option<OsString>) -> Result<Vec<Stated>, Failure> {
    let mut stated = Vec::new();
    for arg in schema.settings() {
        // Manifests of containers cannot always omit a variable, so an empty one counts as unset.
        let set = |variable: String| get(&variable).filter(|value| !value.is_empty()).map(|value| (variable, value));
        let Some((variable, value)) = names_of(arg).iter().filter_map(|name| variable(name)).find_map(set) else {
            continue;
        };
        stated.push(Stated {
            name: name(arg),
            values: values(arg, &variable, value)?,
            origin: Origin::Variable(variable),
        });
    }
    Ok(stated)
}

/// Whether a variable may belong to a flag.
pub(crate) fn may_set(variable: &str) -> bool {
    variable.strip_prefix(PREFIX).is_some_and(|name| !RESERVED.contains(&name))
}

/// The variable of a flag.
pub(crate) fn variable(flag: &str) -> Option<String> {
    let name = flag.to_uppercase().replace('-', "_");
    (!RESERVED.contains(&name.as_str())).then(|| format!("{PREFIX}{name}"))
}

/// The names of a flag, its own first: users know some flags by their aliases.
fn names_of(arg: &Arg) -> Vec<String> {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    std::iter::once(name(arg)).chain(aliases.into_iter().map(str::to_owned)).collect()
}

/// The variables that set something for this command or for the tasks that it starts.
pub(super) fn variables(schema: &Schema) -> Vec<String> {
    let of_commands = verbosity::FLAGS.into_iter().chain(["config"]).map(str::to_owned);
    let names = schema.settings().flat_map(names_of).chain(schema.cluster.iter().cloned()).chain(of_commands);
    names.filter_map(|name| variable(&name)).collect()
}

fn values(arg: &Arg, variable: &str, value: OsString) -> Result<Vec<OsString>, Failure> {
    if is_switch(arg) {
        return Ok(vec![switch_value(arg, is_on(variable, &value, &name(arg))?)]);
    }
    match value.to_str() {
        Some(text) if takes_many(arg) && arg.get_value_delimiter().is_none() && !joined_by_commas(arg) => {
            Ok(text.split_whitespace().map(OsString::from).collect())
        }
        _ => Ok(split_values(arg, vec![value])),
    }
}

/// The value of a switch's variable, if it is set.
pub(crate) fn switched(flag: &str) -> Result<Option<bool>, Failure> {
    let set = variable(flag).and_then(|variable| Some((std::env::var_os(&variable)?, variable)));
    let set = set.filter(|(value, _)| !value.is_empty());
    set.map(|(value, variable)| is_on(&variable, &value, flag)).transpose()
}

fn is_on(variable: &str, value: &OsStr, flag: &str) -> Result<bool, Failure> {
    match value.to_str().map(str::to_lowercase).as_deref() {
        Some("true" | "1" | "yes" | "on") => Ok(true),
        Some("false" | "0" | "no" | "off") => Ok(false),
        _ => {
            let value = value.to_string_lossy();
            let hint = "set it to true or false".to_owned();
            Err(Failure::usage(format!("{variable} is {value:?}, but --{flag} is a switch")).with_hint(hint))
        }
    }
}

/// Flags that request something other than a run. A variable, which may be set for many commands, must not do that.
const FLAGS_ONLY: [&str; 2] = ["print-config", "print-cluster"];

/// Messages about variables that have no effect but look as if they were meant to be settings.
pub(crate) fn without_effect(set: impl Iterator<Item = OsString>, known: &[String]) -> Vec<String> {
    let is_known = |variable: &String| {
        known.contains(variable) || variable.strip_prefix(PREFIX).is_some_and(|name| RESERVED.contains(&name))
    };
    let set: Vec<String> = set.filter_map(|variable| variable.into_string().ok()).collect();
    let is_set = |flag: &&str| variable(flag).is_some_and(|variable| set.contains(&variable));
    let flags_only = FLAGS_ONLY.into_iter().filter(is_set).map(|flag| {
        let variable = variable(flag).unwrap_or_default();
        format!("{variable} sets nothing; pass --{flag} on the command line")
    });
    let candidates = set
        .iter()
        .filter(|variable| variable.starts_with(PREFIX) && !is_known(variable) && !is_of_kubernetes(variable));
    let names: Vec<&str> = known.iter().map(|variable| &variable[PREFIX.len()..]).collect();
    let misspelt = candidates.filter_map(|variable| {
        let meant = similar(&variable[PREFIX.len()..], names.iter().copied())?;
        Some(format!("{variable} sets nothing; did you mean {PREFIX}{meant}?"))
    });
    flags_only.chain(misspelt).collect()
}

/// Kubernetes sets `WINDLASS_WORKER_PORT` and others for a service called `windlass-worker`.
fn is_of_kubernetes(variable: &str) -> bool {
    variable.ends_with("_PORT") || variable.contains("_SERVICE_") || variable.contains("_PORT_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_variable_that_looks_like_a_setting_is_told_of() {
        let known = ["WINDLASS_LEARNING_RATE", "WINDLASS_STEPS", "WINDLASS_WORKERS", "WINDLASS_PRINT_CONFIG"];
        let known = known.map(str::to_owned);
        let set =
            ["WINDLASS_LEARNIG_RATE", "WINDLASS_STEPS", "WINDLASS_PORT", "WINDLASS_SEEDS", "WINDLASS_WORKER_PORT"];
        let told = without_effect(set.into_iter().map(OsString::from), &known);
        assert_eq!(told, ["WINDLASS_LEARNIG_RATE sets nothing; did you mean WINDLASS_LEARNING_RATE?"]);
        let told = without_effect(["WINDLASS_PRINT_CONFIG"].into_iter().map(OsString::from), &known);
        assert_eq!(told, ["WINDLASS_PRINT_CONFIG sets nothing; pass --print-config on the command line"]);
    }

    #[test]
    fn what_the_launcher_tells_its_tasks_is_no_setting() {
        assert_eq!(variable("listener"), None);
        assert_eq!(variable("ps-hosts").as_deref(), Some("WINDLASS_PS_HOSTS"));
    }
}
