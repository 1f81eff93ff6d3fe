//! Tests of `plan`: how parameters are spread over servers.

use proptest::prelude::*;

use super::*;
use crate::parameter::ParameterSpec;

fn table(parameters: &[(&[usize], Access)]) -> ParameterTable {
    let spec = |(index, (shape, access)): (usize, &(&[usize], Access))| ParameterSpec {
        name: format!("parameter{index}"),
        shape: shape.to_vec(),
        access: *access,
        kind: ParameterKind::Trained,
    };
    ParameterTable::new(parameters.iter().enumerate().map(spec).collect()).unwrap()
}

fn dense(lengths: &[usize]) -> ParameterTable {
    let shapes: Vec<_> = lengths.iter().map(|&length| [length]).collect();
    table(&shapes.iter().map(|shape| (shape.as_slice(), Access::Dense)).collect::<Vec<_>>())
}

/// A table in which some parameters have another kind.
fn with_kinds(table: &ParameterTable, kinds: &[(u32, ParameterKind)]) -> ParameterTable {
    let mut specs: Vec<ParameterSpec> = table.iter().map(|(_, spec)| spec.clone()).collect();
    for (index, kind) in kinds {
        let spec = &mut specs[*index as usize];
        spec.kind = *kind;
        spec.access = if *kind == ParameterKind::Constant { Access::Rows } else { spec.access };
    }
    ParameterTable::new(specs).unwrap()
}

/// Each server's segments as (parameter, start, end).
fn segments(plan: &ShardPlan) -> Vec<Vec<(u32, usize, usize)>> {
    let flat = |segment: &Segment| (segment.parameter.0, segment.range.start, segment.range.end);
    plan.servers.iter().map(|server| server.segments.iter().map(flat).collect()).collect()
}

#[test]
fn a_cut_inside_a_parameter_falls_on_a_multiple_of_sixteen() {
    let plan = ShardPlan::new(&dense(&[78_400, 100, 1000, 10]), 2, Sharding::BALANCED);
    assert_eq!(
        segments(&plan),
        [vec![(0, 0, 39_760)], vec![(0, 39_760, 78_400), (1, 0, 100), (2, 0, 1000), (3, 0, 10)]]
    );
}

#[test]
fn a_cut_near_the_edge_of_a_parameter_moves_to_the_edge() {
    let plan = ShardPlan::new(&dense(&[10_000, 8000]), 2, Sharding::BALANCED);
    assert_eq!(segments(&plan), [vec![(0, 0, 10_000)], vec![(1, 0, 8000)]]);
}

#[test]
fn small_parameters_stay_whole_though_a_server_gets_nothing() {
    let plan = ShardPlan::new(&dense(&[100, 1]), 3, Sharding::BALANCED);
    assert_eq!(segments(&plan), [vec![], vec![(0, 0, 100)], vec![(1, 0, 1)]]);
}

#[test]
fn servers_that_hold_nothing_take_no_part_but_for_the_first() {
    let active = |table: &ParameterTable, servers, min_bytes| {
        let plan = ShardPlan::new(table, servers, Sharding::Balanced { min_bytes });
        plan.active_servers().into_iter().map(|server| server.0).collect::<Vec<_>>()
    };
    assert_eq!(active(&dense(&[784_000]), 2, 4 << 20), [0]);
    assert_eq!(active(&dense(&[784_000]), 2, 0), [0, 1]);
    assert_eq!(active(&dense(&[100, 1]), 3, 0), [0, 1, 2], "the first holds nothing, and counts the steps");
    assert_eq!(active(&dense(&[100]), 4, 0), [0, 2], "those that take part need not be the first");
    let rows = table(&[(&[2, 4], Access::Rows)]);
    assert_eq!(active(&rows, 3, 4 << 20), [0, 1], "rows are on every server that gets one");
}

#[test]
fn rows_are_striped_over_the_servers_that_have_a_row() {
    let table = table(&[(&[5, 4], Access::Rows), (&[1, 4], Access::Rows)]);
    let plan = ShardPlan::new(&table, 2, Sharding::BALANCED);
    let stripe = |parameter, first, count| RowStripe { parameter: ParameterId(parameter), first, stride: 2, count };
    assert_eq!(plan.servers[0].stripes, [stripe(0, 0, 3), stripe(1, 0, 1)]);
    assert_eq!(plan.servers[1].stripes, [stripe(0, 1, 2)]);
    assert_eq!(plan.servers[0].row_elements(&table), 16);
    assert_eq!(plan.servers[1].row_elements(&table), 8);
}

