//! Bad input gets a message that names it and exit code 2, and nothing is started. Also: the help.

mod clusters;
mod data;
mod help;
mod manifest;
mod pictures;
mod print_cluster;
mod settings;
mod training;

use crate::process::{Invocation, windlass};

/// A place in a cluster whose other tasks can never be reached.
const PLACE: &str = "--job_name worker --task_index 1 --ps_hosts a:2222 --worker_hosts b:2222,c:2222";

const TF_CONFIG: &str = r#"{"cluster": {"chief": ["d:2222"], "ps": ["e:2222"], "worker": ["f:2222"]},
    "task": {"type": "worker", "index": 0}}"#;

const CLUSTER_FILE: &str = r#"
[cluster]
ps = ["g:2222"]
worker = ["h:2222", "i:2222"]

[task]
job = "ps"
index = 0
"#;

/// `windlass` with a cluster file.
fn with_cluster_file(words: &str, content: &str) -> Invocation {
    windlass(&format!("train linear --cluster cluster.toml {words}")).with_file("cluster.toml", content)
}
