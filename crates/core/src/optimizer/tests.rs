//! Tests that hold for every optimizer, and the helper that tests each file's formula.

use proptest::prelude::*;

use super::*;
use crate::block::Block;

/// Applies the gradients one after another to the value 1, and compares the value after each.
pub(super) fn assert_trajectory(optimizer: Optimizer, learning_rate: f32, gradients: &[f64], expected: &[f64]) {
    let mut block = Block::new(1, &optimizer);
    block.values[0] = 1.0;
    assert_eq!(gradients.len(), expected.len());
    for (step, (&gradient, &expected)) in (1..).zip(gradients.iter().zip(expected)) {
        let update = Update { learning_rate, step, scale: 1.0 };
        block.apply(&optimizer, &update, &[gradient as f32]);
        let got = f64::from(block.values[0]);
        assert!((got - expected).abs() < 2e-7, "step {step}: expected {expected}, got {got}");
    }
}

/// Every optimizer, and those variants that take a different code path.
pub(super) fn variants() -> Vec<Optimizer> {
    let mut variants = Optimizer::all().to_vec();
    variants.push(Optimizer::Momentum(Momentum { nesterov: true, ..Momentum::default() }));
    variants.push(Optimizer::RmsProp(RmsProp { momentum: 0.9, ..RmsProp::default() }));
    variants
}

/// Makes three steps over a block that starts from these values.
fn train(optimizer: &Optimizer, values: &[f32], gradient: &[f32], scale: f32) -> Block {
    let mut block = Block::new(values.len(), optimizer);
    block.values.copy_from_slice(values);
    for step in 1..=3 {
        let update = Update { learning_rate: 0.1, step, scale };
        block.apply(optimizer, &update, gradient);
    }
    block
}

#[test]
fn every_name_finds_its_optimizer() {
    for optimizer in Optimizer::all() {
        assert_eq!(Optimizer::named(optimizer.name()), Ok(optimizer));
    }
}

#[test]
fn the_slots_of_an_optimizer_have_names_of_their_own() {
    for optimizer in variants() {
        let names: std::collections::BTreeSet<_> =
            (0..optimizer.slots()).map(|slot| optimizer.slot_name(slot)).collect();
        assert_eq!(names.len(), optimizer.slots(), "{optimizer:?}");
        assert!(names.len() <= MAX_SLOTS, "{optimizer:?}");
    }
}

#[test]
fn an_unknown_name_is_told_the_choices() {
    assert_eq!(
        Optimizer::named("Adam").unwrap_err().to_string(),
        "unknown optimizer `Adam`: expected one of sgd, momentum, adagrad, adam, adamw, rmsprop"
    );
}

#[test]
fn an_optimizer_is_serialised_under_its_name() {
    for optimizer in Optimizer::all() {
        let text = serde_json::to_string(&optimizer).unwrap();
        assert!(text.starts_with(&format!(r#"{{"name":"{optimizer}""#)), "{text}");
        assert_eq!(serde_json::from_str::<Optimizer>(&text).unwrap(), optimizer);
    }
}

#[test]
fn constants_left_out_take_their_defaults() {
    assert_eq!(
        serde_json::from_str::<Optimizer>(r#"{"name": "adam", "beta2": 0.98}"#).unwrap(),
        Optimizer::Adam(Adam { beta2: 0.98, ..Adam::default() })
    );
}

#[test]
fn a_misspelt_constant_is_refused() {
    let text = r#"{"name": "adam", "beta_2": 0.98}"#;
    let error = serde_json::from_str::<Optimizer>(text).unwrap_err();
    assert!(error.to_string().contains("unknown field `beta_2`"), "{error}");
}

#[test]
fn the_gradient_is_multiplied_by_the_scale() {
    let (sum, mean) = ([3.0, -6.0, 0.75], [0.75, -1.5, 0.1875]);
    for optimizer in variants() {
        let values = [1.0, -2.0, 3.0];
        assert_eq!(train(&optimizer, &values, &sum, 0.25), train(&optimizer, &values, &mean, 1.0), "{optimizer:?}");
    }
}

#[test]
fn every_element_has_its_own_state() {
    let (values, gradient) = ([1.0, -2.0, 3.0], [0.5, -4.0, 0.0]);
    for optimizer in variants() {
        let together = train(&optimizer, &values, &gradient, 1.0);
        for index in 0..3 {
            let alone = train(&optimizer, &values[index..=index], &gradient[index..=index], 1.0);
            assert_eq!(alone.values[0], together.values[index], "{optimizer:?}");
            for (alone, together) in alone.slots.iter().zip(&together.slots) {
                assert_eq!(alone[0], together[index], "{optimizer:?}");
            }
        }
    }
}

#[test]
fn without_a_gradient_only_weight_decay_moves_a_value() {
    for optimizer in variants() {
        // Three steps of 1 - 0.1·0.01.
        let expected = if let Optimizer::AdamW(_) = optimizer { 0.997_003 } else { 1.0 };
        let got = train(&optimizer, &[1.0], &[0.0], 1.0).values[0];
        assert!((got - expected).abs() < 1e-6, "{optimizer:?}: {got}");
    }
}

proptest! {
    #[test]
    fn a_slice_is_moved_like_its_two_halves(
        elements in proptest::collection::vec((-10.0..10.0f32, -10.0..10.0f32), 1..100),
        cut in 0..100usize,
        scale in 0.01..1.0f32,
    ) {
        let (values, gradient): (Vec<_>, Vec<_>) = elements.into_iter().unzip();
        let cut = cut.min(values.len());
        for optimizer in variants() {
            let whole = train(&optimizer, &values, &gradient, scale);
            let left = train(&optimizer, &values[..cut], &gradient[..cut], scale);
            let right = train(&optimizer, &values[cut..], &gradient[cut..], scale);
            prop_assert_eq!(&whole.values, &[left.values, right.values].concat());
            for (slot, state) in whole.slots.iter().enumerate() {
                let halves = [&left.slots[slot][..], &right.slots[slot][..]].concat();
                prop_assert_eq!(state, &halves);
            }
        }
    }
}
