//! Which tasks run beside this process, and where they listen. This is determined from `/proc` alone, since flags,
//! variables, files and `TF_CONFIG` may each have set a task's port.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use windlass_core::cluster::{ClusterInput, Environment, resolve};

use crate::settings;

/// The state of a listening socket in the kernel's tables.
const LISTEN: &str = "0A";

/// Another process of this program.
struct Process {
    id: String,
    /// Whether it is a task of a cluster, and therefore has to listen.
    is_task: bool,
    /// The inodes of its sockets.
    sockets: io::Result<HashSet<String>>,
}

/// The addresses on which other processes of this program listen. Fails if one of them is a task that does not listen,
/// or if that cannot be determined.
pub(super) fn listening() -> io::Result<Vec<SocketAddr>> {
    let tables = [fs::read_to_string("/proc/net/tcp")?, fs::read_to_string("/proc/net/tcp6").unwrap_or_default()];
    let listeners: Vec<(SocketAddr, &str)> =
        tables.iter().flat_map(|table| table.lines()).filter_map(listener).collect();
    listeners_of(&others()?, &listeners)
}

fn listeners_of(processes: &[Process], listeners: &[(SocketAddr, &str)]) -> io::Result<Vec<SocketAddr>> {
    let mut addresses = BTreeSet::new();
    for Process { id, is_task, sockets } in processes {
        let own: Vec<SocketAddr> = match sockets {
            Ok(sockets) => listeners.iter().filter(|(_, inode)| sockets.contains(*inode)).map(|(at, _)| *at).collect(),
            // The process has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if *is_task => {
                return Err(io::Error::new(
                    error.kind(),
                    format!("the sockets of process {id} cannot be read: {error}"),
                ));
            }
            Err(_) => continue,
        };
        if *is_task && own.is_empty() {
            return Err(io::Error::other(format!("process {id} is a task of a cluster, but listens on no port")));
        }
        addresses.extend(own.into_iter().map(reachable));
    }
    Ok(addresses.into_iter().collect())
}

/// All processes of this program but this one.
fn others() -> io::Result<Vec<Process>> {
    let (program, this) = (fs::read_link("/proc/self/exe")?, fs::read_link("/proc/self")?);
    let network = fs::read_link("/proc/self/ns/net").ok();
    let mut found = Vec::new();
    for directory in fs::read_dir("/proc")?.flatten().map(|entry| entry.path()) {
        let arguments = words(&directory.join("cmdline"));
        if directory.ends_with(&this) || !runs(&directory, &program, &arguments) {
            continue;
        }
        // The tables are those of this network namespace: they do not contain a task in a container that is seen from
        // its host.
        let elsewhere = fs::read_link(directory.join("ns/net")).ok().filter(|other| Some(other) != network.as_ref());
        if elsewhere.is_some() {
            continue;
        }
        // Another user's variables cannot be read. In that case only the command line counts.
        let variables = words(&directory.join("environ"));
        let variable = |name: &str| {
            variables.iter().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
        };
        found.push(Process {
            id: directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            is_task: is_task(&arguments, variable),
            sockets: sockets(&directory),
        });
    }
    Ok(found)
}

/// Whether a process runs the program. Where the kernel does not say, because the process belongs to another user, the
/// name in its command line counts.
fn runs(process: &Path, program: &Path, arguments: &[String]) -> bool {
    match fs::read_link(process.join("exe")) {
        Ok(link) => link == program,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            arguments.first().is_some_and(|name| Path::new(name).file_name() == program.file_name())
        }
        Err(_) => false,
    }
}

/// The strings in a kernel file that terminates each with a zero byte; empty if the file cannot be read.
fn words(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_default();
    let texts = bytes.split(|byte| *byte == 0).filter(|text| !text.is_empty());
    texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}

