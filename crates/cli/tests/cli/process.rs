//! Runs the real binary: every process has a deadline, and is killed at the end of its test.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The longest that these tests wait for anything, however slow the machine.
pub const LIMIT: Duration = Duration::from_secs(180);

/// The time between two polls of a condition that cannot be waited for directly.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Polls until there is an answer. A condition that can be waited for, such as a line of output, is not polled.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = look() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not after {LIMIT:?}");
        std::thread::sleep(LOOK_EVERY);
    }
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// `windlass` with these arguments.
pub fn windlass(words: &str) -> Invocation {
    Invocation::new(Path::new(PROGRAM), words)
}

/// A command that has not been started. It inherits nothing from the environment of the tests.
pub struct Invocation {
    command: Command,
    directory: Rc<TempDir>,
}

impl Invocation {
    /// A command that runs in a temporary directory of its own.
    pub fn new(program: &Path, words: &str) -> Self {
        Self::within(Rc::new(TempDir::new().unwrap()), program, words)
    }

    fn within(directory: Rc<TempDir>, program: &Path, words: &str) -> Self {
        let mut command = Command::new(program);
        command.args(words.split_whitespace()).current_dir(directory.path());
        for variable in ["TF_CONFIG", "RUST_LOG", "COLUMNS", "LINES", "HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
            command.env_remove(variable);
        }
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINDLASS_")) {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, directory }
    }

    /// Adds one argument, whatever it contains.
    pub fn with(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Writes a file to the directory in which the command will run.
    pub fn with_file(self, name: &str, content: &str) -> Self {
        let path = self.directory.path().join(name);
        path.parent().map(std::fs::create_dir_all).transpose().unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    /// The directory in which the command will run.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Passes this text to standard input.
    pub fn with_input(mut self, text: impl AsRef<[u8]>) -> Self {
        let path = self.directory.path().join("input");
        std::fs::write(&path, text).unwrap();
        self.command.stdin(std::fs::File::open(path).unwrap());
        self
    }

    /// Makes standard output a pipe whose reader has already ended.
    pub fn without_reader(mut self) -> Self {
        let (_, writer) = std::io::pipe().unwrap();
        self.command.stdout(writer);
        self
    }

    /// The underlying command, for anything not covered above.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    pub fn start(mut self) -> Process {
        let mut child = self.command.spawn().unwrap();
        let stdout = child.stdout.take().map_or_else(|| Lines::new(std::io::empty()), Lines::new);
        let stderr = Lines::new(child.stderr.take().unwrap());
        Process { child, stdout, stderr, directory: self.directory }
    }

    /// Runs the command to its end.
    pub fn run(self) -> Told {
        self.start().wait()
    }
}

/// A running `windlass`, killed on drop. (Its children die with it, unless a test shows otherwise.)
pub struct Process {
    child: Child,
    stdout: Lines,
    stderr: Lines,
    directory: Rc<TempDir>,
}

impl Process {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The directory in which the process runs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Another `windlass` in that directory.
    pub fn windlass(&self, words: &str) -> Invocation {
        self.invoke(Path::new(PROGRAM), words)
    }

