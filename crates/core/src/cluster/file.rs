//! Reads a cluster file (TOML), already in memory:
//!
//! ```toml
//! [cluster]
//! ps = ["a:2222"]                  # or: colocate = true
//! worker = ["b:2222", "c:2222"]
//!
//! [task]                           # optional: a shared file leaves it to the flags
//! job = "worker"
//! index = 0                        # optional where the job has one task
//! ```
//!
//! Must not decide precedence: that is done in `resolve`.

use serde::Deserialize;

use super::spec::{ClusterDraft, JobAddresses, parse_entries};
use super::{ClusterError, NamedTask, Statement};

/// Parses the file's text.
pub(super) fn parse(text: &str) -> Result<Statement, ClusterError> {
    let document: Document = toml::from_str(text).map_err(|error| syntax_error(text, &error))?;
    let read = |list, hosts: &[String]| parse_entries(list, hosts.iter().map(String::as_str)).map(JobAddresses::listed);
    let cluster = ClusterDraft {
        ps: read("cluster.ps", &document.cluster.ps)?,
        workers: read("cluster.worker", &document.cluster.worker)?,
        colocated: document.cluster.colocate,
    };
    let task = document.task.map(|task| Ok::<_, ClusterError>(NamedTask { job: task.job.parse()?, index: task.index }));
    Ok(Statement { cluster: Some(cluster), task: task.transpose()? })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    cluster: ClusterTable,
    task: Option<TaskTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterTable {
    #[serde(default)]
    ps: Vec<String>,
    worker: Vec<String>,
    #[serde(default)]
    colocate: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskTable {
    job: String,
    index: Option<u32>,
}

fn syntax_error(text: &str, error: &toml::de::Error) -> ClusterError {
    let start = error.span().map_or(0, |span| span.start);
    let before = text.get(..start).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    ClusterError::File {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        problem: error.message().trim_end().replace('\n', ", "),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::{Job, TaskId};

    const WHOLE: &str = "\
[cluster]
ps = [\"a:2222\"]
worker = [\"b:2222\", \"c:2222\"]

[task]
job = \"worker\"
index = 1
";

    fn refusal(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_file_names_cluster_and_task() {
        let statement = parse(WHOLE).unwrap();
        let spec = statement.cluster.unwrap().check().unwrap();
        assert_eq!(spec.tasks().count(), 3);
        assert_eq!(spec.address(TaskId::worker(1)).unwrap().to_string(), "c:2222");
        let expected = NamedTask { job: Job::Worker, index: Some(1) };
        assert_eq!(statement.task, Some(expected));
    }

    #[test]
    fn a_shared_file_may_leave_the_task_out() {
        let text = "[cluster]\nps = [\"a:1\"]\nworker = [\"b:1\"]\n";
        assert_eq!(parse(text).unwrap().task, None);
    }

    #[test]
    fn a_colocated_file_names_workers_only() {
        let text = "[cluster]\ncolocate = true\nworker = [\"b:1\"]\n";
        let spec = parse(text).unwrap().cluster.unwrap().check().unwrap();
        assert!(spec.is_colocated());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let text = WHOLE.replace("worker = [", "workers = [");
        assert_eq!(
            refusal(&text),
            "line 3, column 1: unknown field `workers`, expected one of `ps`, `worker`, `colocate`"
        );
    }

    #[test]
    fn a_syntax_error_is_refused_with_its_place() {
        assert!(refusal("[cluster]\nps = [\"a:1\"\n").starts_with("line 2, column "));
    }

    #[test]
    fn a_file_without_a_cluster_is_refused() {
        let text = "[task]\njob = \"worker\"\n";
        assert_eq!(refusal(text), "line 1, column 1: missing field `cluster`");
    }

    #[test]
    fn a_malformed_address_is_refused_with_list_and_position() {
        assert_eq!(
            refusal(&WHOLE.replace("c:2222", "c:0")),
            "entry 2 of 2 in cluster.worker, \"c:0\": port 0 cannot be reached by others, expected \
             1 to 65535"
        );
    }

    #[test]
    fn an_unknown_job_is_refused() {
        assert_eq!(
            refusal(&WHOLE.replace("\"worker\"", "\"wroker\"")),
            "unknown job \"wroker\", expected ps, worker or evaluator"
        );
    }

    proptest! {
        #[test]
        fn no_damage_to_a_file_panics(cut in 0..WHOLE.len(), with in "[\\[\\]=\"é\n#]{0,3}") {
            let _ = parse(&format!("{}{with}{}", &WHOLE[..cut], &WHOLE[cut + 1..]));
        }
    }
}
