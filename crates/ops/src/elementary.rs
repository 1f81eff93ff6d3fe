//! Elementary functions without branches or calls, so that loops over them become vector instructions.

/// Outside this range, e^x is not a normal single-precision number.
const LOWEST: f32 = -87.3;
const HIGHEST: f32 = 88.3;
/// Adding this rounds to an integer, which is then in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts, so that subtracting multiples of it loses nothing.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// 2^-80, about 8e-25: smaller magnitudes count as zero where they would only be multiplied further. This leaves room
/// for a few layers before products become denormal, below 2^-126; an Intel processor takes a hundred times as long for
/// each denormal number.
const TINY: f32 = f32::from_bits((127 - 80) << 23);
/// The logarithm of `TINY`.
const LN_TINY: f32 = -55.451_775;
/// From here on the hyperbolic tangent is 1 in single precision.
const FLAT: f32 = 9.0;

/// e^x to about one part in ten million, between e^-87.3 and e^88.3. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // These comparisons let NaN pass through.
    let x = if x < LOWEST { LOWEST } else { x };
    let x = if x > HIGHEST { HIGHEST } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let whole = shifted - ROUNDER;
    let rest = x - whole * LN2_HIGH - whole * LN2_LOW;
    let polynomial = 1.987_569_1e-4;
    let polynomial = polynomial * rest + 1.398_199_9e-3;
    let polynomial = polynomial * rest + 8.333_452e-3;
    let polynomial = polynomial * rest + 4.166_579_6e-2;
    let polynomial = polynomial * rest + 0.166_666_65;
    let polynomial = polynomial * rest + 0.5;
    let mantissa = polynomial * rest * rest + rest + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127) << 23;
    mantissa * f32::from_bits(exponent)
}

/// e^x for a softmax, where the largest x is 0. Returns zero for relatively tiny results.
#[inline(always)]
pub(crate) fn exp_or_zero(x: f32) -> f32 {
    if x < LN_TINY { 0.0 } else { exp(x) }
}

/// Returns a gradient of the backward pass, or zero if it is tiny. NaN stays NaN.
#[inline(always)]
pub(crate) fn flush(gradient: f32) -> f32 {
    if gradient.abs() < TINY { 0.0 } else { gradient }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent to within a few units in the last place, as a quotient of two polynomials.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let x = if x < -FLAT { -FLAT } else { x };
    let x = if x > FLAT { FLAT } else { x };
    let square = x * x;
    let above = -2.760_768_5e-16;
    let above = above * square + 2.000_188e-13;
    let above = above * square - 8.604_672e-11;
    let above = above * square + 5.122_297e-8;
    let above = above * square + 1.485_722_4e-5;
    let above = above * square + 6.372_619_3e-4;
    let above = above * square + 4.893_524_6e-3;
    let below = 1.198_258_4e-6;
    let below = below * square + 1.185_347_1e-4;
    let below = below * square + 2.268_434_6e-3;
    let below = below * square + 4.893_525e-3;
    x * above / below
}

/// ln(1 + e^x), exact at both ends.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let small = exp(-x.abs());
    // ln(1 + small) as a series in s = small / (2 + small), which is at most 1/3.
    let s = small / (2.0 + small);
    let square = s * s;
    let series = 1.0 / 15.0;
    let series = series * square + 1.0 / 13.0;
    let series = series * square + 1.0 / 11.0;
    let series = series * square + 1.0 / 9.0;
    let series = series * square + 1.0 / 7.0;
    let series = series * square + 1.0 / 5.0;
    let series = series * square + 1.0 / 3.0;
    let logarithm = 2.0 * s * (series * square + 1.0);
    // With this comparison, NaN comes from the logarithm.
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + logarithm
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn relative(got: f32, expected: f64) -> f64 {
        (f64::from(got) / expected - 1.0).abs()
    }

    proptest! {
        #[test]
        fn exp_is_exact_to_a_few_units_in_the_last_place(x in LOWEST..HIGHEST) {
            prop_assert!(relative(exp(x), f64::from(x).exp()) < 3e-7, "{}", exp(x));
        }

        #[test]
        fn tanh_is_exact_to_a_few_units_in_the_last_place(x in -12.0f32..12.0, exponent in 0i32..20) {
            for x in [x, x / 2f32.powi(exponent)] {
                prop_assert!(x == 0.0 || relative(tanh(x), f64::from(x).tanh()) < 6e-7, "{x} {}", tanh(x));
            }
        }

        #[test]
        fn sigmoid_and_softplus_are_exact_to_a_few_units_in_the_last_place(x in -80.0f32..80.0) {
            let exact = f64::from(x);
            prop_assert!(relative(sigmoid(x), 1.0 / (1.0 + (-exact).exp())) < 6e-7, "{}", sigmoid(x));
            prop_assert!(relative(softplus(x), exact.exp().ln_1p()) < 6e-7, "{}", softplus(x));
        }
    }

    #[test]
    fn what_is_tiny_is_zero_and_all_else_keeps_its_bits() {
        assert!((f64::from(LN_TINY) - f64::from(TINY).ln()).abs() < 1e-5);
        for x in [0.0, -1.0, -55.4] {
            assert_eq!(exp_or_zero(x).to_bits(), exp(x).to_bits());
        }
        assert_eq!([-55.5, -1e30, f32::NEG_INFINITY].map(exp_or_zero), [0.0; 3]);
        assert_eq!([TINY, -TINY, 3.0, f32::INFINITY].map(flush), [TINY, -TINY, 3.0, f32::INFINITY]);
        assert_eq!([0.99 * TINY, -1e-40].map(|value| flush(value).to_bits()), [0; 2]);
        assert!(exp_or_zero(f32::NAN).is_nan() && flush(f32::NAN).is_nan());
    }

    #[test]
    fn the_ends_are_finite_and_nan_stays() {
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::INFINITY).is_finite() && exp(f32::INFINITY) > 1e38);
        assert!(exp(f32::NEG_INFINITY) > 0.0 && exp(f32::NEG_INFINITY) < 1e-37);
        assert!((tanh(f32::INFINITY) - 1.0).abs() < 3e-7 && (tanh(f32::NEG_INFINITY) + 1.0).abs() < 3e-7);
        assert_eq!([softplus(1e30), softplus(f32::INFINITY)], [1e30, f32::INFINITY]);
        assert!([exp(f32::NAN), sigmoid(f32::NAN), tanh(f32::NAN), softplus(f32::NAN)].iter().all(|x| x.is_nan()));
    }
}