/// Whether a process with these arguments and variables is a task of a cluster. A run in one process, an evaluator and
/// all other commands have no port. `--config` files are not read: a task that is described only there may be mistaken
/// for a run in one process.
fn is_task(arguments: &[String], variable: impl Fn(&str) -> Option<String>) -> bool {
    if arguments.get(1).map(String::as_str) != Some("train") {
        return false;
    }
    let setting = |name: &str| flag(arguments, name).or_else(|| variable(&settings::variable(name)?));
    let input = ClusterInput {
        job_name: setting("job-name"),
        task_index: setting("task-index").and_then(|index| index.parse().ok()),
        ps_hosts: setting("ps-hosts"),
        worker_hosts: setting("worker-hosts"),
        tf_config: variable("TF_CONFIG"),
        environment: Environment::read(&variable),
        ..ClusterInput::default()
    };
    // If this alone does not resolve, as with --cluster FILE, it is at least not a run in one process.
    !input.is_evaluator() && !matches!(resolve(&input), Ok(None))
}

/// The value of a flag, written with hyphens or underscores.
fn flag(arguments: &[String], name: &str) -> Option<String> {
    let mut words = arguments.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let Some(text) = word.strip_prefix("--") else { continue };
        let (found, value) = text.split_once('=').map_or((text, None), |(found, value)| (found, Some(value)));
        if found.replace('_', "-") == name {
            return value.map(str::to_owned).or_else(|| words.next().cloned());
        }
    }
    None
}

/// The inodes of a process's sockets. Files that were closed meanwhile are skipped.
fn sockets(process: &Path) -> io::Result<HashSet<String>> {
    let files = fs::read_dir(process.join("fd"))?.flatten();
    Ok(files.filter_map(|file| socket(&fs::read_link(file.path()).ok()?)).collect())
}

