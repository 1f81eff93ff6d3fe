//! Tests of `rows`: how rows are read, written, updated and summed.

use proptest::prelude::*;

use super::*;

/// A table whose element i holds i + 1.
fn counted(rows: usize, width: usize, optimizer: &Optimizer) -> RowTable {
    let mut table = RowTable::new(rows, width, optimizer);
    let numbers: Vec<_> = (0..rows as u32).collect();
    let values: Vec<_> = (1..=rows * width).map(|value| value as f32).collect();
    table.write(&numbers, &values).unwrap();
    table
}

fn read(table: &RowTable, rows: &[u32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows.len() * table.width()];
    table.read(rows, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn rows_are_read_in_the_order_asked_for() {
    let table = counted(3, 2, &Optimizer::Sgd);
    assert_eq!(read(&table, &[2, 0, 2]), [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
}

#[test]
fn touching_every_row_every_step_equals_the_dense_optimizer() {
    let rows: Vec<_> = (0..5).collect();
    for optimizer in Optimizer::all() {
        let mut table = counted(5, 3, &optimizer);
        let mut block = table.block.clone();
        for step in 1..=4 {
            let gradient: Vec<_> = (0..15).map(|i| (i as f32 - 7.0) / step as f32).collect();
            let update = Update { learning_rate: 0.1, step, scale: 0.5 };
            block.apply(&optimizer, &update, &gradient);
            table.apply(&optimizer, 0.1, 0.5, &rows, &gradient).unwrap();
        }
        assert_eq!(table.block, block, "{optimizer}");
    }
}

#[test]
fn untouched_rows_stay_as_they_are_bit_for_bit() {
    for optimizer in Optimizer::all() {
        let mut table = counted(4, 2, &optimizer);
        table.apply(&optimizer, 0.1, 1.0, &[0, 1, 2, 3], &[0.3; 8]).unwrap();
        let before = table.clone();
        table.apply(&optimizer, 0.1, 1.0, &[1], &[7.0, -7.0]).unwrap();
        let state = |table: RowTable| [vec![table.block.values], table.block.slots].concat();
        assert_eq!(table.steps, [1, 2, 1, 1]);
        for (before, after) in state(before).iter().zip(&state(table)) {
            assert_eq!(bits(&before[..2]), bits(&after[..2]), "{optimizer}");
            assert_ne!(bits(&before[2..4]), bits(&after[2..4]), "{optimizer}");
            assert_eq!(bits(&before[4..]), bits(&after[4..]), "{optimizer}");
        }
    }
}

#[test]
fn a_row_first_touched_late_takes_its_own_first_step() {
    let adam = Optimizer::named("adam").unwrap();
    let mut table = counted(2, 1, &adam);
    for _ in 0..100 {
        table.apply(&adam, 0.1, 1.0, &[0], &[1.0]).unwrap();
    }
    table.apply(&adam, 0.1, 1.0, &[1], &[5.0]).unwrap();
    // Adam's first step is the learning rate, whatever the gradient.
    assert!((read(&table, &[1])[0] - 1.9).abs() < 1e-6);
}

#[test]
fn a_row_named_twice_moves_once_by_the_sum() {
    for optimizer in Optimizer::all() {
        let (mut twice, mut once) = (counted(4, 1, &optimizer), counted(4, 1, &optimizer));
        twice.apply(&optimizer, 0.1, 0.5, &[2, 0, 2], &[1.25, 3.0, -0.5]).unwrap();
        once.apply(&optimizer, 0.1, 0.5, &[0, 2], &[3.0, 0.75]).unwrap();
        assert_eq!(twice, once, "{optimizer}");
    }
}

#[test]
fn a_row_past_the_last_is_refused_and_changes_nothing() {
    let mut table = counted(3, 1, &Optimizer::Sgd);
    let before = table.clone();
    let error = RowError::OutOfRange { row: 3, rows: 3 };
    assert_eq!(table.apply(&Optimizer::Sgd, 0.1, 1.0, &[0, 3], &[1.0; 2]), Err(error.clone()));
    assert_eq!(table.write(&[0, 3], &[9.0; 2]), Err(error.clone()));
    assert_eq!(table, before);
    let mut out = [8.0; 2];
    assert_eq!(table.read(&[0, 3], &mut out), Err(error.clone()));
    assert_eq!(out, [8.0; 2]);
    assert_eq!(error.to_string(), "row 3 is outside a table of 3 rows");
}

#[test]
fn a_wrong_number_of_values_is_refused_and_changes_nothing() {
    let mut table = counted(3, 2, &Optimizer::Sgd);
    let before = table.clone();
    let error = RowError::LengthMismatch { rows: 2, width: 2, got: 3 };
    assert_eq!(table.apply(&Optimizer::Sgd, 0.1, 1.0, &[0, 1], &[1.0; 3]), Err(error.clone()));
    assert_eq!(table.write(&[0, 1], &[9.0; 3]), Err(error.clone()));
    assert_eq!(table, before);
    assert_eq!(table.read(&[0, 1], &mut [0.0; 3]), Err(error.clone()));
    assert_eq!(error.to_string(), "2 rows of 2 values came with 3 values");
}

#[test]
fn a_refused_push_leaves_the_sum_as_it_was() {
    let mut sum = RowSum::new(3, 1);
    sum.add(&[1], &[2.0]).unwrap();
    assert!(sum.add(&[1, 3], &[1.0; 2]).is_err());
    assert!(sum.add(&[1, 2], &[1.0; 3]).is_err());
    assert_eq!(sum.take(), (vec![1], vec![2.0]));
}

#[test]
fn a_taken_sum_starts_again_from_nothing() {
    let mut sum = RowSum::new(5, 2);
    sum.add(&[4, 1], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    sum.add(&[1, 2], &[0.5, 0.5, 7.0, 8.0]).unwrap();
    assert_eq!(sum.take(), (vec![1, 2, 4], vec![3.5, 4.5, 7.0, 8.0, 1.0, 2.0]));
    assert!(sum.is_empty());
    sum.add(&[1, 4], &[1.0; 4]).unwrap();
    assert_eq!(sum.take(), (vec![1, 4], vec![1.0; 4]));
    assert_eq!(sum.take(), (vec![], vec![]));
}

proptest! {
    #[test]
    fn a_sum_holds_every_row_once_in_order_with_all_its_gradients(
        pushes in proptest::collection::vec(
            proptest::collection::vec((0..20u32, -8..8i32), 0..30), 0..5),
    ) {
        let mut sum = RowSum::new(20, 2);
        let mut expected = std::collections::BTreeMap::new();
        for push in &pushes {
            let rows: Vec<_> = push.iter().map(|&(row, _)| row).collect();
            // Small integers, whose sums are exact in any order.
            let gradients: Vec<_> =
                push.iter().flat_map(|&(_, gradient)| [gradient as f32, 1.0]).collect();
            sum.add(&rows, &gradients).unwrap();
            for &(row, gradient) in push {
                let total = expected.entry(row).or_insert([0.0; 2]);
                *total = [total[0] + gradient as f32, total[1] + 1.0];
            }
        }
        let (rows, sums) = sum.take();
        prop_assert_eq!(rows, expected.keys().copied().collect::<Vec<_>>());
        prop_assert_eq!(sums, expected.into_values().flatten().collect::<Vec<_>>());
    }
}

#[test]
fn a_restored_table_goes_on_as_the_one_it_was_taken_from() {
    let optimizer = Optimizer::named("adam").unwrap();
    let mut table = RowTable::new(3, 2, &optimizer);
    table.apply(&optimizer, 0.1, 1.0, &[0, 2], &[1.0, -2.0, 3.0, 0.5]).unwrap();
    table.apply(&optimizer, 0.1, 1.0, &[2], &[1.0, 1.0]).unwrap();
    assert_eq!(table.steps(), [1, 0, 2]);

    let mut restored = RowTable::restore(table.width(), table.block().clone(), table.steps().to_vec());
    for table in [&mut table, &mut restored] {
        table.apply(&optimizer, 0.1, 1.0, &[0, 1, 2], &[0.5; 6]).unwrap();
    }
    assert_eq!(restored, table);
}
