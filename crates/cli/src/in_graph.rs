//! In-graph runs as users request them: which flags can be combined with `--in-graph`, and where the joined workers
//! are.

use windlass_core::cluster::{Address, ClusterSpec};

use crate::args::{ClusterArgs, ModeName, TrainArgs};
use crate::failure::Failure;
use crate::stage_placement;

/// What users call the process that has the data and the training loop.
pub(crate) const CLIENT: &str = "the client";

/// The one process of an in-graph run that has the data and the training loop, with what it was told about the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    /// The addresses of joined workers.
    pub(crate) workers: Vec<String>,
    /// The addresses of parameter servers; empty if the client holds the parameters.
    pub(crate) ps: Vec<String>,
    /// The cluster of both, if there are parameter servers.
    pub(crate) cluster: Option<ClusterSpec>,
}

/// The client's view of an in-graph run, if this process is the client of one.
pub(crate) fn client(args: &TrainArgs) -> Result<Option<Client>, Failure> {
    let TrainArgs { cluster, training, .. } = args;
    if !is_led(args) {
        return Ok(None);
    }
    match cluster.job_name.as_deref() {
        None => {}
        Some("worker") if !training.in_graph => return Ok(None), // It is refused where its places are looked at.
        Some("worker") => {
            return Err(Failure::usage(
                "--job_name worker cannot be used with --in-graph: a joined worker gets its model from the client",
            )
            .with_hint("start each with `join --listen HOST:PORT`".to_owned()));
        }
        Some(_) => return Ok(None),
    }
    if cluster.colocate {
        let flag = if training.in_graph { "--in-graph" } else { "--place on other tasks" };
        return Err(Failure::usage(format!(
            "--colocate cannot be combined with {flag}: joined workers hold no parameters"
        ))
        .with_hint("omit it: without --ps_hosts, the client holds them".to_owned()));
    }
    let workers = cluster.worker_hosts.as_deref().ok_or_else(|| {
        let flag = if training.in_graph { "--in-graph" } else { "--place on other tasks" };
        Failure::usage(format!("{flag} needs the addresses of joined workers"))
            .with_hint("pass --worker_hosts a:2222,b:2222, with `join --listen` running on each".to_owned())
    })?;
    Ok(Some(Client::new(workers, cluster)?))
}

impl Client {
    fn new(workers: &str, cluster: &ClusterArgs) -> Result<Self, Failure> {
        let listed = |flag: &str, hosts: &str| {
            let parse = |entry: &str| {
                entry
                    .parse::<Address>()
                    .map_err(|error| Failure::usage(format!("{flag}: {entry:?}: {error}")).with_hint(error.hint()))
            };
            hosts.split(',').map(parse).collect::<Result<Vec<Address>, Failure>>()
        };
        let workers = listed("--worker_hosts", workers)?;
        let ps = cluster.ps_hosts.as_deref().map(|hosts| listed("--ps_hosts", hosts)).transpose()?;
        for (index, address) in workers.iter().enumerate() {
            if let Some(same) = workers[..index].iter().position(|other| other == address) {
                let message = format!("worker {same} and worker {index} have the same address {address}");
                return Err(Failure::usage(message).with_hint("give each joined worker a port of its own".to_owned()));
            }
        }
        let cluster = ps.as_ref().map(|ps| ClusterSpec::new(ps.clone(), workers.clone())).transpose();
        let cluster = cluster.map_err(|error| Failure::usage(&error).with_hint(error.hint()))?;
        let texts = |addresses: Vec<Address>| addresses.iter().map(ToString::to_string).collect();
        Ok(Self { workers: texts(workers), ps: ps.map(texts).unwrap_or_default(), cluster })
    }
}

/// Whether a run has one client that workers join, each with all of the model or with stages of it.
pub(crate) fn is_led(args: &TrainArgs) -> bool {
    args.training.in_graph || stage_placement::names_tasks(&args.place)
}

/// How many workers the servers see if `joined` workers have joined. In sync mode, or if they have stages of one model,
/// it is the client alone, which pushes what all of them have computed; otherwise it is one for each.
pub(crate) fn logical_workers(args: &TrainArgs, joined: u32) -> u32 {
    if args.training.mode == ModeName::Sync || !args.training.in_graph { 1 } else { joined }
}

/// Refuses flags that contradict each other.
pub(crate) fn check(args: &TrainArgs) -> Result<(), Failure> {
    let TrainArgs { training, device, output, .. } = args;
    if training.balance && !training.in_graph {
        return Err(Failure::usage("--balance needs --in-graph")
            .with_hint("only an in-graph client splits batches among workers".to_owned()));
    }
    if !training.in_graph {
        return Ok(());
    }
    match training.mode {
        ModeName::Ssp => {
            return Err(Failure::usage("--mode ssp cannot be combined with --in-graph")
                .with_hint("use --mode sync or --mode async".to_owned()));
        }
        ModeName::Async if training.balance => {
            return Err(Failure::usage("--balance needs --mode sync")
                .with_hint("in async mode each worker computes at its own pace, on batches of its own".to_owned()));
        }
        _ => {}
    }
    // A launcher passes these flags on to the workers that it starts.
    let is_launched = output.started_at.is_some();
    let is_of_workers = training.towers != 1 || device.device.is_some() || device.devices.is_some();
    if is_of_workers && !is_launched && args.cluster.worker_hosts.is_some() {
        return Err(Failure::usage("--towers, --device and --devices apply to joined workers, not to their client")
            .with_hint("pass them to `join`".to_owned()));
    }
    Ok(())
}
