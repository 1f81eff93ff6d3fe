//! Docker Compose on one machine: a service for each task, and TensorBoard as a profile.

use std::collections::BTreeMap;

use serde::Serialize;
use windlass_core::cluster::{Job, TaskId};

use crate::command::{Naming, RUNS, arguments, grace_seconds};
use crate::yaml::Manifest;
use crate::{Error, PORT, Request, Storage};

/// As many restarts as an index of an Indexed Job has. Compose cannot distinguish exit codes, and a command with bad
/// flags fails each time.
const RESTART: &str = "on-failure:6";

/// TensorBoard reads the curves; its port is published only on this machine.
const TENSORBOARD_IMAGE: &str = "tensorflow/tensorflow:2.19.0";
const TENSORBOARD_PORT: u16 = 6006;

#[derive(Serialize)]
struct Project {
    name: String,
    services: BTreeMap<String, Service>,
    volumes: BTreeMap<String, Volume>,
}

#[derive(Serialize, Default)]
struct Service {
    image: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profiles: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entrypoint: Vec<String>,
    command: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env_file: Vec<EnvFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<String>,
    user: &'static str,
    read_only: bool,
    cap_drop: Vec<&'static str>,
    security_opt: Vec<&'static str>,
    tmpfs: Vec<&'static str>,
    volumes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_grace_period: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deploy: Option<Deploy>,
}

#[derive(Serialize)]
struct EnvFile {
    path: String,
    required: bool,
}

#[derive(Serialize)]
struct Deploy {
    resources: Resources,
}

#[derive(Serialize)]
struct Resources {
    limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none")]
    reservations: Option<Reservations>,
}

#[derive(Serialize)]
struct Limits {
    cpus: String,
    memory: String,
}

#[derive(Serialize)]
struct Reservations {
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    driver: &'static str,
    device_ids: Vec<String>,
    capabilities: Vec<&'static str>,
}

#[derive(Serialize)]
struct Volume {
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_opts: Option<BTreeMap<&'static str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

pub(crate) fn render(request: &Request) -> Result<String, Error> {
    let mut manifest = Manifest::new(
        request,
        &[
            "Start with `docker compose --file FILE up`, end with `docker compose --file FILE down`, which keeps the volume.".to_owned(),
            format!("`docker compose --file FILE --profile tensorboard up` shows the curves on port {TENSORBOARD_PORT}."),
            needs(request),
        ],
    );
    let mut services: BTreeMap<String, Service> =
        request.tasks().map(|task| (host(task), service(request, task))).collect();
    services.insert("tensorboard".to_owned(), tensorboard(request));
    manifest.add(&Project { name: request.name.to_string(), services, volumes: volumes(request) })?;
    Ok(manifest.finish())
}

/// The top-level `name` came with version 2, `required` of an `env_file` with 2.24.
fn needs(request: &Request) -> String {
    match &request.storage {
        Some(Storage::Objects(_)) => {
            let file = credentials(request);
            format!(
                "Needs Docker Compose 2.24 or later. The store's credentials are read from {file} beside this file, if it is there."
            )
        }
        _ => "Needs Docker Compose v2.".to_owned(),
    }
}

/// The file that sets the variables of an object store, as `VARIABLE=value`.
fn credentials(request: &Request) -> String {
    format!("{}.env", request.storage_secret)
}

fn host(task: TaskId) -> String {
    format!("{}-{}", task.job, task.index)
}

fn service(request: &Request, task: TaskId) -> Service {
    let address = |task| format!("{}:{PORT}", host(task));
    let naming = Naming::HostsAndIndex(&address, task.index);
    let gpus = (task.job == Job::Worker && request.gpus > 0).then(|| Reservations {
        devices: vec![Device { driver: "nvidia", device_ids: gpus(request, task), capabilities: vec!["gpu"] }],
    });
    Service {
        image: request.image.clone(),
        command: escaped(arguments(request, task.job, &naming)),
        env_file: match &request.storage {
            Some(Storage::Objects(_)) => vec![EnvFile { path: credentials(request), required: false }],
            _ => Vec::new(),
        },
        restart: Some(RESTART),
        stop_grace_period: Some(format!("{}s", grace_seconds(request))),
        deploy: Some(Deploy {
            resources: Resources {
                limits: Limits {
                    cpus: request.cpu.value().to_string(),
                    memory: format!("{}M", request.memory.mebibytes()),
                },
                reservations: gpus,
            },
        }),
        ..hardened(request, "rw")
    }
}

/// The GPUs of a worker, by number. With a count instead, every container would get the first ones.
fn gpus(request: &Request, task: TaskId) -> Vec<String> {
    let (index, each) = (u64::from(task.index), u64::from(request.gpus));
    (index * each..(index + 1) * each).map(|gpu| gpu.to_string()).collect()
}

fn tensorboard(request: &Request) -> Service {
    let words = ["--logdir", RUNS, "--host", "0.0.0.0"];
    Service {
        image: TENSORBOARD_IMAGE.to_owned(),
        profiles: vec!["tensorboard"],
        entrypoint: vec!["tensorboard".to_owned()],
        command: words.map(str::to_owned).into(),
        ports: vec![format!("127.0.0.1:{TENSORBOARD_PORT}:{TENSORBOARD_PORT}")],
        ..hardened(request, "ro")
    }
}

/// The settings of every container: no privileges, and write access only to its volume and a temporary directory.
fn hardened(request: &Request, mode: &str) -> Service {
    let source = match &request.storage {
        Some(Storage::Directory(path)) => path.replace('$', "$$"),
        _ => "runs".to_owned(),
    };
    Service {
        user: "65532:65532",
        read_only: true,
        cap_drop: vec!["ALL"],
        security_opt: vec!["no-new-privileges:true"],
        tmpfs: vec!["/tmp"],
        volumes: vec![format!("{source}:{RUNS}:{mode}")],
        ..Service::default()
    }
}

fn volumes(request: &Request) -> BTreeMap<String, Volume> {
    let mut runs = Volume { driver_opts: None, external: None, name: None };
    match &request.storage {
        Some(Storage::Directory(_)) => return BTreeMap::new(),
        Some(Storage::Claim(name)) => {
            runs.external = Some(true);
            runs.name = Some(name.clone());
        }
        Some(Storage::Nfs { server, path }) => {
            runs.driver_opts = Some(BTreeMap::from([
                ("type", "nfs".to_owned()),
                ("o", format!("addr={server},rw")),
                ("device", format!(":{}", path.replace('$', "$$"))),
            ]));
        }
        _ => {}
    }
    BTreeMap::from([("runs".to_owned(), runs)])
}

/// Escapes dollar signs, since Compose substitutes variables in commands.
fn escaped(words: Vec<String>) -> Vec<String> {
    words.into_iter().map(|word| word.replace('$', "$$")).collect()
}