    /// Another program in that directory.
    pub fn invoke(&self, program: &Path, words: &str) -> Invocation {
        Invocation::within(self.directory.clone(), program, words)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the next event of `--format json` that satisfies a condition.
    pub fn event(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let event = |line: &str| serde_json::from_str(line).ok().filter(&wanted);
        self.stdout.next("an event", event).unwrap_or_else(|why| panic!("{why}\n{}", self.so_far()))
    }

    /// Waits for the next line of the log that contains this text.
    pub fn log(&self, text: &str) -> String {
        let line = |line: &str| line.contains(text).then(|| line.to_owned());
        self.stderr.next(text, line).unwrap_or_else(|why| panic!("{why}\n{}", self.so_far()))
    }

    /// Waits until the process ends by itself, and returns its output.
    pub fn wait(mut self) -> Told {
        let deadline = Instant::now() + LIMIT;
        // Its output ends with it, unless a child survives and keeps the pipe open.
        let ended = self.stdout.read_to_end(deadline).and_then(|()| self.stderr.read_to_end(deadline));
        if let Err(why) = ended {
            panic!("it does not end: {why}\n{}", self.so_far());
        }
        let status = self.child.wait().unwrap();
        Told { status, stdout: self.stdout.text(), stderr: self.stderr.text(), directory: self.directory.clone() }
    }

    /// Kills the process.
    pub fn kill(self) {
        self.killed();
    }

    /// Kills the process, and returns its output.
    pub fn killed(mut self) -> Told {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        Told { status, stdout: self.stdout.text(), stderr: self.stderr.text(), directory: self.directory.clone() }
    }

    fn so_far(&self) -> String {
        format!("--- stdout\n{}--- stderr\n{}", self.stdout.text(), self.stderr.text())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a process ended, and its output.
pub struct Told {
    status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    directory: Rc<TempDir>,
}

impl Told {
    /// The exit code; `None` if a signal ended the process.
    pub fn exit_code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The directory in which the process ran.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Another `windlass` in that directory.
    pub fn windlass(&self, words: &str) -> Invocation {
        self.invoke(Path::new(PROGRAM), words)
    }

    /// Another program in that directory.
    pub fn invoke(&self, program: &Path, words: &str) -> Invocation {
        Invocation::within(self.directory.clone(), program, words)
    }

    /// A command line in that directory, run by a shell.
    pub fn shell(&self, command: &str) -> Invocation {
        Invocation::within(self.directory.clone(), Path::new("sh"), "-c").with(command)
    }

    /// The rest of the line on standard error that starts with `begin`.
    pub fn after(&self, begin: &str) -> &str {
        let line = self.stderr.lines().find_map(|line| line.strip_prefix(begin));
        line.unwrap_or_else(|| panic!("no line begins with {begin:?} in {self}"))
    }

    /// Replaces a text that differs from run to run by a name, for snapshots.
    pub fn naming(mut self, text: &str, name: &str) -> Self {
        self.stdout = self.stdout.replace(text, name);
        self.stderr = self.stderr.replace(text, name);
        self
    }

    /// Removes the lines of the log, for snapshots.
    pub fn without_log(mut self) -> Self {
        let lines = self.stderr.lines().filter(|line| !is_log(line));
        self.stderr = lines.map(|line| format!("{line}\n")).collect();
        self
    }

    /// Asserts that the command succeeded.
    pub fn succeeded(self) -> Self {
        assert_eq!(self.exit_code(), Some(0), "{self}");
        self
    }

    /// The last event of this kind in the output of `--format json`.
    pub fn event(&self, kind: &str) -> Value {
        let mut events = self.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let last = events.rfind(|event| event["event"] == kind);
        last.unwrap_or_else(|| panic!("no {kind} in\n{self}"))
    }
}

/// Everything that a user sees.
impl fmt::Display for Told {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exit = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (_, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        write!(formatter, "{exit}\n--- stdout\n{}--- stderr\n{}", self.stdout, self.stderr)
    }
}

/// Whether a line begins with the time, as in `21:37:32.998`.
fn is_log(line: &str) -> bool {
    let time = line.as_bytes().first_chunk::<12>();
    time.is_some_and(|time| [time[2], time[5], time[8]] == *b"::." && time[0].is_ascii_digit())
}

/// The lines of a stream, as they arrive.
struct Lines {
    arriving: mpsc::Receiver<String>,
    read: RefCell<String>,
}

impl Lines {
    fn new(stream: impl Read + Send + 'static) -> Self {
        let (sender, arriving) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { arriving, read: RefCell::default() }
    }

    /// Reads until `wanted` accepts a line, and returns its result.
    fn next<T>(&self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.read_line(deadline) {
                Ok(line) => {
                    if let Some(found) = wanted(&line) {
                        return Ok(found);
                    }
                }
                Err(why) => return Err(format!("no {what:?}: {why}")),
            }
        }
    }

    fn read_to_end(&self, deadline: Instant) -> Result<(), mpsc::RecvTimeoutError> {
        loop {
            match self.read_line(deadline) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
                Err(timeout) => return Err(timeout),
            }
        }
    }

    fn read_line(&self, deadline: Instant) -> Result<String, mpsc::RecvTimeoutError> {
        let line = self.arriving.recv_timeout(deadline.saturating_duration_since(Instant::now()))?;
        let mut read = self.read.borrow_mut();
        read.push_str(&line);
        read.push('\n');
        Ok(line)
    }

    fn text(&self) -> String {
        self.read.borrow().clone()
    }
}
