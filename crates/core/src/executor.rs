//! Schedules work that depends on other work: a graph of nodes, and which of them may start. Each node counts its
//! unfinished dependencies and may start on its lane when none are left. This module computes nothing, and no thread
//! waits in it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use thiserror::Error;

/// A lane, on which nodes run one after another: a device, or another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub usize);

/// A node, by its position in the list that the graph was built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A piece of work, as it is put into a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's name, used in dependencies and error messages.
    pub name: String,
    /// The lane it runs on.
    pub lane: LaneId,
    /// The names of the nodes that must be done before this one.
    pub after: Vec<String>,
    /// Of the nodes that may start on a lane, the one with the lowest rank goes first.
    pub rank: u64,
}

/// Why nodes do not form a graph that can be executed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GraphError {
    /// Two nodes have the same name.
    #[error("duplicate name {0:?}")]
    Twice(String),
    /// A node depends on a node that does not exist.
    #[error("{node:?} depends on {dependency:?}, which does not exist")]
    Unknown {
        /// The dependent node.
        node: String,
        /// The missing dependency.
        dependency: String,
    },
    /// Some nodes depend on each other, so none of them could ever start.
    #[error("{}", in_words(.0))]
    Cycle(Vec<String>),
}

fn in_words(circle: &[String]) -> String {
    match circle {
        [one] => format!("{one} depends on itself"),
        several => format!("{} depend on each other in a circle", several.join(", ")),
    }
}

/// A graph of nodes that can be executed. The same graph serves any number of runs.
#[derive(Debug, Clone)]
pub struct Graph {
    nodes: Vec<Node>,
    /// For each node, the nodes that depend on it.
    dependents: Vec<Vec<NodeId>>,
    /// For each node, the number of its dependencies.
    dependencies: Vec<usize>,
    lanes: usize,
}

impl Graph {
    /// Builds a graph from nodes.
    pub fn new(nodes: Vec<Node>) -> Result<Self, GraphError> {
        let mut ids = BTreeMap::new();
        for (index, node) in nodes.iter().enumerate() {
            if ids.insert(&*node.name, NodeId(index)).is_some() {
                return Err(GraphError::Twice(node.name.clone()));
            }
        }
        let mut dependents = vec![Vec::new(); nodes.len()];
        let mut dependencies = vec![0; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            for dependency in &node.after {
                let Some(id) = ids.get(&**dependency) else {
                    return Err(GraphError::Unknown { node: node.name.clone(), dependency: dependency.clone() });
                };
                dependents[id.0].push(NodeId(index));
                dependencies[index] += 1;
            }
        }
        let lanes = nodes.iter().map(|node| node.lane.0 + 1).max().unwrap_or(0);
        let graph = Self { nodes, dependents, dependencies, lanes };
        match graph.cycle() {
            Some(names) => Err(GraphError::Cycle(names)),
            None => Ok(graph),
        }
    }

    /// The nodes, in the order in which they were given.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One more than the highest lane of any node.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The nodes of a cycle, if there is one.
    fn cycle(&self) -> Option<Vec<String>> {
        let mut unmet = self.dependencies.clone();
        let mut free: Vec<usize> = (0..unmet.len()).filter(|index| unmet[*index] == 0).collect();
        while let Some(index) = free.pop() {
            for dependent in &self.dependents[index] {
                unmet[dependent.0] -= 1;
                if unmet[dependent.0] == 0 {
                    free.push(dependent.0);
                }
            }
        }
        // Each remaining node waits for another one, so following them leads around a cycle.
        let waits_for = |index: usize| {
            (0..unmet.len()).find(|other| unmet[*other] > 0 && self.dependents[*other].contains(&NodeId(index)))
        };
        let mut at = unmet.iter().position(|unmet| *unmet > 0)?;
        let mut path = Vec::new();
        while !path.contains(&at) {
            path.push(at);
            at = waits_for(at)?;
        }
        let round = path.iter().skip_while(|index| **index != at);
        let mut names: Vec<String> = round.map(|index| self.nodes[*index].name.clone()).collect();
        names.reverse();
        Some(names)
    }
}

/// A node's failure, which fails the whole run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{node}: {reason}")]
pub struct Failed {
    /// The name of the node.
    pub node: String,
    /// Why it failed.
    pub reason: String,
}

/// One run through a graph.
#[derive(Debug, Clone)]
pub struct Executor {
    graph: Arc<Graph>,
    /// For each node, the number of dependencies that are not done.
    unmet: Vec<usize>,
    /// The nodes that may start on each lane, the lowest rank first.
    ready: Vec<BinaryHeap<Reverse<(u64, NodeId)>>>,
    running: usize,
    remaining: usize,
    failed: Option<Failed>,
}

impl Executor {
    /// A run in which nothing is done yet.
    pub fn new(graph: Arc<Graph>) -> Self {
        let free: Vec<usize> = (0..graph.nodes.len()).filter(|index| graph.dependencies[*index] == 0).collect();
        let mut executor = Self {
            unmet: graph.dependencies.clone(),
            ready: vec![BinaryHeap::new(); graph.lanes],
            running: 0,
            remaining: graph.nodes.len(),
            failed: None,
            graph,
        };
        free.into_iter().for_each(|index| executor.admit(index));
        executor
    }

    /// The next node to start on a lane, if there is one. Once a node has failed, no other is started.
    pub fn ready(&mut self, lane: LaneId) -> Option<NodeId> {
        if self.failed.is_some() {
            return None;
        }
        let Reverse((_, node)) = self.ready.get_mut(lane.0)?.pop()?;
        self.running += 1;
        Some(node)
    }

    /// Records that a started node is done.
    pub fn complete(&mut self, node: NodeId) {
        self.running -= 1;
        self.remaining -= 1;
        let graph = self.graph.clone();
        for dependent in &graph.dependents[node.0] {
            self.unmet[dependent.0] -= 1;
            if self.unmet[dependent.0] == 0 {
                self.admit(dependent.0);
            }
        }
    }

    /// Records that a started node has failed. If several fail, the first one counts.
    pub fn fail(&mut self, node: NodeId, reason: String) {
        self.running -= 1;
        self.failed.get_or_insert_with(|| Failed { node: self.graph.nodes[node.0].name.clone(), reason });
    }

    /// Whether nothing runs and nothing will be started any more.
    pub fn is_done(&self) -> bool {
        self.running == 0 && (self.remaining == 0 || self.failed.is_some())
    }

    /// The failure that ended the run, if any.
    pub fn failure(&self) -> Option<&Failed> {
        self.failed.as_ref()
    }

    fn admit(&mut self, index: usize) {
        let Node { lane, rank, .. } = self.graph.nodes[index];
        self.ready[lane.0].push(Reverse((rank, NodeId(index))));
    }
}

#[cfg(test)]
#[path = "executor_tests.rs"]
mod tests;
