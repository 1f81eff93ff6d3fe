//! One event file: its contents, their order, and how it is written.
//!
//! Every file begins with a session start. TensorBoard then drops what earlier files of the directory say about that
//! step and later ones, so that a resumed run replaces the points it computes again. It ignores the first session start
//! in a directory, so even a file that resumes nothing has one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::error::BoardError;
use crate::hparams::{self, HParam};
use crate::proto::{
    self, Event, HParamsData, SessionLog, Summary, SummaryMetadata, TaggedValue, TensorProto, Value, What,
};
use crate::{histogram, png, record};

/// The maximum length of a tag in bytes. TensorBoard's pages put tags into URLs, whose length is limited.
pub const LONGEST_TAG: usize = 1024;

/// Up to this many bytes of events are buffered in memory.
const BUFFER_BYTES: usize = 64 << 10;

/// The prefix of every event file's name, which TensorBoard looks for.
const PREFIX: &str = "events.out.tfevents.";

/// The prefix for event files of an earlier run.
const EARLIER_PREFIX: &str = "earlier-run.";

/// When something was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The step of the run.
    pub step: u64,
    /// The wall-clock time.
    pub wall_time: SystemTime,
}

impl Moment {
    /// `step`, at the current time.
    pub fn now(step: u64) -> Self {
        Self { step, wall_time: SystemTime::now() }
    }

    /// The time in seconds since 1970.
    fn seconds(&self) -> f64 {
        self.wall_time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }
}

/// Writes one event file. Events are buffered until [`flush`](Self::flush), a full buffer, or the drop.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
    /// The length of the file, which always holds complete records.
    written: u64,
    buffer: Vec<u8>,
}

impl EventWriter {
    /// Starts a new run in `directory`, which is created if needed. Event files of another run there are renamed, so
    /// that TensorBoard no longer finds them.
    pub fn create(directory: impl AsRef<Path>) -> Result<Self, BoardError> {
        set_aside(directory.as_ref())?;
        Self::resume(directory, 0)
    }

