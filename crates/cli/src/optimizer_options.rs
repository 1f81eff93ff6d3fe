//! `--optimizer` and `--optimizer-option`: an optimizer with its constants, each checked by name and range.

use serde_json::Value;
use windlass_core::optimizer::Optimizer;

use crate::args::TrainingArgs;
use crate::failure::Failure;

/// The range of a constant.
#[derive(Clone, Copy)]
enum Range {
    /// The decay factor of a moving average.
    BelowOne,
    ZeroOrMore,
    AboveZero,
    Switch,
}

impl Range {
    /// The range of a constant, by its name, which means the same for every optimizer.
    fn of(name: &str) -> Self {
        match name {
            "nesterov" => Self::Switch,
            "epsilon" => Self::AboveZero,
            "weight_decay" | "initial_accumulator" => Self::ZeroOrMore,
            _ => Self::BelowOne,
        }
    }

    fn contains(self, value: &Value) -> bool {
        match (self, value.as_f64().map(|number| number as f32)) {
            (Self::Switch, _) => value.is_boolean(),
            (Self::BelowOne, Some(number)) => (0.0..1.0).contains(&number),
            (Self::ZeroOrMore, Some(number)) => number >= 0.0 && number.is_finite(),
            (Self::AboveZero, Some(number)) => number > 0.0 && number.is_finite(),
            (_, None) => false,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::BelowOne => "from 0 to below 1",
            Self::ZeroOrMore => "zero or more",
            Self::AboveZero => "above zero",
            Self::Switch => "true or false",
        }
    }
}

/// The optimizer chosen by the user, or else the model's, with the constants that the user has set.
pub(crate) fn optimizer(args: &TrainingArgs, default: Optimizer) -> Result<Optimizer, Failure> {
    let optimizer = match &args.optimizer {
        Some(name) => Optimizer::named(name).map_err(Failure::usage)?,
        None => default,
    };
    let mut fields = serde_json::to_value(optimizer).map_err(Failure::internal)?;
    for option in &args.optimizer_option {
        let bad = |why: String| {
            Failure::usage(format!("--optimizer-option {option}: {why}")).with_hint(settings(optimizer, &fields))
        };
        let Some((name, value)) = option.split_once('=') else { return Err(bad("write NAME=VALUE".to_owned())) };
        if fields.get(name).is_none() || name == "name" {
            return Err(bad(format!("{optimizer} has no setting {name:?}")));
        }
        let range = Range::of(name);
        match serde_json::from_str(value).ok().filter(|value| range.contains(value)) {
            Some(value) => fields[name] = value,
            None => return Err(bad(format!("{name} must be {}", range.describe()))),
        }
    }
    serde_json::from_value(fields).map_err(Failure::internal)
}

/// Lists the constants of an optimizer and their ranges.
fn settings(optimizer: Optimizer, fields: &Value) -> String {
    let names = fields.as_object().into_iter().flat_map(|fields| fields.keys()).filter(|name| *name != "name");
    let settings: Vec<String> = names.map(|name| format!("{name} ({})", Range::of(name).describe())).collect();
    match settings.len() {
        0 => format!("{optimizer} has no settings"),
        _ => format!("the settings of {optimizer} are {}", settings.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_constants_of_every_optimizer_are_in_range() {
        for optimizer in Optimizer::all() {
            let fields = serde_json::to_value(optimizer).unwrap();
            for (name, value) in fields.as_object().unwrap().iter().filter(|(name, _)| *name != "name") {
                assert!(Range::of(name).contains(value), "{optimizer}: {name}={value}");
            }
        }
    }
}
