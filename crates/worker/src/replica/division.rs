//! How samples are divided among the devices or workers that compute on them.

/// Divides samples into shares that differ by at most one, the larger ones first.
pub(super) fn evenly(samples: usize, shares: usize) -> Vec<usize> {
    in_proportion(samples, &vec![1.0; shares])
}

/// Divides samples in proportion to weights; each share has at least one if there are enough.
pub(super) fn in_proportion(samples: usize, weights: &[f64]) -> Vec<usize> {
    let mut rest = (samples, weights.iter().sum::<f64>());
    let mut shares = Vec::with_capacity(weights.len());
    for (index, weight) in weights.iter().enumerate() {
        let others = weights.len() - index - 1;
        let fair = if others == 0 { rest.0 } else { (rest.0 as f64 * weight / rest.1).ceil() as usize };
        let least = usize::from(rest.0 > others);
        let most = rest.0.saturating_sub(others).max(usize::from(rest.0 > 0));
        let share = fair.clamp(least, most);
        shares.push(share);
        rest = (rest.0 - share, rest.1 - weight);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_shares_differ_by_one_at_the_most() {
        assert_eq!(evenly(100, 2), [50, 50]);
        assert_eq!(evenly(10, 3), [4, 3, 3]);
        assert_eq!(evenly(50, 4), [13, 13, 12, 12]);
        assert_eq!(evenly(2, 3), [1, 1, 0]);
        assert_eq!(evenly(0, 2), [0, 0]);
        for (samples, shares) in (0..200).flat_map(|samples| (1..9).map(move |shares| (samples, shares))) {
            let mut rest = samples;
            for (index, share) in evenly(samples, shares).into_iter().enumerate() {
                assert_eq!(share, rest.div_ceil(shares - index), "{samples} in {shares}");
                rest -= share;
            }
        }
    }

    #[test]
    fn shares_are_in_proportion_and_nobody_has_none_while_there_are_enough() {
        assert_eq!(in_proportion(100, &[3.0, 1.0]), [75, 25]);
        assert_eq!(in_proportion(10, &[1000.0, 1.0, 1.0]), [8, 1, 1]);
        for samples in 0..40 {
            let shares = in_proportion(samples, &[0.1, 7.0, 2.5]);
            assert_eq!(shares.iter().sum::<usize>(), samples);
            assert!(samples < 3 || shares.iter().all(|share| *share > 0), "{shares:?}");
        }
    }
}
