//! e^x without branches or calls, so that loops over it become vector instructions.

/// Beyond these, e^x is no normal number of single precision.
const LOWEST: f32 = -87.3;
const HIGHEST: f32 = 88.3;
/// Adding it rounds to an integer, which is then in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts, so that subtracting multiples of it loses nothing.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^x to about one part in ten million, between e^-87.3 and e^88.3. Not a number stays so.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons written so that NaN passes through.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_exact_to_a_few_units_in_the_last_place(x in LOWEST..HIGHEST) {
            let expected = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) / expected - 1.0).abs() < 3e-7, "{} {expected}", exp(x));
        }
    }

    #[test]
    fn the_ends_are_finite_and_nan_stays() {
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::INFINITY).is_finite() && exp(f32::INFINITY) > 1e38);
        assert!(exp(f32::NEG_INFINITY) > 0.0 && exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }
}
