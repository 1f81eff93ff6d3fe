//! Whether a run has already ended, as far as its newest checkpoint shows before anything is started. The coordinator,
//! which also knows the data, detects the remaining cases.

use windlass_core::identity::Identity;
use windlass_core::limits::Limits;
use windlass_worker::task::RunConfig;

use crate::args::TrainArgs;
use crate::config::checkpoint_location;
use crate::failure::Failure;
use crate::model_flags::{self, ModelFlags};

/// The message for a run with this number of workers that has already reached its limits; `None` if it has not.
pub(crate) fn already(
    model: &str,
    flags: &ModelFlags,
    args: &TrainArgs,
    run: &RunConfig,
    workers: u32,
) -> Result<Option<String>, Failure> {
    let Some(manifest) = model_flags::resumed(&args.checkpoint, &args.output)? else { return Ok(None) };
    let here = Identity { flags: flags.clone(), ..Identity::default() };
    let fits = manifest.run.model == model && here.difference_from_checkpoint(&manifest.run.identity).is_none();
    if !manifest.last || !fits {
        return Ok(None);
    }
    // Epochs have the same length only over the same data and, if workers share it, with the same number of workers.
    let has_same_epochs = manifest.run.data.as_ref().is_some_and(|data| {
        let is_shared_alike = !data.shard_data || manifest.workers.len() == workers as usize;
        data.batch_size == run.samples_a_step() as u64
            && data.shard_data == run.shard_data
            && data.directory == run.data_dir
            && is_shared_alike
    });
    // A worker that had left by then has completed fewer epochs, yet the run ended without it.
    let recorded = manifest.run.data.as_ref().and_then(|data| data.epochs);
    let all = run.epochs.filter(|_| manifest.run.steps == run.steps && recorded == run.epochs).unwrap_or(0);
    let epochs = |worker| {
        let state = manifest.workers.iter().find(|state| state.worker.0 == worker);
        state.map_or(0, |state| state.position.epoch.max(all))
    };
    let fewest = (0..workers).map(epochs).min().unwrap_or(0);
    let limits = Limits { steps: run.steps, epochs: run.epochs.filter(|_| has_same_epochs) };
    let place = match args.checkpoint.resume.as_str() {
        "auto" => checkpoint_location(&args.checkpoint, args.output.run_dir.as_deref()).unwrap_or_default(),
        place => place.to_owned(),
    };
    Ok(limits.finished(manifest.id.step, fewest, &place))
}
