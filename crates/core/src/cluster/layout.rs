//! How the tasks of a run are laid out in processes, as far as a process that serves parameters was told.

/// Who holds the parameters, and who computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunLayout {
    /// Servers and workers are processes of their own.
    #[default]
    Apart,
    /// The run consists of one process.
    OneProcess,
    /// Each worker's process also serves a part of the parameters.
    Colocated,
    /// A client has joined workers compute its steps. To servers its process is one worker, or several.
    Client {
        /// Whether the client's process serves the parameters, too.
        holds_parameters: bool,
    },
}

impl RunLayout {
    /// Whether the workers that servers see are really the client of joined workers.
    pub fn has_client(self) -> bool {
        matches!(self, Self::Client { .. })
    }

    /// Describes the layout, given how many servers hold parameters and how many workers compute.
    pub fn in_words(self, ps: usize, workers: usize) -> String {
        let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        match self {
            Self::Apart => format!("{ps} ps, {}", plural(workers, "worker")),
            Self::OneProcess => "one process".to_owned(),
            Self::Colocated => format!("{} with a ps shard in each", plural(workers, "worker")),
            Self::Client { holds_parameters: true } => format!("a client, {}", plural(workers, "joined worker")),
            Self::Client { .. } => format!("{ps} ps, a client, {}", plural(workers, "joined worker")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_told_by_what_its_processes_are() {
        assert_eq!(RunLayout::Apart.in_words(2, 1), "2 ps, 1 worker");
        assert_eq!(RunLayout::OneProcess.in_words(1, 1), "one process");
        assert_eq!(RunLayout::Colocated.in_words(2, 2), "2 workers with a ps shard in each");
        assert_eq!(RunLayout::Client { holds_parameters: true }.in_words(1, 3), "a client, 3 joined workers");
        assert_eq!(RunLayout::Client { holds_parameters: false }.in_words(1, 1), "1 ps, a client, 1 joined worker");
    }
}
