//! The command line of a task: what the user wrote after `--`, and what the manifest adds.

use windlass_core::cluster::{Job, TaskId};

use crate::{Error, Kind, Request, Storage};

/// Where the storage is mounted in a container.
pub(crate) const RUNS: &str = "/runs";

/// Flags that the manifest sets, or that would contradict it.
const RESERVED: [&str; 12] = [
    "--job-name",
    "--task-index",
    "--ps-hosts",
    "--worker-hosts",
    "--cluster",
    "--colocate",
    "--run-dir",
    "--checkpoint-dir",
    "--bind",
    // A replaced task gets the same command line again: flags that are right for its first start would undo its work.
    "--resume",
    "--take-over",
    "--restarted",
];

/// Pods may wait long for a node, or for a pod on a lost node to be replaced. Slurm starts all tasks at once and
/// restarts none of them.
const PEER_TIMEOUT_SECONDS: &str = "1800";

const TOWERS_FLAG: &str = "--towers";
const STALL_FLAG: &str = "--checkpoint-stall-secs";
const DEFAULT_STALL_SECONDS: f64 = 30.0;
const DAY_SECONDS: u32 = 86_400;
/// The longest time before the time limit at which Slurm can send a signal.
const LONGEST_GRACE_UNDER_SLURM: u32 = 65_535;
/// The stall limit from which [`grace_seconds`] derives that.
const LONGEST_STALL_UNDER_SLURM: u32 = 21_835;

