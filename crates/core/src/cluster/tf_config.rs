//! Reads `TF_CONFIG` (JSON), as Kubeflow's TFJob operator and TensorFlow's own tools write it:
//!
//! ```json
//! {"cluster": {"chief": ["c:2222"], "ps": ["a:2222"], "worker": ["b:2222"]},
//!  "task": {"type": "worker", "index": 0}, "environment": "cloud"}
//! ```
//!
//! A chief (or `master`) becomes worker 0 and the workers follow it, so worker 0 above is Windlass's worker 1.
//!
//! With `enableDynamicWorker` the operator writes a sparse cluster, in which `worker` is a map from
//! index to address, under the key `sparseCluster` before May 2023 and under `cluster` since
//! (kubeflow/trainer#1798). A worker is told `{"worker": {"1": "b1:2222"}, "ps": [all of them]}`. A ps
//! task is told `{"worker": {}, "ps": [itself]}`: itself alone, at the list's first place whatever
//! its index. A chief is told nothing.
//!
//! Must not decide precedence: that is done in `resolve`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::spec::{ClusterDraft, JobAddresses, parse_entries};
use super::{Address, ClusterError, Job, NamedTask, Statement};

/// The task type and job of a task that takes no part in training.
const EVALUATOR: &str = "evaluator";

/// Parses the variable's text. Empty text, or none of the keys, states nothing.
pub(super) fn parse(text: &str) -> Result<Statement, ClusterError> {
    if text.trim().is_empty() {
        return Ok(Statement::default());
    }
    let document: Document = serde_json::from_str(text).map_err(|error| json_error(text, &error))?;
    let task = document.task.and_then(Task::named).transpose()?;
    let jobs = match (non_empty(document.cluster), non_empty(document.sparse)) {
        (Some(hosts), _) => Some(Jobs::of(hosts, false)?),
        (None, Some(hosts)) => Some(Jobs::of(hosts, true)?),
        (None, None) => None,
    };
    Ok(Statement {
        task: task.as_ref().map(|task| task.translate(jobs.as_ref())).transpose()?,
        cluster: jobs.map(|jobs| jobs.draft(task.as_ref())).transpose()?,
    })
}