#[test]
fn round_robin_deals_whole_parameters_in_turn() {
    let table =
        table(&[(&[9000], Access::Dense), (&[7, 4], Access::Rows), (&[3], Access::Dense), (&[2], Access::Dense)]);
    let plan = ShardPlan::new(&table, 2, Sharding::RoundRobin);
    assert_eq!(segments(&plan), [vec![(0, 0, 9000), (2, 0, 3)], vec![(3, 0, 2)]]);
    assert_eq!(plan.servers[1].stripes, [RowStripe { parameter: ParameterId(1), first: 0, stride: 1, count: 7 }]);
}

#[test]
fn below_the_minimum_only_the_first_servers_get_dense_parameters() {
    let plan = |min_bytes| {
        let table = dense(&[40_000, 40_000]);
        let plan = ShardPlan::new(&table, 4, Sharding::Balanced { min_bytes });
        plan.servers.iter().map(ServerPlan::dense_elements).collect::<Vec<_>>()
    };
    assert_eq!(plan(0), [20_000; 4]);
    assert_eq!(plan(80_000), [20_000; 4]);
    assert_eq!(plan(80_001), [26_672, 26_656, 26_672, 0]);
    assert_eq!(plan(160_000), [40_000, 40_000, 0, 0]);
    assert_eq!(plan(1_000_000), [80_000, 0, 0, 0]);
}

#[test]
fn a_stripe_has_no_row_beyond_its_last() {
    let stripe = RowStripe { parameter: ParameterId(0), first: 1, stride: 3, count: 2 };
    assert_eq!([1, 4, 7, 0].map(|row| stripe.local(row)), [Some(0), Some(1), None, None]);
}

