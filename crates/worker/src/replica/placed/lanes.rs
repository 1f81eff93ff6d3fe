//! The threads of a placed model: one lane per device, which runs what the executor allows it to start. They are kept
//! from step to step, because starting threads takes longer than computing a small stage.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rayon::ThreadPool;
use windlass_core::executor::{Executor, Graph, LaneId, NodeId};

use crate::threads;

/// Runs the nodes of a graph.
pub(super) trait Working: Send + Sync {
    fn run(&self, node: NodeId) -> anyhow::Result<()>;
}

/// When a node ran.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub(super) node: NodeId,
    pub(super) began: Instant,
    pub(super) ended: Instant,
}

/// One lane for each of several thread pools.
pub(super) struct Lanes {
    shared: Arc<Shared>,
    /// Dropping the pools ends their threads, after the work in progress.
    _pools: Vec<ThreadPool>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    run: Option<Run>,
    is_over: bool,
}

/// A graph in progress.
struct Run {
    executor: Executor,
    work: Arc<dyn Working>,
    ran: Vec<Ran>,
    error: Option<anyhow::Error>,
}

impl Lanes {
    /// Starts one lane per pool. It runs on a thread of the pool and computes on all of them.
    pub(super) fn new(pools: Vec<ThreadPool>) -> Self {
        let shared = Arc::new(Shared::default());
        for (lane, pool) in pools.iter().enumerate() {
            let shared = shared.clone();
            pool.spawn(move || shared.serve(LaneId(lane)));
        }
        Self { shared, _pools: pools }
    }

    /// Runs a whole graph. If a node fails, the error names it; nothing is running any more when this returns.
    pub(super) fn run(&self, graph: &Arc<Graph>, work: Arc<dyn Working>) -> anyhow::Result<Vec<Ran>> {
        let run = Run { executor: Executor::new(graph.clone()), work, ran: Vec::new(), error: None };
        let mut state = self.shared.lock();
        state.run = Some(run);
        self.shared.changed.notify_all();
        loop {
            if let Some(Run { ran, error, .. }) = state.run.take_if(|run| run.executor.is_done()) {
                return error.map_or(Ok(ran), Err);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a lane, until the lanes are dropped.
    fn serve(&self, lane: LaneId) {
        let mut state = self.lock();
        while !state.is_over {
            let next = state.run.as_mut().and_then(|run| Some((run.executor.ready(lane)?, run.work.clone())));
            let Some((node, work)) = next else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let began = Instant::now();
            let done = threads::caught("computing", || work.run(node));
            let ended = Instant::now();
            drop(work);
            state = self.lock();
            let run = state.run.as_mut().expect("a run is not over while one of its nodes runs");
            run.ran.push(Ran { node, began, ended });
            match done {
                Ok(()) => run.executor.complete(node),
                Err(error) => {
                    run.executor.fail(node, format!("{error:#}"));
                    let name = run.executor.failure().map(|failed| failed.node.clone()).unwrap_or_default();
                    run.error.get_or_insert_with(|| error.context(name));
                }
            }
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use windlass_core::executor::Node;

    use super::*;

    struct Counting {
        ran: AtomicUsize,
        fails: Option<(usize, bool)>,
    }

    impl Working for Counting {
        fn run(&self, node: NodeId) -> anyhow::Result<()> {
            self.ran.fetch_add(1, Ordering::SeqCst);
            match self.fails {
                Some((failing, panics)) if failing == node.0 => {
                    assert!(!panics, "a model panics");
                    anyhow::bail!("no luck")
                }
                _ => Ok(()),
            }
        }
    }

    /// A chain of nodes that alternates between two lanes.
    fn chain(length: usize) -> Arc<Graph> {
        let node = |index: usize| Node {
            name: format!("n{index}"),
            lane: LaneId(index % 2),
            after: index.checked_sub(1).map(|before| format!("n{before}")).into_iter().collect(),
            rank: 0,
        };
        Arc::new(Graph::new((0..length).map(node).collect()).unwrap())
    }

    fn lanes() -> Lanes {
        Lanes::new((0..2).map(|_| threads::pool(1).unwrap()).collect())
    }

    #[test]
    fn the_same_threads_work_through_one_graph_after_the_other() {
        let lanes = lanes();
        for length in [0, 1, 7, 7] {
            let work = Arc::new(Counting { ran: AtomicUsize::new(0), fails: None });
            let ran = lanes.run(&chain(length), work.clone()).unwrap();
            assert_eq!(work.ran.load(Ordering::SeqCst), length);
            assert!(ran.iter().map(|ran| ran.node.0).eq(0..length), "a chain runs in its order");
        }
    }

    #[test]
    fn a_node_that_fails_or_panics_fails_the_graph_by_name() {
        let lanes = lanes();
        for (panics, expected) in [(false, "n3: no luck"), (true, "n3: panicked while computing: a model panics")] {
            let work = Arc::new(Counting { ran: AtomicUsize::new(0), fails: Some((3, panics)) });
            let failed = lanes.run(&chain(7), work.clone()).unwrap_err();
            assert_eq!(format!("{failed:#}"), expected);
            assert_eq!(work.ran.load(Ordering::SeqCst), 4, "nothing after it was started");
        }
    }
}
