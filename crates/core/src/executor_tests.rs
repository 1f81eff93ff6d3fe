//! Tests of `executor`: random graphs executed in random order, and graphs that are refused.

use proptest::prelude::*;

use super::*;

fn node(name: &str, lane: usize, after: &[&str]) -> Node {
    let after = after.iter().map(|name| (*name).to_owned()).collect();
    Node { name: name.to_owned(), lane: LaneId(lane), after, rank: 0 }
}

fn refused(nodes: Vec<Node>) -> String {
    Graph::new(nodes).unwrap_err().to_string()
}

/// Graphs without cycles: a node depends only on earlier ones, which are then shuffled.
fn any_graph() -> impl Strategy<Value = Vec<Node>> {
    let links =
        prop::collection::vec((0..4_usize, 0..5_u64, prop::collection::vec(any::<prop::sample::Index>(), 0..4)), 0..24);
    let nodes = links.prop_map(|links| {
        let made = links.into_iter().enumerate().map(|(index, (lane, rank, after))| {
            let mut after: Vec<String> =
                after.iter().filter(|_| index > 0).map(|other| format!("n{}", other.index(index))).collect();
            after.sort();
            after.dedup();
            Node { name: format!("n{index}"), lane: LaneId(lane), after, rank }
        });
        made.collect::<Vec<_>>()
    });
    nodes.prop_shuffle()
}

/// Executes a graph as threads would in some order. At each point, either a lane starts a node or a running node ends;
/// `fails` gets the node's name and decides whether it fails.
fn work_through(graph: &Arc<Graph>, choices: &[u8], fails: impl Fn(&str) -> bool) -> (Vec<String>, Option<Failed>) {
    let mut executor = Executor::new(graph.clone());
    let (mut running, mut started, mut done) = (Vec::new(), Vec::new(), Vec::new());
    let mut choices = choices.iter().copied().cycle();
    let (mut idle, mut first) = (0, 0);
    while !executor.is_done() {
        let choice = choices.next().unwrap_or(0) as usize;
        if choice.is_multiple_of(2) && !running.is_empty() || idle > graph.lanes() {
            assert!(!running.is_empty(), "nothing runs, nothing starts, and it is not done");
            let node: NodeId = running.remove(choice / 2 % running.len());
            let name = graph.nodes()[node.0].name.clone();
            if fails(&name) {
                executor.fail(node, "broke".to_owned());
            } else {
                executor.complete(node);
                done.push(name);
            }
            idle = 0;
            continue;
        }
        if idle == 0 {
            first = choice / 2;
        }
        let lane = LaneId((first + idle) % graph.lanes());
        match executor.ready(lane) {
            Some(node) => {
                let Node { name, lane: own, after, .. } = &graph.nodes()[node.0];
                assert_eq!(*own, lane, "{name}");
                assert!(after.iter().all(|dependency| done.contains(dependency)), "{name} after {done:?}");
                assert!(!started.contains(name), "{name} was started twice");
                started.push(name.clone());
                running.push(node);
                idle = 0;
            }
            None => idle += 1,
        }
    }
    assert!((0..graph.lanes()).all(|lane| executor.ready(LaneId(lane)).is_none()), "all lanes are empty");
    (started, executor.failure().cloned())
}

proptest! {
    #[test]
    fn every_node_runs_once_and_after_all_that_it_depends_on(
        nodes in any_graph(),
        choices in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let graph = Arc::new(Graph::new(nodes).unwrap());
        let (started, failed) = work_through(&graph, &choices, |_| false);
        prop_assert_eq!(started.len(), graph.nodes().len());
        prop_assert_eq!(failed, None);
    }

    #[test]
    fn a_node_that_fails_is_named_and_nothing_that_depends_on_it_starts(
        nodes in any_graph(),
        choices in prop::collection::vec(any::<u8>(), 1..40),
        broken in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!nodes.is_empty());
        let broken = nodes[broken.index(nodes.len())].name.clone();
        let graph = Arc::new(Graph::new(nodes).unwrap());
        let (started, failed) = work_through(&graph, &choices, |name| name == broken);
        prop_assert!(started.contains(&broken));
        prop_assert_eq!(failed.unwrap().to_string(), format!("{broken}: broke"));
        for node in graph.nodes().iter().filter(|node| node.after.contains(&broken)) {
            prop_assert!(!started.contains(&node.name), "{} after {}", node.name, broken);
        }
    }

    #[test]
    fn a_graph_that_is_bent_back_on_itself_is_refused(mut nodes in any_graph()) {
        prop_assume!(!nodes.is_empty());
        let depended_on = nodes.iter().position(|node| !node.after.is_empty()).unwrap_or(0);
        let (name, first) = (nodes[depended_on].name.clone(), nodes[depended_on].after.first().cloned());
        match first {
            Some(first) => nodes.iter_mut().find(|node| node.name == first).unwrap().after.push(name),
            None => nodes[depended_on].after.push(name),
        }
        prop_assert!(matches!(Graph::new(nodes), Err(GraphError::Cycle(_))));
    }
}

#[test]
fn what_cannot_be_worked_through_is_refused_by_name() {
    let circle = vec![node("a", 0, &[]), node("b", 0, &["a", "d"]), node("c", 0, &["b"]), node("d", 0, &["c"])];
    assert_eq!(refused(circle), "c, d, b depend on each other in a circle");
    assert_eq!(refused(vec![node("a", 0, &["a"])]), "a depends on itself");
    assert_eq!(refused(vec![node("a", 0, &["b"])]), r#""a" depends on "b", which does not exist"#);
    assert_eq!(refused(vec![node("a", 0, &[]), node("a", 1, &[])]), r#"duplicate name "a""#);
}

#[test]
fn the_lowest_rank_goes_first_and_of_two_the_one_that_was_given_first() {
    let ranked = |name: &str, rank| Node { rank, ..node(name, 0, &[]) };
    let graph =
        Graph::new(vec![ranked("last", 9), ranked("second", 5), ranked("first", 1), ranked("third", 5)]).unwrap();
    let mut executor = Executor::new(graph.into());
    let order: Vec<usize> = std::iter::from_fn(|| executor.ready(LaneId(0))).map(|node| node.0).collect();
    assert_eq!(order, [2, 1, 3, 0]);
    assert!(!executor.is_done(), "all of them are running");
}

#[test]
fn of_two_that_fail_the_first_is_told_and_what_runs_is_waited_for() {
    let graph = Graph::new(vec![node("a", 0, &[]), node("b", 1, &[]), node("c", 0, &[])]).unwrap();
    let mut executor = Executor::new(graph.into());
    let (a, b) = (executor.ready(LaneId(0)).unwrap(), executor.ready(LaneId(1)).unwrap());
    executor.fail(a, "broke".to_owned());
    assert_eq!(executor.ready(LaneId(0)), None);
    assert!(!executor.is_done());
    executor.fail(b, "broke too".to_owned());
    assert!(executor.is_done());
    assert_eq!(executor.failure().unwrap().to_string(), "a: broke");
}

#[test]
fn a_graph_without_nodes_is_done() {
    let graph = Graph::new(Vec::new()).unwrap();
    assert!(Executor::new(graph.into()).is_done());
}