/// How a task learns of the cluster.
pub(crate) enum Naming<'a> {
    /// By flags with the address of each task; the index comes from the Indexed Job.
    Hosts(&'a dyn Fn(TaskId) -> String),
    /// By flags with the address of each task and the index.
    HostsAndIndex(&'a dyn Fn(TaskId) -> String, u32),
    /// By variables that the scheduler or operator sets.
    Variables,
}

/// Refuses a command line that cannot be passed on to the tasks.
pub(crate) fn check(request: &Request) -> Result<(), Error> {
    let Request { kind, gpus, command, .. } = request;
    match command.first() {
        Some(model) if !model.is_empty() && !model.starts_with('-') => {}
        _ => return Err(Error::NoModel),
    }
    for word in command {
        if word.contains(|character: char| character.is_control()) {
            return Err(Error::ControlCharacter { what: "the command", text: word.clone() });
        }
        let flag = normal(word);
        if RESERVED.contains(&flag.as_str()) {
            return Err(Error::ReservedFlag { flag });
        }
    }
    check_towers(*gpus, command)?;
    check_grace(*kind, request.grace_seconds)?;
    stall_seconds(request).map(drop)
}

fn check_grace(kind: Kind, grace: Option<u32>) -> Result<(), Error> {
    let most = if kind == Kind::Slurm { LONGEST_GRACE_UNDER_SLURM } else { DAY_SECONDS };
    match grace {
        Some(seconds) if seconds == 0 || seconds > most => {
            Err(Error::Seconds { flag: "--grace", value: seconds.to_string(), most })
        }
        _ => Ok(()),
    }
}

/// The arguments of a task, after the program's name.
pub(crate) fn arguments(request: &Request, job: Job, naming: &Naming<'_>) -> Vec<String> {
    let mut arguments = vec!["train".to_owned(), request.command[0].clone()];
    let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
    if let Naming::Hosts(address) | Naming::HostsAndIndex(address, _) = naming {
        let list = |wanted: Job| {
            let of_job = request.tasks().filter(|task| task.job == wanted);
            of_job.map(address).collect::<Vec<String>>().join(",")
        };
        add("--job-name", job.to_string());
        if let Naming::HostsAndIndex(_, index) = naming {
            add("--task-index", index.to_string());
        }
        if request.ps > 0 {
            add("--ps-hosts", list(Job::Ps));
        }
        add("--worker-hosts", list(Job::Worker));
    }
    if request.has_run_dir() {
        add("--run-dir", run_dir(request));
    }
    if let Some(Storage::Objects(url)) = &request.storage {
        add("--checkpoint-dir", format!("{url}/{}", request.name));
    }
    let flags: Vec<String> = request.command[1..].iter().map(|word| normal(word)).collect();
    if request.kind != Kind::Slurm && !flags.iter().any(|flag| flag == "--peer-timeout") {
        add("--peer-timeout", PEER_TIMEOUT_SECONDS.to_owned());
    }
    if job == Job::Worker && request.gpus > 0 && !says_where(&request.command) {
        let cards: Vec<String> = (0..request.gpus).map(|index| format!("gpu:{index}")).collect();
        add("--devices", cards.join(","));
    }
    // Neither the index of an Indexed Job nor the task number of Slurm says whether workers hold the parameters.
    if request.ps == 0 && !matches!(naming, Naming::Variables) {
        arguments.push("--colocate".to_owned());
    }
    arguments.extend(request.command[1..].iter().cloned());
    arguments
}

/// Whether the user has named devices.
fn says_where(command: &[String]) -> bool {
    command.iter().any(|word| ["--device", "--devices", "--place"].contains(&normal(word).as_str()))
}

/// Refuses a number of replicas that would leave GPUs idle or exceed them.
fn check_towers(gpus: u32, command: &[String]) -> Result<(), Error> {
    // A value that is not a number is refused along with the command's other flags.
    let towers = value(command, TOWERS_FLAG).and_then(|towers| towers.parse().ok());
    match towers {
        Some(towers) if gpus > 0 && towers != gpus && !says_where(command) => Err(Error::Towers { towers, gpus }),
        _ => Ok(()),
    }
}

/// The run directory, as seen by the task.
pub(crate) fn run_dir(request: &Request) -> String {
    match &request.storage {
        Some(Storage::Directory(path)) if request.kind == Kind::Slurm => {
            format!("{}/{}", path.trim_end_matches('/'), request.name)
        }
        // Beside the script's log, since only the checkpoints are in the store.
        _ if request.kind == Kind::Slurm => format!("runs/{}", request.name),
        _ => format!("{RUNS}/{}", request.name),
    }
}

/// How long a task gets to stop: the requested time, or three times the stall limit plus 30 s.
///
/// The stall limit is not the duration of a checkpoint, but how long one may go without progress; ps 0 adds a second
/// for each 10 MB of the model. A task that is told to stop may first have to complete a checkpoint before it writes
/// the last one. Within the default of 120 s, a store that takes 10 MB/s has time for two checkpoints of 400 MB. Larger
/// models need `--grace`.
pub(crate) fn grace_seconds(request: &Request) -> i64 {
    if let Some(grace) = request.grace_seconds {
        return grace.into();
    }
    let stall = stall_seconds(request).unwrap_or(DEFAULT_STALL_SECONDS);
    (3.0 * stall.max(DEFAULT_STALL_SECONDS)).ceil() as i64 + 30
}

fn stall_seconds(request: &Request) -> Result<f64, Error> {
    let Some(value) = value(&request.command, STALL_FLAG) else { return Ok(DEFAULT_STALL_SECONDS) };
    // Slurm limits the time to stop, which is derived from this value unless it is given.
    let is_limited = request.kind == Kind::Slurm && request.grace_seconds.is_none();
    let most = if is_limited { LONGEST_STALL_UNDER_SLURM } else { DAY_SECONDS };
    match value.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= f64::from(most) => Ok(seconds),
        _ => Err(Error::Seconds { flag: STALL_FLAG, value, most }),
    }
}

/// The value of a flag; the last one if the flag is repeated.
fn value(command: &[String], flag: &str) -> Option<String> {
    let mut words = command.iter().skip(1);
    let mut value = None;
    while let Some(word) = words.next() {
        if normal(word) == flag {
            value = Some(match word.split_once('=') {
                Some((_, value)) => value.to_owned(),
                None => words.next().cloned().unwrap_or_default(),
            });
        }
    }
    value
}