/// True if the variable says that this task is the evaluator.
pub(super) fn names_evaluator(text: &str) -> bool {
    let document: Option<Document> = serde_json::from_str(text).ok();
    document.and_then(|document| document.task?.r#type).as_deref() == Some(EVALUATOR)
}

#[derive(Deserialize)]
struct Document {
    cluster: Option<BTreeMap<String, Hosts>>,
    #[serde(rename = "sparseCluster")]
    sparse: Option<BTreeMap<String, Hosts>>,
    task: Option<TaskEntry>,
}

#[derive(Deserialize)]
struct TaskEntry {
    r#type: Option<String>,
    #[serde(default)]
    index: Value,
}

/// A task in `TF_CONFIG`'s own numbering.
struct Task {
    r#type: String,
    index: u32,
}

impl Task {
    /// Returns `None` for a task without a type, as in local jobs.
    fn named(entry: TaskEntry) -> Option<Result<Task, ClusterError>> {
        let r#type = entry.r#type?;
        let index = match &entry.index {
            Value::Number(number) => number.as_u64().and_then(|index| index.try_into().ok()),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        Some(match index {
            Some(index) => Ok(Task { r#type, index }),
            None => Err(ClusterError::TaskIndex { value: entry.index.to_string() }),
        })
    }

    /// Converts the task to our numbering, in which the chief is worker 0.
    fn translate(&self, jobs: Option<&Jobs>) -> Result<NamedTask, ClusterError> {
        let has_chief = jobs.is_some_and(|jobs| jobs.chief.is_some());
        let (job, index) = match self.r#type.as_str() {
            "ps" => (Job::Ps, Some(self.index)),
            "worker" => {
                // Checked here, so that the error uses TF_CONFIG's numbering.
                if let Some(Hosts::List(hosts)) = jobs.map(|jobs| &jobs.workers)
                    && self.index as usize >= hosts.len()
                {
                    let count = hosts.len() as u32;
                    return Err(ClusterError::IndexOutside { index: self.index, job: Job::Worker, count });
                }
                (Job::Worker, self.index.checked_add(u32::from(has_chief)))
            }
            "chief" | "master" => {
                if jobs.is_some() && !has_chief {
                    return Err(ClusterError::NoChief { job: self.r#type.clone() });
                }
                (Job::Worker, (self.index == 0).then_some(0))
            }
            EVALUATOR => return Err(ClusterError::Evaluator),
            other => (other.parse()?, Some(self.index)),
        };
        match index {
            Some(_) => Ok(NamedTask { job, index }),
            None => Err(ClusterError::TaskIndex { value: self.index.to_string() }),
        }
    }
}

/// The hosts of the known jobs, as given.
struct Jobs {
    ps: Hosts,
    workers: Hosts,
    chief: Option<Address>,
}

impl Jobs {
    fn of(hosts: BTreeMap<String, Hosts>, sparse: bool) -> Result<Jobs, ClusterError> {
        let mut jobs = Jobs {
            ps: Hosts::List(Vec::new()),
            workers: if sparse { Hosts::Map(BTreeMap::new()) } else { Hosts::List(Vec::new()) },
            chief: None,
        };
        let mut chiefs = Vec::new();
        for (job, hosts) in hosts {
            match job.as_str() {
                "ps" => jobs.ps = hosts,
                "worker" => jobs.workers = hosts,
                "chief" | "master" => {
                    chiefs.extend(hosts.parse(&format!("cluster.{job}"))?.known.into_values());
                }
                // The evaluator takes no part in training, so the others need not know it.
                EVALUATOR => {}
                _ => return Err(ClusterError::UnknownJob { job }),
            }
        }
        if chiefs.len() > 1 {
            return Err(ClusterError::SeveralChiefs { count: chiefs.len() });
        }
        jobs.chief = chiefs.pop();
        Ok(jobs)
    }

    fn draft(self, task: Option<&Task>) -> Result<ClusterDraft, ClusterError> {
        let mut ps = self.ps.parse("cluster.ps")?;
        let mut workers = self.workers.parse("cluster.worker")?;
        if let Some(task) = task
            && task.r#type == "ps"
            && !workers.complete
            && workers.known.is_empty()
            && ps.known.len() == 1
        {
            ps = JobAddresses::sparse(ps.known.into_values().map(|own| (task.index, own)).collect());
        }
        if let Some(chief) = self.chief {
            let shifted = workers.known.into_iter().map(|(index, address)| {
                let index = index.checked_add(1).ok_or(ClusterError::TaskIndex { value: index.to_string() })?;
                Ok((index, address))
            });
            workers.known = shifted.collect::<Result<_, ClusterError>>()?;
            workers.known.insert(0, chief);
        }
        Ok(ClusterDraft { ps, workers, colocated: false })
    }
}

/// One job's hosts: a list, or in a sparse cluster a map from index to host.
enum Hosts {
    List(Vec<String>),
    Map(BTreeMap<u32, String>),
}

impl Hosts {
    fn parse(&self, list: &str) -> Result<JobAddresses, ClusterError> {
        match self {
            Hosts::List(hosts) => parse_entries(list, hosts.iter().map(String::as_str)).map(JobAddresses::listed),
            Hosts::Map(hosts) => {
                let addresses = parse_entries(list, hosts.values().map(String::as_str))?;
                let known = hosts.keys().copied().zip(addresses).collect();
                Ok(JobAddresses::sparse(known))
            }
        }
    }
}

// Written by hand, since serde's untagged enums lose the position and do not say what was expected.
impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hosts, D::Error> {
        struct HostsVisitor;

        impl<'de> Visitor<'de> for HostsVisitor {
            type Value = Hosts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of host:port, or a map from task index to host:port")
            }

            // Go writes an empty list as null.
            fn visit_unit<E: de::Error>(self) -> Result<Hosts, E> {
                Ok(Hosts::List(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Hosts, A::Error> {
                let mut hosts = Vec::new();
                while let Some(host) = list.next_element()? {
                    hosts.push(host);
                }
                Ok(Hosts::List(hosts))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Hosts, A::Error> {
                let mut hosts = BTreeMap::new();
                while let Some((key, host)) = map.next_entry::<String, String>()? {
                    let index =
                        key.parse().map_err(|_| de::Error::custom(format_args!("\"{key}\" is not a task index")))?;
                    if hosts.insert(index, host).is_some() {
                        return Err(de::Error::custom(format_args!("task index {index} is given twice")));
                    }
                }
                Ok(Hosts::Map(hosts))
            }
        }

        deserializer.deserialize_any(HostsVisitor)
    }
}

fn non_empty(hosts: Option<BTreeMap<String, Hosts>>) -> Option<BTreeMap<String, Hosts>> {
    hosts.filter(|hosts| !hosts.is_empty())
}

fn json_error(text: &str, error: &serde_json::Error) -> ClusterError {
    const NEAR: usize = 24;
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or("");
    let end = line.floor_char_boundary(error.column().min(line.len()));
    let start = line.floor_char_boundary(end.saturating_sub(NEAR));
    ClusterError::Json { near: line[start..end].to_owned(), problem: error.to_string() }
}

#[cfg(test)]
#[path = "tf_config_tests.rs"]
mod tests;
