//! Tests of `parameter`: how parameters are checked, numbered, fingerprinted and compared.

use super::*;

fn spec(name: &str, shape: &[usize], access: Access) -> ParameterSpec {
    ParameterSpec { name: name.to_owned(), shape: shape.to_vec(), access, kind: ParameterKind::Trained }
}

fn dense(name: &str, shape: &[usize]) -> ParameterSpec {
    spec(name, shape, Access::Dense)
}

/// Running statistics.
fn state(name: &str, shape: &[usize]) -> ParameterSpec {
    ParameterSpec { kind: ParameterKind::State, ..dense(name, shape) }
}

fn frozen(name: &str, shape: &[usize]) -> ParameterSpec {
    ParameterSpec { kind: ParameterKind::Constant, ..spec(name, shape, Access::Rows) }
}

fn table(specs: &[ParameterSpec]) -> ParameterTable {
    ParameterTable::new(specs.to_vec()).unwrap()
}

fn refusal(specs: &[ParameterSpec]) -> String {
    ParameterTable::new(specs.to_vec()).unwrap_err().to_string()
}

#[test]
fn a_scalar_is_one_row_of_one_element() {
    let scalar = dense("bias", &[]);
    assert_eq!((scalar.elements(), scalar.rows(), scalar.width()), (1, 1, 1));
}

#[test]
fn the_width_of_a_row_spans_all_later_dimensions() {
    let kernel = dense("kernel", &[5, 3, 2]);
    assert_eq!((kernel.elements(), kernel.rows(), kernel.width()), (30, 5, 6));
}

#[test]
fn ids_follow_the_order_of_the_list() {
    let table = table(&[dense("a", &[2]), dense("b", &[3])]);
    let ids: Vec<_> = table.iter().map(|(id, spec)| (id, spec.name.as_str())).collect();
    assert_eq!(ids, [(ParameterId(0), "a"), (ParameterId(1), "b")]);
    assert_eq!(table.get(ParameterId(1)), Some(&table[ParameterId(1)]));
    assert_eq!(table.get(ParameterId(2)), None);
    assert_eq!(table.elements(), 5);
}

#[test]
fn an_empty_name_is_refused() {
    assert_eq!(refusal(&[dense("a", &[1]), dense("", &[1])]), "parameter 1 has no name");
}

#[test]
fn a_name_used_twice_is_refused() {
    assert_eq!(
        refusal(&[dense("a", &[1]), dense("b", &[1]), dense("a", &[2])]),
        "parameters 0 and 2 are both named `a`"
    );
}

#[test]
fn a_zero_dimension_is_refused_even_beside_an_overflowing_one() {
    assert_eq!(
        refusal(&[dense("a", &[usize::MAX, 2, 0])]),
        format!("parameter `a` of shape [{}, 2, 0] has a dimension of zero", usize::MAX)
    );
}

#[test]
fn an_element_count_that_overflows_is_refused() {
    let half = 1 << (usize::BITS / 2);
    let error = ParameterTable::new(vec![dense("a", &[half, half])]).unwrap_err();
    assert_eq!(error, ParameterError::TooLarge { name: "a".into(), shape: vec![half, half] });
}

#[test]
fn parameters_too_large_only_together_are_refused() {
    let error = ParameterTable::new(vec![dense("a", &[MAX_ELEMENTS]), dense("b", &[1])]).unwrap_err();
    assert_eq!(error, ParameterError::TooLarge { name: "b".into(), shape: vec![1] });
}

#[test]
fn rows_need_a_second_dimension() {
    assert_eq!(
        refusal(&[spec("words", &[9], Access::Rows)]),
        "parameter `words` of shape [9] is accessed by row and needs two dimensions"
    );
}

#[test]
fn what_is_frozen_is_reached_by_rows_whatever_its_shape_and_state_is_not() {
    table(&[frozen("bias", &[9]), frozen("scalar", &[]), frozen("kernel", &[3, 4])]);
    assert_eq!(
        refusal(&[ParameterSpec { kind: ParameterKind::Constant, ..dense("a", &[9]) }]),
        "`a` is frozen, so it cannot be part of every step"
    );
    assert_eq!(
        refusal(&[ParameterSpec { kind: ParameterKind::State, ..spec("a", &[9, 2], Access::Rows) }]),
        "`a` has running statistics, which cannot be accessed by row"
    );
}

#[test]
fn the_fingerprint_is_the_same_number_everywhere() {
    let table = table(&[dense("a", &[2, 3]), spec("words", &[100, 8], Access::Rows)]);
    // Computed by another program from the same description.
    assert_eq!(table.fingerprint(), 0xe1dd_cf60_fa6b_cb61);
}