/// The name of a flag, with hyphens; `windlass` accepts underscores, too.
fn normal(word: &str) -> String {
    match word.strip_prefix("--") {
        Some(flag) => format!("--{}", flag.split('=').next().unwrap_or(flag).replace('_', "-")),
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn check(kind: Kind, gpus: u32, command: &[String]) -> Result<(), Error> {
        super::check(&Request { gpus, ..Request::new(kind, "a".parse().unwrap(), command.to_vec()) })
    }

    fn grace(command: &str) -> i64 {
        grace_seconds(&Request::new(Kind::K8s, "a".parse().unwrap(), words(command)))
    }

    #[test]
    fn a_model_comes_first() {
        assert_eq!(check(Kind::K8s, 0, &[]), Err(Error::NoModel));
        assert_eq!(check(Kind::K8s, 0, &words("--steps 5")), Err(Error::NoModel));
        assert_eq!(check(Kind::K8s, 0, &words("mnist --steps 5")), Ok(()));
    }

    #[test]
    fn flags_that_the_manifest_sets_are_refused_however_they_are_written() {
        for text in ["mnist --ps_hosts a:1", "mnist --run-dir=x", "mnist --colocate"] {
            assert!(matches!(check(Kind::K8s, 0, &words(text)), Err(Error::ReservedFlag { .. })), "{text}");
        }
    }

    #[test]
    fn flags_by_which_a_replaced_task_would_lose_progress_are_refused() {
        for text in ["mnist --resume never", "mnist --resume=s3://a/b", "mnist --take_over", "mnist --restarted"] {
            assert!(matches!(check(Kind::Slurm, 0, &words(text)), Err(Error::ReservedFlag { .. })), "{text}");
        }
    }

    #[test]
    fn the_time_to_stop_follows_from_the_stall_limit() {
        assert_eq!(grace("mnist"), 120);
        assert_eq!(grace("mnist --checkpoint_stall_secs=100"), 330);
        assert_eq!(grace("mnist --checkpoint-stall-secs 1"), 120);
        assert!(check(Kind::K8s, 0, &words("mnist --checkpoint-stall-secs soon")).is_err());
    }

    #[test]
    fn the_time_to_stop_can_be_given() {
        let asked = |kind, seconds| {
            let request = Request::new(kind, "a".parse().unwrap(), words("mnist --checkpoint-stall-secs 60"));
            Request { grace_seconds: Some(seconds), ..request }
        };
        assert_eq!(grace_seconds(&asked(Kind::K8s, 5)), 5);
        assert_eq!(super::check(&asked(Kind::K8s, DAY_SECONDS)), Ok(()));
        assert_eq!(super::check(&asked(Kind::Slurm, LONGEST_GRACE_UNDER_SLURM)), Ok(()));
        for (kind, seconds) in
            [(Kind::K8s, 0), (Kind::K8s, DAY_SECONDS + 1), (Kind::Slurm, LONGEST_GRACE_UNDER_SLURM + 1)]
        {
            let refused = super::check(&asked(kind, seconds));
            assert!(matches!(refused, Err(Error::Seconds { flag: "--grace", .. })), "{kind} {seconds}: {refused:?}");
        }
    }

    #[test]
    fn slurm_can_send_its_signal_that_long_before_the_time_limit() {
        let stall = |kind, seconds: u32| check(kind, 0, &words(&format!("mnist --checkpoint-stall-secs {seconds}")));
        let longest = LONGEST_STALL_UNDER_SLURM;
        assert_eq!(grace(&format!("mnist --checkpoint-stall-secs {longest}")), 65_535);
        assert_eq!((stall(Kind::Slurm, longest), stall(Kind::K8s, longest + 1)), (Ok(()), Ok(())));
        assert!(matches!(stall(Kind::Slurm, longest + 1), Err(Error::Seconds { most, .. }) if most == longest));
        let command = words(&format!("mnist --checkpoint-stall-secs {}", longest + 1));
        let request = Request::new(Kind::Slurm, "a".parse().unwrap(), command);
        assert_eq!(super::check(&Request { grace_seconds: Some(600), ..request }), Ok(()));
    }

    #[test]
    fn the_users_own_patience_replaces_ours() {
        let request = Request::new(Kind::K8s, "a".parse().unwrap(), words("mnist --peer-timeout 9"));
        let arguments = arguments(&request, Job::Ps, &Naming::Variables);
        assert_eq!(arguments.iter().filter(|word| *word == "--peer-timeout").count(), 1);
    }
}