    /// Continues the run in `directory`. `step` is the first that is computed again: TensorBoard drops what the earlier
    /// files say about it and later steps. (Its fast loading ignores session starts, and drops old points curve by
    /// curve, from the step of the first new point on.)
    pub fn resume(directory: impl AsRef<Path>, step: u64) -> Result<Self, BoardError> {
        let (path, file) = create_newest_file(directory.as_ref())?;
        let mut writer = Self { path, file, written: 0, buffer: Vec::with_capacity(BUFFER_BYTES) };
        let start = Moment::now(step);
        writer.append(Moment { step: 0, ..start }, What::FileVersion("brain.Event:2".into()))?;
        writer.append(start, What::SessionLog(SessionLog { status: proto::SESSION_START }))?;
        writer.flush()?;
        Ok(writer)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one point of several curves. Values are stored as 32-bit floats. Values that are not finite are stored,
    /// too, and TensorBoard marks them.
    pub fn scalars(&mut self, at: Moment, scalars: &[(&str, f64)]) -> Result<(), BoardError> {
        let tagged = |(tag, value): &(&str, f64)| self.tagged(tag, Value::Simple(*value as f32));
        let values = scalars.iter().map(tagged).collect::<Result<Vec<_>, _>>()?;
        if values.is_empty() { Ok(()) } else { self.append(at, What::Summary(Summary { values })) }
    }

    /// Writes the histogram of the finite values, or nothing if there are none. Returns how many were not finite and
    /// hence left out.
    pub fn histogram(&mut self, at: Moment, tag: &str, values: &[f32]) -> Result<usize, BoardError> {
        let Some(histogram) = histogram::of(values) else { return Ok(values.len()) };
        let left_out = values.len() - histogram.num as usize;
        let value = self.tagged(tag, Value::Histogram(histogram))?;
        self.append(at, What::Summary(Summary { values: vec![value] }))?;
        Ok(left_out)
    }

    /// Writes a text, which TensorBoard shows as Markdown.
    pub fn text(&mut self, at: Moment, tag: &str, markdown: &str) -> Result<(), BoardError> {
        let text = TensorProto {
            data_type: proto::STRING_TYPE,
            shape: Some(proto::TensorShape::default()),
            strings: vec![markdown.as_bytes().to_vec()],
        };
        self.tensor(at, tag, text, proto::PluginData { name: "text".into(), content: Vec::new() })
    }

    /// Writes a picture in PNG format.
    pub fn image(&mut self, at: Moment, tag: &str, png: &[u8]) -> Result<(), BoardError> {
        let Some(image) = png::image(png) else {
            return Err(BoardError::NotPng { path: self.path.clone(), tag: tag.into() });
        };
        let value = self.tagged(tag, Value::Image(image))?;
        self.append(at, What::Summary(Summary { values: vec![value] }))
    }

    /// Tells the HParams tab that this directory is a session with these hyperparameters. Its metrics are the curves of
    /// the directory and of those below it. Only the first session start in a directory counts.
    pub fn session_start(&mut self, at: Moment, hparams: &[(String, HParam)]) -> Result<(), BoardError> {
        self.hparams(at, "_hparams_/session_start_info", hparams::start(hparams, at.seconds()))
    }

    /// Tells the HParams tab that the session has ended successfully.
    pub fn session_end(&mut self, at: Moment) -> Result<(), BoardError> {
        self.hparams(at, "_hparams_/session_end_info", hparams::end(at.seconds()))
    }

    /// Writes data for the HParams plugin. It is all in the metadata; the tensor has no values.
    fn hparams(&mut self, at: Moment, tag: &str, data: HParamsData) -> Result<(), BoardError> {
        let dimensions = vec![proto::Dimension { size: 0 }];
        let shape = Some(proto::TensorShape { dimensions });
        let tensor = TensorProto { data_type: proto::FLOAT_TYPE, shape, strings: Vec::new() };
        let plugin = proto::PluginData { name: "hparams".into(), content: data.encode_to_vec() };
        self.tensor(at, tag, tensor, plugin)
    }

    fn tensor(
        &mut self,
        at: Moment,
        tag: &str,
        tensor: TensorProto,
        plugin: proto::PluginData,
    ) -> Result<(), BoardError> {
        let mut value = self.tagged(tag, Value::Tensor(tensor))?;
        value.metadata = Some(SummaryMetadata { plugin: Some(plugin), data_class: proto::TENSOR_CLASS });
        self.append(at, What::Summary(Summary { values: vec![value] }))
    }

    /// Passes all buffered events to the system, so that TensorBoard can read them and they survive the end of this
    /// process.
    ///
    /// Call it before a checkpoint is published: a run that resumes from it then finds every earlier point.
    pub fn flush(&mut self) -> Result<(), BoardError> {
        let outcome = self.file.write_all(&self.buffer);
        match outcome {
            Ok(()) => self.written += self.buffer.len() as u64,
            // A partial record would make TensorBoard ignore everything after it, should there be room again.
            Err(_) => drop(self.file.set_len(self.written)),
        }
        self.buffer.clear();
        outcome.map_err(|source| BoardError::Write { path: self.path.clone(), source })
    }

    fn tagged(&self, tag: &str, value: Value) -> Result<TaggedValue, BoardError> {
        let path = || self.path.clone();
        match tag.len() {
            0 => Err(BoardError::EmptyTag { path: path() }),
            1..=LONGEST_TAG => Ok(TaggedValue { tag: tag.into(), metadata: None, value: Some(value) }),
            length => {
                let start = tag.chars().take(40).collect();
                Err(BoardError::LongTag { path: path(), start, length, limit: LONGEST_TAG })
            }
        }
    }

    fn append(&mut self, at: Moment, what: What) -> Result<(), BoardError> {
        let event =
            Event { wall_time: at.seconds(), step: i64::try_from(at.step).unwrap_or(i64::MAX), what: Some(what) };
        record::append(&mut self.buffer, &event);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }
}

impl Drop for EventWriter {
    /// Flushes and ignores errors. To learn of them, call [`flush`](EventWriter::flush) first.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// Creates the file that sorts last in `directory`.
///
/// TensorBoard reads files in order of their names. The name contains the second of creation, which is advanced past
/// that of existing files: the run may resume within the same second, or on a host whose clock is behind.
fn create_newest_file(directory: &Path) -> Result<(PathBuf, File), BoardError> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let unusable = |source| BoardError::Directory { path: directory.into(), source };
    fs::create_dir_all(directory).map_err(unusable)?;
    let mut seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for entry in fs::read_dir(directory).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name();
        if let Some(earlier) = name.to_str().and_then(creation_second) {
            seconds = seconds.max(earlier.saturating_add(1));
        }
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let process = std::process::id();
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("{PREFIX}{seconds:010}.{host}.{process}.{number}"));
    // Append mode, so that a write after a failed one lands right after the complete records.
    match OpenOptions::new().append(true).create_new(true).open(&path) {
        Ok(file) => Ok((path, file)),
        Err(source) => Err(BoardError::Create { path, source }),
    }
}

/// Renames the event files in a directory, if it exists, so that TensorBoard no longer finds them.
///
/// A session start would suffice for curves. But TensorBoard keeps the first metadata that a directory has for a tag,
/// and hyperparameters consist only of metadata.
pub(crate) fn set_aside(directory: &Path) -> Result<(), BoardError> {
    let unusable = |source| BoardError::Directory { path: directory.into(), source };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(unusable)?,
    };
    for entry in entries {
        let path = entry.map_err(unusable)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(rest) = name.and_then(|name| name.strip_prefix(PREFIX)) {
            fs::rename(&path, directory.join(format!("{EARLIER_PREFIX}{rest}"))).map_err(unusable)?;
        }
    }
    Ok(())
}

/// The second in the name of an event file.
fn creation_second(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