#[test]
fn the_fingerprint_tells_names_shapes_access_kinds_and_order_apart() {
    let (a, b) = (dense("a", &[2, 3]), dense("b", &[4]));
    let mut fingerprints: Vec<_> = [
        table(&[a.clone(), b.clone()]),
        table(&[b.clone(), a.clone()]),
        table(&[a.clone(), dense("c", &[4])]),
        table(&[dense("a", &[3, 2]), b.clone()]),
        table(&[spec("a", &[2, 3], Access::Rows), b.clone()]),
        table(&[frozen("a", &[2, 3]), b.clone()]),
        table(&[state("a", &[2, 3]), b]),
        table(&[a]),
    ]
    .iter()
    .map(ParameterTable::fingerprint)
    .collect();
    fingerprints.sort_unstable();
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 8);
}

#[test]
fn the_first_difference_names_the_parameter_and_both_shapes() {
    let here = table(&[dense("a", &[2]), dense("hidden.weight", &[784, 100])]);
    let there = table(&[dense("a", &[2]), dense("hidden.weight", &[784, 128])]);
    assert_eq!(
        here.first_difference(&there).unwrap(),
        "parameter 1 is `hidden.weight` of shape [784, 100] here \
         but `hidden.weight` of shape [784, 128] there"
    );
}

#[test]
fn the_first_difference_shows_a_difference_of_access() {
    let here = table(&[spec("words", &[9, 4], Access::Rows)]);
    let there = table(&[dense("words", &[9, 4])]);
    assert_eq!(
        here.first_difference(&there).unwrap(),
        "parameter 0 is `words` of shape [9, 4] by rows here \
         but `words` of shape [9, 4] there"
    );
}

#[test]
fn the_first_difference_shows_what_is_frozen_or_not_trained() {
    let here = table(&[frozen("a", &[9])]);
    assert_eq!(
        here.first_difference(&table(&[state("a", &[9])])).unwrap(),
        "parameter 0 is `a` of shape [9] (frozen) here but `a` of shape [9] (running statistics) there"
    );
}

#[test]
fn a_layer_may_be_frozen_or_trained_from_a_checkpoint_on() {
    let (trained, frozen) = (table(&[dense("a", &[9])]), table(&[frozen("a", &[9])]));
    assert_eq!(trained.difference_from_checkpoint(&frozen), None);
    assert_eq!(frozen.difference_from_checkpoint(&trained), None);
    assert!(trained.first_difference(&frozen).is_some(), "but not by some workers only");
}

#[test]
fn values_that_were_trained_are_no_running_statistics() {
    let (trained, state) = (table(&[dense("mean", &[9])]), table(&[state("mean", &[9])]));
    assert_eq!(
        state.difference_from_checkpoint(&trained).unwrap(),
        "parameter 0 is `mean` of shape [9] (running statistics) here but `mean` of shape [9] there"
    );
    assert!(table(&[dense("a", &[9])]).difference_from_checkpoint(&table(&[])).is_some());
}

#[test]
fn the_first_difference_names_a_parameter_that_one_side_lacks() {
    let (here, there) = (table(&[]), table(&[dense("bias", &[10])]));
    assert_eq!(here.first_difference(&there).unwrap(), "parameter 0 is missing here but `bias` of shape [10] there");
}

#[test]
fn equal_tables_have_no_difference() {
    let table = table(&[dense("a", &[2])]);
    assert_eq!(table.first_difference(&table.clone()), None);
}

#[test]
fn a_table_survives_serialisation() {
    let table = table(&[dense("a", &[]), spec("words", &[9, 4], Access::Rows), state("b", &[2]), frozen("c", &[3])]);
    let text = serde_json::to_string(&table).unwrap();
    assert_eq!(serde_json::from_str::<ParameterTable>(&text).unwrap(), table);
}

#[test]
fn a_table_from_before_there_were_kinds_is_read_and_one_without_others_is_written_as_before() {
    let text = r#"[{"name":"a","shape":[2],"access":"dense"}]"#;
    let read: ParameterTable = serde_json::from_str(text).unwrap();
    assert_eq!(read, table(&[dense("a", &[2])]));
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
}

#[test]
fn a_bad_table_is_refused_when_deserialised() {
    let text = r#"[{"name": "a", "shape": [0], "access": "dense"}]"#;
    let error = serde_json::from_str::<ParameterTable>(text).unwrap_err();
    assert!(error.to_string().contains("has a dimension of zero"), "{error}");
}