#[test]
fn a_sharding_is_read_with_underscore_or_hyphen_and_written_with_underscore() {
    for name in ["balanced", "round_robin"] {
        assert_eq!(name.parse::<Sharding>().unwrap().to_string(), name);
    }
    assert_eq!("round-robin".parse(), Ok(Sharding::RoundRobin));
    assert_eq!(serde_json::to_string(&Sharding::RoundRobin).unwrap(), r#""round_robin""#);
}

#[test]
fn a_sharding_survives_json_and_is_read_as_it_was_written_before() {
    for sharding in [Sharding::BALANCED, Sharding::Balanced { min_bytes: 7 }, Sharding::RoundRobin] {
        let json = serde_json::to_string(&sharding).unwrap();
        assert_eq!(serde_json::from_str::<Sharding>(&json).unwrap(), sharding);
    }
    assert_eq!(serde_json::from_str::<Sharding>(r#""balanced""#).unwrap(), Sharding::BALANCED);
    assert!(serde_json::from_str::<Sharding>(r#""greedy""#).is_err());
}

#[test]
fn an_unknown_sharding_is_told_the_choices() {
    assert_eq!(
        "greedy".parse::<Sharding>().unwrap_err().to_string(),
        "unknown sharding `greedy`: expected balanced or round_robin"
    );
}

fn any_table() -> impl Strategy<Value = ParameterTable> {
    let length = prop_oneof![1..40usize, 900..1200usize, 1..9000usize];
    let parameter = prop_oneof![
        3 => length.prop_map(|length| (vec![length], Access::Dense)),
        1 => (1..50usize, 1..5usize).prop_map(|(rows, width)| (vec![rows, width], Access::Rows)),
    ];
    proptest::collection::vec(parameter, 0..12).prop_map(|parameters| {
        let borrowed: Vec<_> = parameters.iter().map(|(shape, access)| (shape.as_slice(), *access)).collect();
        table(&borrowed)
    })
}

fn any_sharding() -> impl Strategy<Value = Sharding> {
    prop_oneof![(0..40_000usize).prop_map(|min_bytes| Sharding::Balanced { min_bytes }), Just(Sharding::RoundRobin)]
}

proptest! {
    #[test]
    fn every_element_is_in_exactly_one_place(
        table in any_table(),
        servers in 1..9usize,
        sharding in any_sharding(),
    ) {
        let plan = ShardPlan::new(&table, servers, sharding);
        prop_assert_eq!(plan.servers.len(), servers);
        let mut held: Vec<_> =
            table.iter().map(|(_, spec)| vec![0; spec.elements()]).collect();
        for server in &plan.servers {
            for Segment { parameter, range } in &server.segments {
                prop_assert_eq!(table[*parameter].access, Access::Dense);
                prop_assert!(!range.is_empty());
                held[parameter.0 as usize][range.clone()].iter_mut().for_each(|n| *n += 1);
            }
            for stripe in &server.stripes {
                prop_assert_eq!(table[stripe.parameter].access, Access::Rows);
                prop_assert!(stripe.count > 0);
                let width = table[stripe.parameter].width();
                for row in (0..stripe.count).map(|local| stripe.global(local)) {
                    let elements = row * width..(row + 1) * width;
                    held[stripe.parameter.0 as usize][elements].iter_mut().for_each(|n| *n += 1);
                }
            }
        }
        prop_assert!(held.iter().flatten().all(|&times| times == 1));
    }

    #[test]
    fn balanced_dense_shares_are_within_two_snaps_of_the_mean(
        table in any_table(),
        servers in 1..9usize,
    ) {
        let plan = ShardPlan::new(&table, servers, Sharding::BALANCED);
        let shares = plan.servers.iter().map(ServerPlan::dense_elements);
        let mean = shares.clone().sum::<usize>() as f64 / servers as f64;
        for share in shares {
            // The 1 is for rounding the ideal cut to a whole element.
            prop_assert!((share as f64 - mean).abs() < (2 * CUT_SNAP + 1) as f64);
        }
    }

    #[test]
    fn local_and_global_row_numbers_are_inverse(
        rows in 1..200usize,
        servers in 1..9usize,
        row in 0..250usize,
    ) {
        let table = table(&[(&[rows, 2], Access::Rows)]);
        let plan = ShardPlan::new(&table, servers, Sharding::BALANCED);
        let homes: Vec<_> = plan
            .servers
            .iter()
            .flat_map(|server| &server.stripes)
            .filter_map(|stripe| Some(stripe.global(stripe.local(row)?)))
            .collect();
        let expected = if row < rows { vec![row] } else { vec![] };
        prop_assert_eq!(homes, expected);
    }
}

#[test]
fn state_is_found_where_it_lies_however_it_is_cut() {
    let table = with_kinds(&dense(&[3000, 5000, 10, 4000]), &[(1, ParameterKind::State), (2, ParameterKind::State)]);
    let state = |plan: &ServerPlan| {
        let stretches = plan.stretches(&table, &BTreeMap::new()).into_iter();
        let place = |it: Stretch| (it.treatment == Treatment::Assigned).then_some((it.range.start, it.range.end));
        stretches.map(|it| place(it).expect("nothing else is special")).collect::<Vec<_>>()
    };
    let whole = ShardPlan::new(&table, 1, Sharding::BALANCED);
    assert_eq!(state(&whole.servers[0]), [(3000, 8000), (8000, 8010)]);
    let halves = ShardPlan::new(&table, 2, Sharding::BALANCED);
    assert_eq!(segments(&halves), [vec![(0, 0, 3000), (1, 0, 3008)], vec![(1, 3008, 5000), (2, 0, 10), (3, 0, 4000)]]);
    assert_eq!(state(&halves.servers[0]), [(3000, 6008)]);
    assert_eq!(state(&halves.servers[1]), [(0, 1992), (1992, 2002)]);
}

#[test]
fn what_came_to_be_trained_later_is_found_where_it_lies_however_it_is_cut() {
    let table = dense(&[3000, 5000, 4000]);
    let since = BTreeMap::from([("parameter1".to_owned(), 7)]);
    let found = |plan: &ServerPlan| plan.stretches(&table, &since);
    let late = |range| vec![Stretch { range, treatment: Treatment::TrainedSince(7) }];
    let halves = ShardPlan::new(&table, 2, Sharding::BALANCED);
    assert_eq!(segments(&halves), [vec![(0, 0, 3000), (1, 0, 3008)], vec![(1, 3008, 5000), (2, 0, 4000)]]);
    assert_eq!(found(&halves.servers[0]), late(3000..6008));
    assert_eq!(found(&halves.servers[1]), late(0..1992));
}

#[test]
fn what_is_frozen_is_striped_over_the_servers_that_hold_dense_parameters() {
    let table = with_kinds(&dense(&[3000, 7, 3000]), &[(1, ParameterKind::Constant)]);
    let stripes = |servers, min_bytes| {
        let plan = ShardPlan::new(&table, servers, Sharding::Balanced { min_bytes });
        let count = |server: &ServerPlan| server.stripes.iter().map(|stripe| stripe.count).sum::<usize>();
        plan.servers.iter().map(count).collect::<Vec<_>>()
    };
    assert_eq!(stripes(3, 0), [3, 2, 2]);
    assert_eq!(stripes(3, 12_000), [4, 3, 0]);
    assert_eq!(stripes(3, 1 << 20), [7, 0, 0]);
}
