use super::*;

const CHANCE: f64 = std::f64::consts::LN_10;

/// Uniform noise between -1 and 1 (splitmix64).
fn noise(step: u64) -> f64 {
    let mut mixed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Feeds these losses to a run that starts after global step `from`. Returns the findings and the finding that remains.
fn judge(
    chance: Option<f64>,
    from: u64,
    steps: u64,
    loss: impl Fn(u64) -> f64,
) -> (Vec<(u64, Trouble)>, Option<Finding>) {
    judge_stale(0, chance, from, steps, loss)
}

/// Like [`judge`], with gradients that are this many updates old.
fn judge_stale(
    staleness: u64,
    chance: Option<f64>,
    from: u64,
    steps: u64,
    loss: impl Fn(u64) -> f64,
) -> (Vec<(u64, Trouble)>, Option<Finding>) {
    let mut learning = Learning::new(chance, from);
    let told = (from + 1..=from + steps).filter_map(|step| learning.observe(step, loss(step), staleness));
    let told: Vec<_> = told.map(|finding| (finding.step, finding.trouble)).collect();
    (told, learning.finding())
}

fn assert_fine(chance: Option<f64>, from: u64, steps: u64, loss: impl Fn(u64) -> f64) {
    let (told, last) = judge(chance, from, steps, loss);
    assert!(told.is_empty() && last.is_none(), "{told:?}, {last:?}");
}

/// A healthy curve: falls to a fifth within a few hundred steps.
fn falling(step: u64) -> f64 {
    CHANCE * (0.2 + 0.8 * (-(step as f64) / 200.0).exp())
}

#[test]
fn noisy_losses_that_fall_are_fine() {
    for chance in [None, Some(CHANCE)] {
        assert_fine(chance, 0, 5000, |step| falling(step) * (1.0 + 0.7 * noise(step)));
    }
}

#[test]
fn a_leap_of_a_few_batches_is_fine() {
    let leaps = |step: u64| if step % 50 < 2 { 40.0 } else { falling(step) };
    assert_fine(Some(CHANCE), 0, 5000, leaps);
    assert_fine(None, 0, 5000, |step| if step < 10 { CHANCE } else { leaps(step) });
}

#[test]
fn a_loss_that_begins_far_above_chance_and_falls_slowly_is_fine() {
    assert_fine(Some(CHANCE), 0, 3000, |step| 12.0 * (1.0 - step as f64 / 4000.0) + 0.3 * noise(step));
}

#[test]
fn a_loss_that_has_converged_is_fine_however_long_it_stays_there() {
    assert_fine(Some(CHANCE), 0, 20_000, |step| falling(step) + 0.1 * noise(step));
    assert_fine(None, 0, 20_000, |step| falling(step) + 0.1 * noise(step));
}

#[test]
fn a_loss_below_zero_that_falls_is_fine() {
    assert_fine(None, 0, 5000, |step| -(step as f64) / 100.0 + noise(step));
}

#[test]
fn a_loss_that_stays_at_chance_is_found_once() {
    let (told, last) = judge(Some(CHANCE), 0, 5000, |step| CHANCE + 0.05 * noise(step));
    assert_eq!(told, [(FIRST_LOOK, Trouble::NotLearning)]);
    let last = last.unwrap();
    assert_eq!((last.trouble, last.step), (Trouble::NotLearning, 5000));
    assert!((last.loss - CHANCE).abs() < 0.05, "{last:?}");
}

#[test]
fn without_chance_a_loss_that_stays_where_it_began_is_found() {
    let (told, _) = judge(None, 0, 1000, |step| 7.0 + noise(step));
    assert_eq!(told, [(FIRST_LOOK, Trouble::NotLearning)]);
}

#[test]
fn a_loss_that_begins_to_fall_after_all_is_fine_at_the_end() {
    let late = |step: u64| if step < 600 { CHANCE } else { falling(step - 600) };
    let (told, last) = judge(Some(CHANCE), 0, 3000, late);
    assert_eq!(told, [(FIRST_LOOK, Trouble::NotLearning)]);
    assert_eq!(last, None);
}

#[test]
fn a_loss_that_blows_up_is_found_while_it_does() {
    for chance in [None, Some(CHANCE)] {
        let blows_up = |step: u64| if step < 1001 { falling(step) } else { 20.0 * (1.0 + 0.5 * noise(step)) };
        let (told, last) = judge(chance, 0, 2000, blows_up);
        assert_eq!(told, [(1020, Trouble::Diverging)]);
        let last = last.unwrap();
        assert!(last.best < 0.5 && last.best_step <= 1000 && (last.loss - 20.0).abs() < 5.0, "{last:?}");
    }
}

#[test]
fn what_was_learned_and_is_lost_again_is_found() {
    for chance in [None, Some(CHANCE)] {
        let (told, last) = judge(chance, 0, 4000, |step| if step < 2001 { falling(step) } else { CHANCE });
        assert_eq!(told[0], (2060, Trouble::Diverging));
        assert!(last.is_some());
    }
}

#[test]
fn a_run_that_blew_up_at_first_and_learns_then_is_told_of_but_fine_at_the_end() {
    let (told, last) = judge(Some(CHANCE), 0, 3000, |step| if (5..60).contains(&step) { 9.0 } else { falling(step) });
    assert_eq!(told, [(20, Trouble::Diverging)]);
    assert_eq!(last, None);
}

#[test]
fn a_run_that_blew_up_and_then_stays_far_from_well_is_not_fine_at_the_end() {
    let (told, last) = judge(Some(CHANCE), 0, 3000, |step| if (5..60).contains(&step) { 9.0 } else { 1.0 });
    assert_eq!(told, [(20, Trouble::Diverging)]);
    assert_eq!(last.map(|finding| finding.trouble), Some(Trouble::Diverging));
}

#[test]
fn a_resumed_run_that_is_where_it_was_is_fine() {
    for chance in [None, Some(CHANCE)] {
        assert_fine(chance, 8000, 5000, |step| 0.3 * (1.0 + 0.9 * noise(step)));
    }
}

#[test]
fn a_resumed_run_that_stays_at_chance_or_blows_up_is_found() {
    let (told, _) = judge(Some(CHANCE), 8000, 1000, |_| CHANCE);
    assert_eq!(told, [(8000 + FIRST_LOOK, Trouble::NotLearning)]);
    let (told, _) = judge(None, 8000, 1000, |step| if step < 8301 { 0.3 } else { 3.0 });
    assert_eq!(told, [(8320, Trouble::Diverging)]);
}

#[test]
fn stale_gradients_that_teach_little_are_found() {
    let slowly = |step: u64| CHANCE * (0.8 - step as f64 / 20_000.0);
    let (told, last) = judge_stale(7, Some(CHANCE), 0, 2000, slowly);
    assert_eq!(told, [(FIRST_LOOK, Trouble::LearningSlowly)]);
    assert_eq!(last.map(|finding| finding.trouble), Some(Trouble::LearningSlowly));
    // Fresh gradients and a hard task look the same.
    assert_fine(Some(CHANCE), 0, 2000, slowly);
    assert!(judge_stale(1, Some(CHANCE), 0, 2000, slowly).0.is_empty());
}

#[test]
fn stale_gradients_that_teach_well_after_all_are_fine_at_the_end() {
    let late = |step: u64| if step < 500 { 0.7 * CHANCE } else { 0.2 * CHANCE };
    let (told, last) = judge_stale(7, Some(CHANCE), 0, 2000, late);
    assert_eq!(told, [(FIRST_LOOK, Trouble::LearningSlowly)]);
    assert_eq!(last, None);
}

#[test]
fn stale_gradients_that_teach_as_fresh_ones_would_are_fine() {
    assert!(judge_stale(15, Some(CHANCE), 0, 5000, falling).0.is_empty());
    let from_above = |step: u64| 10.0 * (-(step as f64) / 3000.0).exp();
    assert!(judge_stale(15, Some(CHANCE), 0, 5000, from_above).0.is_empty());
}

#[test]
fn what_is_no_number_is_left_to_others() {
    assert_fine(None, 0, 100, |_| f64::NAN);
}
