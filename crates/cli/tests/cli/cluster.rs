//! Clusters of real processes: started by `launch`, or task by task, as a user with several terminals does.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::{Invocation, Process, Told, eventually, windlass};

/// A cluster that `launch` has started. Its run directory is `run`, and its events are JSON.
pub struct Launched(pub Process);

impl Launched {
    pub fn start(words: &str) -> Self {
        Self::by(windlass(&format!("launch {words} --format json --run-dir run")))
    }

    pub fn by(invocation: Invocation) -> Self {
        Self(invocation.start())
    }

    /// Waits for the process of a task.
    pub fn task(&self, job: &str, index: u32) -> Task {
        let find = || self.tasks().into_iter().find(|task| task.plays(job, index));
        eventually(&format!("{job} {index} is started"), find)
    }

    /// Waits for the process of a joined worker.
    pub fn joined(&self, index: u32) -> Task {
        let is_joined = |task: &Task| {
            let words = task.command_line();
            words.contains("\0join\0") && words.ends_with(&format!("--task-index\0{index}\0"))
        };
        eventually(&format!("joined worker {index} is started"), || self.tasks().into_iter().find(is_joined))
    }

    /// Waits for the process of the client that joined workers compute for.
    pub fn client(&self) -> Task {
        let is_client = |task: &Task| {
            let words = task.command_line();
            words.contains("\0train\0") && !words.contains("--job-name")
        };
        eventually("the client is started", || self.tasks().into_iter().find(is_client))
    }

    /// The process that the test started, such as the launcher.
    pub fn itself(&self) -> Task {
        Task::find(self.0.pid()).expect("it runs")
    }

    /// All live processes that the launcher has started.
    pub fn tasks(&self) -> Vec<Task> {
        Task::of(self.0.pid()).collect()
    }

    /// Waits until a task has written this to its log.
    pub fn logged(&self, task: &str, text: &str) {
        let log = self.log(task);
        let look = || fs::read_to_string(&log).unwrap_or_default().contains(text).then_some(());
        eventually(&format!("{text:?} in the log of {task}"), look);
    }

    /// The path of a task's log, such as that of `worker-0`.
    pub fn log(&self, task: &str) -> PathBuf {
        self.0.directory().join(format!("run/{task}.log"))
    }

    /// Waits for the next event of this kind from a worker.
    pub fn event(&self, kind: &str, worker: u32) -> Value {
        self.0.event(|event| event["event"] == kind && event["worker"] == worker)
    }

    pub fn wait(self) -> Told {
        self.0.wait()
    }
}

/// The summary of a run in the directory `run`.
pub fn summary(told: &Told) -> Value {
    let text = fs::read_to_string(told.directory().join("run/summary.json")).unwrap_or_else(|_| panic!("{told}"));
    serde_json::from_str(&text).unwrap()
}

/// The number of samples per update according to a summary, rounded to thousandths.
pub fn samples_an_update(summary: &Value) -> f64 {
    let [samples, steps] = ["samples_per_second", "steps_per_second"].map(|rate| summary[rate].as_f64().unwrap());
    (samples / steps * 1e3).round() / 1e3
}

/// A process that is not a child of the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pid: Pid,
    parent: i32,
    /// The start time, in ticks since boot, which distinguishes processes that reuse a number.
    started: u64,
}

impl Task {
    /// All processes of this machine.
    fn all() -> impl Iterator<Item = Self> {
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.filter_map(|pid| Self::find(Pid::from_raw(pid)?))
    }

    /// All live processes that `parent` has started.
    pub fn of(parent: Pid) -> impl Iterator<Item = Self> {
        Self::all().filter(move |task| task.parent == parent.as_raw_nonzero().get())
    }

    /// Whether a launcher has started the process as this task.
    pub fn plays(&self, job: &str, index: u32) -> bool {
        self.command_line().ends_with(&format!("--job-name\0{job}\0--task-index\0{index}\0"))
    }

    /// All processes whose working directory this is.
    pub fn all_in(directory: &Path) -> Vec<Self> {
        let directory = directory.canonicalize().unwrap();
        let works_there = |task: &Self| {
            fs::read_link(format!("/proc/{}/cwd", task.pid.as_raw_nonzero())).is_ok_and(|place| place == directory)
        };
        Self::all().filter(works_there).collect()
    }

    /// Returns `None` if the process is gone, or is a zombie whose parent has not noticed yet.
    fn find(pid: Pid) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        // The name, in parentheses, may contain any character.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let task = Self { pid, parent: fields[1].parse().ok()?, started: fields[19].parse().ok()? };
        (!["Z", "X"].contains(&fields[0])).then_some(task)
    }

    pub fn is_alive(&self) -> bool {
        Self::find(self.pid).is_some_and(|found| found.started == self.started)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Continues the process, if it still exists.
    pub fn go_on(&self) {
        let _ = kill_process(self.pid, Signal::CONT);
    }

    /// Its arguments, each followed by a zero byte.
    pub fn command_line(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cmdline", self.pid.as_raw_nonzero())).unwrap_or_default()
    }

    /// Its environment, each variable followed by a zero byte.
    pub fn environment(&self) -> String {
        fs::read_to_string(format!("/proc/{}/environ", self.pid.as_raw_nonzero())).unwrap_or_default()
    }
}

/// Asserts that processes end, whether or not their parents wait for them.
pub fn all_end(tasks: &[Task]) {
    for task in tasks {
        eventually(&format!("{task:?} ends"), || (!task.is_alive()).then_some(()));
    }
}

/// The addresses of a cluster whose tasks are started one by one.
pub struct Hosts {
    pub ps: Vec<String>,
    pub workers: Vec<String>,
}

impl Hosts {
    pub fn new(ps: usize, workers: usize) -> Self {
        let addresses = |count| (0..count).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        Self { ps: addresses(ps), workers: addresses(workers) }
    }

    /// A task, named by the flags of TensorFlow's scripts.
    pub fn task(&self, job: &str, index: usize, words: &str) -> Invocation {
        windlass(&self.words(job, index, words))
    }

    /// The arguments of a task.
    pub fn words(&self, job: &str, index: usize, words: &str) -> String {
        let (ps, workers) = (self.ps.join(","), self.workers.join(","));
        format!("train {words} --job_name={job} --task_index={index} --ps_hosts={ps} --worker_hosts={workers}")
    }
}

/// A port that nobody listens on. The system does not hand out such ports when a program asks for any free one.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + (std::process::id() % 1000) as u16 * 16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    ports.take(1000).find(is_free).expect("some port is free")
}
