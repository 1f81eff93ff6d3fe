//! `RUN_DIR/run.toml`: all settings of a run, for information, for repeating the run, and for the tasks that `launch`
//! starts.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass_core::lifecycle::exit_code;
use windlass_core::optimizer::Optimizer;
use windlass_runs::names::{LOCK_FILE, RUN_FILE};
use windlass_worker::task::RunConfig;

use crate::config::command_line;
use crate::failure::Failure;
use crate::settings::Settings;

/// How often, and after which pauses, to retry a lock that another process holds: `windlass runs` takes it only
/// briefly.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// The settings file of a run.
pub(crate) struct RunFile {
    path: PathBuf,
    text: String,
    /// The contents before this run.
    earlier: Option<String>,
    /// Held while this process lives, so that no other run replaces the file before all tasks have read it.
    _lock: Option<File>,
}

impl RunFile {
    /// Writes the file to the run directory, which must exist. Fails if a live run has its file there, unless `insists`
    /// is set.
    pub(crate) fn create(run_dir: &Path, text: String, insists: bool) -> Result<Self, Failure> {
        let lock = lock(run_dir);
        if matches!(lock, Err(TryLockError::WouldBlock)) && !insists {
            let message = format!("{} is in use by another run on this machine", run_dir.display());
            let hint = "end that run first, give this one its own --run-dir, or pass --take-over".to_owned();
            return Err(Failure { exit_code: exit_code::CHECKPOINT, message, hint: Some(hint) });
        }
        let path = run_dir.join(RUN_FILE);
        let cannot_write = |error| Failure::usage(format!("cannot write {}: {error}", path.display()));
        windlass_files::require_file(&path).map_err(cannot_write)?;
        let earlier = std::fs::read_to_string(&path).ok();
        let file = Self { path: path.clone(), text, earlier, _lock: lock.ok() };
        file.write(&file.text).map_err(cannot_write)?;
        Ok(file)
    }

    /// The run directory.
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Rewrites the file if it was changed: a restarted task must read the same settings as those before it.
    pub(crate) fn ensure(&self) -> std::io::Result<()> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) if text == self.text => Ok(()),
            _ => self.write(&self.text).map_err(|error| {
                std::io::Error::new(error.kind(), format!("cannot write {}: {error}", self.path.display()))
            }),
        }
    }

    /// Restores the previous contents: this run has not begun, and the file should describe one that has.
    pub(crate) fn restore(&self) {
        if let Some(earlier) = &self.earlier {
            // An error cannot be reported to anyone any more.
            let _ = self.write(earlier);
        }
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        windlass_files::write(&self.path, &[text.as_bytes()])
    }
}

/// Takes the lock on a run directory. Some file systems have no locks; there, the lease on the checkpoints has to
/// suffice.
pub(crate) fn lock(run_dir: &Path) -> Result<File, TryLockError> {
    let file = File::options().create(true).truncate(false).write(true).open(run_dir.join(LOCK_FILE));
    let file = file.map_err(TryLockError::Error)?;
    for _ in 1..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            locked => return locked.map(|()| file),
        }
    }
    file.try_lock().map(|()| file)
}

/// The text of the file: the settings of the user, of a checkpoint and of the model, and defaults.
pub(crate) fn text(settings: &Settings, run: &RunConfig) -> Result<String, Failure> {
    let mut settings = settings.clone();
    let options = options(run.optimizer)?;
    settings.resolve("optimizer", [run.optimizer.name().to_owned()]);
    settings.resolve("optimizer-option", options);
    settings.resolve("learning-rate", [run.learning_rate.to_string()]);
    settings.resolve("batch-size", [run.batch_size.to_string()]);
    if run.clip_norm.is_some() || settings.is_given("clip-norm") {
        // If it were omitted, the model's default would apply.
        settings.resolve("clip-norm", [run.clip_norm.unwrap_or(0.0).to_string()]);
    }
    settings.resolve("steps", run.steps.map(|steps| steps.to_string()));
    settings.resolve("epochs", run.epochs.map(|epochs| epochs.to_string()));
    let command = command_line().replace(char::is_control, "?");
    Ok(format!(
        "# {command}\n\
         # All settings of this run, and where each comes from. --config FILE starts\n\
         # another run with them. Flags and WINDLASS_... variables override the file; a\n\
         # setting whose line you delete gets its default.\n\
         {}",
        settings.to_toml()
    ))
}

/// The constants of an optimizer that differ from its defaults, written as for `--optimizer-option`.
fn options(optimizer: Optimizer) -> Result<Vec<String>, Failure> {
    let usual = Optimizer::named(optimizer.name()).map_err(Failure::internal)?;
    let fields = |optimizer: Optimizer| serde_json::to_value(optimizer).map_err(Failure::internal);
    let (fields, usual) = (fields(optimizer)?, fields(usual)?);
    let differing = fields.as_object().into_iter().flatten().filter(|(name, value)| usual.get(name) != Some(value));
    Ok(differing.map(|(name, value)| format!("{name}={}", shortest(value))).collect())
}

/// A constant is an `f32`, which JSON would write with more digits than necessary.
fn shortest(value: &serde_json::Value) -> String {
    let number = value.as_f64().map(|number| number as f32).filter(|number| value.as_f64() == Some(f64::from(*number)));
    number.map_or_else(|| value.to_string(), |number| number.to_string())
}
