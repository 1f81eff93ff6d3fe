//! `RUN_DIR/run.toml`: all settings of a run, for those who want to know, for another run like it, and for the tasks that
//! `launch` starts.

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

/// How often, and after which pauses, a lock that another process has is tried again: `windlass runs` only looks at it.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// The file of a run.
pub(crate) struct RunFile {
    path: PathBuf,
    text: String,
    /// What was there before.
    earlier: Option<String>,
    /// Held as long as this process lives, so that no other run puts its own file there before all tasks have read this.
    _lock: Option<File>,
}

impl RunFile {
    /// Writes it to the run directory, which there must be, unless a living run has its own there and this one does not
    /// insist.
    pub(crate) fn create(run_dir: &Path, text: String, insists: bool) -> Result<Self, Failure> {
        let lock = lock(run_dir);
        if matches!(lock, Err(TryLockError::WouldBlock)) && !insists {
            let message = format!("{} is in use by another run on this machine", run_dir.display());
            let hint = "end that run first, give this one its own --run-dir, or pass --take-over".to_owned();
            return Err(Failure { exit_code: exit_code::CHECKPOINT, message, hint: Some(hint) });
        }
        let path = run_dir.join(RUN_FILE);
        let earlier = std::fs::read_to_string(&path).ok();
        let file = Self { path, text, earlier, _lock: lock.ok() };
        file.write(&file.text)
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", file.path.display())))?;
        Ok(file)
    }

    /// The run directory.
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it again if somebody else has: a task that is started now is to read what those before it have read.
    pub(crate) fn ensure(&self) -> std::io::Result<()> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) if text == self.text => Ok(()),
            _ => self.write(&self.text).map_err(|error| {
                std::io::Error::new(error.kind(), format!("cannot write {}: {error}", self.path.display()))
            }),
        }
    }

    /// Puts back what was there before: this run has not begun, and the file tells of one that has.
    pub(crate) fn restore(&self) {
        if let Some(earlier) = &self.earlier {
            // There is nobody left to be told.
            let _ = self.write(earlier);
        }
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        windlass_files::write(&self.path, &[text.as_bytes()])
    }
}

/// Takes the lock on a run directory. Not all file systems have locks: without one, the checkpoints' lease has to do.
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

/// The text of the file: what the user has set, what a checkpoint and the model have, and defaults.
pub(crate) fn text(settings: &Settings, run: &RunConfig) -> Result<String, Failure> {
    let mut settings = settings.clone();
    let options = options(run.optimizer)?;
    settings.resolve("optimizer", [run.optimizer.name().to_owned()]);
    settings.resolve("optimizer-option", options);
    settings.resolve("learning-rate", [run.learning_rate.to_string()]);
    settings.resolve("batch-size", [run.batch_size.to_string()]);
    if run.clip_norm.is_some() || settings.is_given("clip-norm") {
        // Left out, it would be the model's default.
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

/// What sets an optimizer apart from the usual one of its name, as `--optimizer-option` has it.
fn options(optimizer: Optimizer) -> Result<Vec<String>, Failure> {
    let usual = Optimizer::named(optimizer.name()).map_err(Failure::internal)?;
    let fields = |optimizer: Optimizer| serde_json::to_value(optimizer).map_err(Failure::internal);
    let (fields, usual) = (fields(optimizer)?, fields(usual)?);
    let differing = fields.as_object().into_iter().flatten().filter(|(name, value)| usual.get(name) != Some(value));
    Ok(differing.map(|(name, value)| format!("{name}={}", shortest(value))).collect())
}

/// A constant is an `f32`, which JSON has with digits that it does not need.
fn shortest(value: &serde_json::Value) -> String {
    let number = value.as_f64().map(|number| number as f32).filter(|number| value.as_f64() == Some(f64::from(*number)));
    number.map_or_else(|| value.to_string(), |number| number.to_string())
}
