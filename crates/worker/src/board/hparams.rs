//! The hyperparameters of a run: the settings that decide how it learns. Its length is not among them: a resumed run
//! may be longer, but TensorBoard would show the original value.

use windlass_core::consistency::Mode;
use windlass_core::identity::FlagRole;
use windlass_core::schedule::Schedule;
use windlass_tensorboard::HParam;

use crate::config::{RunConfig, WorkerConfig};

/// The hyperparameters, named after their flags with underscores; the optimizer's constants keep their own names.
pub(crate) fn of_run(model: &str, config: &WorkerConfig, run: &RunConfig) -> Vec<(String, HParam)> {
    let text = |text: &str| HParam::Text(text.to_owned());
    let count = |count: usize| HParam::Number(count as f64);
    let mut hparams = vec![
        ("model", text(model)),
        ("mode", text(run.mode.name())),
        ("optimizer", text(run.optimizer.name())),
        ("learning_rate", decimal(run.learning_rate)),
        ("batch_size", count(run.batch_size)),
        ("accumulate", count(run.accumulate)),
        ("towers", count(run.towers)),
        ("seed", HParam::Number(run.seed as f64)),
        ("shard_data", HParam::Switch(run.shard_data)),
        ("ps", count(config.servers as usize)),
    ];
    hparams.extend(config.workers.map(|workers| ("workers", count(workers as usize))));
    hparams.extend(run.clip_norm.map(|norm| ("clip_norm", decimal(norm))));
    if run.schedule != Schedule::Constant {
        hparams.push(("learning_rate_schedule", HParam::Text(run.schedule.to_string())));
    }
    match run.mode {
        Mode::Sync { replicas_to_aggregate } => {
            let replicas = replicas_to_aggregate.or(config.workers);
            hparams.extend(replicas.map(|replicas| ("replicas_to_aggregate", count(replicas as usize))));
        }
        Mode::Ssp { staleness } => hparams.push(("staleness", HParam::Number(staleness as f64))),
        Mode::Async => {}
    }
    if !matches!(run.mode, Mode::Sync { .. }) {
        hparams.push(("staleness_scaling", HParam::Switch(run.staleness_scaling)));
    }
    let own = hparams.into_iter().map(|(name, value)| (name.to_owned(), value));
    own.chain(of_optimizer(run)).chain(of_model(run)).collect()
}

/// The optimizer's constants.
fn of_optimizer(run: &RunConfig) -> impl Iterator<Item = (String, HParam)> {
    // Goes through text, where a single-precision value has few digits; converted to double precision it would have
    // many.
    let text = serde_json::to_string(&run.optimizer).unwrap_or_default();
    let constants: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::Bool(switch) => Some(HParam::Switch(*switch)),
        value => value.as_f64().map(HParam::Number),
    };
    constants.into_iter().filter_map(move |(name, constant)| Some((name, value(&constant)?)))
}

/// The model's flags that affect what it learns.
fn of_model(run: &RunConfig) -> impl Iterator<Item = (String, HParam)> {
    let decides = |role| matches!(role, FlagRole::Network | FlagRole::Training);
    let flags = run.model_flags.iter().filter(move |(_, flag)| decides(flag.role) && !flag.values.is_empty());
    flags.map(|(name, flag)| (name.replace('-', "_"), HParam::parse(&flag.values.join(" "))))
}

/// Converts a float with the digits that a user would write.
fn decimal(float: f32) -> HParam {
    HParam::parse(&float.to_string())
}