/// The inode of an open file that is a socket.
fn socket(file: &Path) -> Option<String> {
    Some(file.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
}

/// The address and the inode of a listening socket, from its line in the kernel's table.
fn listener(line: &str) -> Option<(SocketAddr, &str)> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let [_, address, _, LISTEN, .., inode] = *columns.get(..10)? else { return None };
    let (host, port) = address.split_once(':')?;
    // Each group of 32 bits is printed as a number, though its bytes are in network order.
    let group = |at: usize| u32::from_str_radix(host.get(8 * at..8 * at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let host = match host.len() {
        8 => IpAddr::from(group(0)?),
        _ => IpAddr::from(<[u8; 16]>::try_from([group(0)?, group(1)?, group(2)?, group(3)?].concat()).ok()?),
    };
    Some((SocketAddr::new(host, u16::from_str_radix(port, 16).ok()?), inode))
}

/// The address at which a listener can be reached from this machine. A listener on the unspecified IPv6 address accepts
/// IPv4, too, and containers often lack `::1`.
fn reachable(listener: SocketAddr) -> SocketAddr {
    match listener.ip().is_unspecified() {
        true => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port()),
        false => listener,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn task(words: &str, variables: &[(&str, &str)]) -> bool {
        let arguments: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        is_task(&arguments, |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_process_that_is_told_its_job_is_a_task() {
        assert!(task("windlass train mnist --job_name ps --task_index 0 --ps_hosts a:1 --worker_hosts b:1", &[]));
        assert!(task("windlass train mnist --job-name=worker --cluster hosts.toml", &[]));
        assert!(task("windlass train mnist", &[("WINDLASS_JOB_NAME", "ps"), ("WINDLASS_CLUSTER", "hosts.toml")]));
    }

    #[test]
    fn a_process_that_finds_its_job_in_the_environment_is_a_task() {
        let config = r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "ps", "index": 0}}"#;
        assert!(task("windlass train mnist", &[("TF_CONFIG", config)]));
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_STEP_NODELIST", "a"), ("SLURM_STEP_TASKS_PER_NODE", "3")];
        assert!(task("windlass train mnist", &[&slurm[..], &[("WINDLASS_SLURM_PS", "1")]].concat()));
        assert!(!task("windlass train mnist", &slurm));
    }

    #[test]
    fn a_run_in_one_process_is_no_task() {
        assert!(!task("windlass train mnist --steps 5", &[]));
        assert!(!task("windlass train mnist -- --job_name ps", &[]));
        assert!(!task("windlass launch mnist", &[("WINDLASS_JOB_NAME", "ps")]));
        assert!(!task("windlass health", &[("WINDLASS_JOB_NAME", "ps")]));
    }

    #[test]
    fn an_evaluator_has_no_port() {
        assert!(!task("windlass train mnist --job_name evaluator --run-dir a", &[]));
        assert!(!task("windlass train mnist", &[("TF_CONFIG", r#"{"task": {"type": "evaluator", "index": 0}}"#)]));
    }

    /// The result for one process with a socket, or with one that cannot be read.
    fn found(is_task: bool, socket: Result<&str, io::ErrorKind>) -> Result<Vec<String>, String> {
        let sockets = socket.map(|inode| HashSet::from([inode.to_owned()])).map_err(io::Error::from);
        let process = Process { id: "7".to_owned(), is_task, sockets };
        let found = listeners_of(&[process], &[("0.0.0.0:2222".parse().unwrap(), "1234")]);
        found.map(|at| at.iter().map(ToString::to_string).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_task_is_found_by_its_socket() {
        assert_eq!(found(true, Ok("1234")).unwrap(), ["127.0.0.1:2222"]);
    }

    #[test]
    fn a_task_without_a_listener_is_not_known_to_be_alive() {
        assert_eq!(found(true, Ok("99")).unwrap_err(), "process 7 is a task of a cluster, but listens on no port");
        assert!(found(false, Ok("99")).unwrap().is_empty(), "a run in one process needs none");
    }

    #[test]
    fn a_task_whose_sockets_cannot_be_read_is_not_known_to_be_alive() {
        let denied = Err(io::ErrorKind::PermissionDenied);
        assert!(found(true, denied).unwrap_err().starts_with("the sockets of process 7 cannot be read"));
        assert!(found(false, denied).unwrap().is_empty());
    }

    #[test]
    fn a_task_that_has_ended_meanwhile_is_not_missed() {
        assert!(found(true, Err(io::ErrorKind::NotFound)).unwrap().is_empty());
    }

    #[test]
    fn the_sockets_of_a_process_include_those_it_listens_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets = sockets(Path::new("/proc/self")).unwrap();
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let inode = table.lines().filter_map(super::listener).find(|(at, _)| *at == listener.local_addr().unwrap());
        assert!(sockets.contains(inode.expect("the kernel lists it").1));
    }

    #[test]
    fn the_kernels_tables_tell_who_listens_where() {
        let line = |local: &str, state: &str| {
            format!("   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 65532 0 1234 1 0 100 0")
        };
        let found = |local: &str, state: &str| {
            listener(&line(local, state)).map(|(at, inode)| (at.to_string(), inode.to_owned()))
        };
        assert_eq!(found(&local_text([127, 0, 0, 1]), "0A"), Some(("127.0.0.1:2222".to_owned(), "1234".to_owned())));
        let any = format!("{}:08AE", "0".repeat(32));
        assert_eq!(found(&any, "0A"), Some(("[::]:2222".to_owned(), "1234".to_owned())));
        assert_eq!(found(&any, "01"), None, "connected");
        assert_eq!(found("0:08AE", "0A"), None, "damaged");
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"), None);
    }

    fn local_text(host: [u8; 4]) -> String {
        format!("{:08X}:08AE", u32::from_ne_bytes(host))
    }

    #[test]
    fn a_listener_on_any_address_is_asked_at_loopback() {
        let reached = |listener: &str| reachable(listener.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:2222"), "127.0.0.1:2222");
        assert_eq!(reached("[::]:2222"), "127.0.0.1:2222");
        assert_eq!(reached("10.0.0.7:2222"), "10.0.0.7:2222");
    }
}
