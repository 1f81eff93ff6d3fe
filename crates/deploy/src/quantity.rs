//! Amounts of a resource, as Kubernetes writes them: `500m`, `2`, `1.5`, `4Gi`, `1e3`. They are kept as text, because
//! Kubernetes parses them; the value is computed only to refuse zero and to convert it for Slurm and Compose.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// An amount above zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    text: String,
    value: f64,
}

impl Quantity {
    /// The amount as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The amount in whole units, rounded up: CPUs for Slurm.
    pub(crate) fn rounded_up(&self) -> u64 {
        self.value.ceil() as u64
    }

    /// The amount in mebibytes, rounded up: memory for Slurm.
    pub(crate) fn mebibytes(&self) -> u64 {
        (self.value / f64::from(1 << 20)).ceil() as u64
    }

    /// The amount in units: CPUs for Compose.
    pub(crate) fn value(&self) -> f64 {
        self.value
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Quantity, Error> {
        let bad = |problem| Error::Quantity { text: text.to_owned(), problem };
        let end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let number: f64 = match number.strip_suffix('.').unwrap_or(number).parse() {
            Ok(number) if !number_is_bare_dot(text) => number,
            _ => return Err(bad("does not begin with a number")),
        };
        let factor = factor(suffix).ok_or_else(|| bad("unknown suffix"))?;
        let value = number * factor;
        if value <= 0.0 {
            return Err(bad("zero"));
        }
        if value > i64::MAX as f64 {
            return Err(bad("too large"));
        }
        if (value * 1000.0).fract().abs() > 1e-6 && factor <= 1.0 {
            return Err(bad("finer than a thousandth"));
        }
        Ok(Quantity { text: text.to_owned(), value })
    }
}

fn number_is_bare_dot(text: &str) -> bool {
    text.starts_with('.') && !text[1..].starts_with(|character: char| character.is_ascii_digit())
}

fn factor(suffix: &str) -> Option<f64> {
    let binary = |exponent: i32| Some(f64::from(2).powi(exponent * 10));
    let decimal = |exponent: i32| Some(f64::from(10).powi(exponent));
    match suffix {
        "" => Some(1.0),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            exponent.parse().ok().filter(|exponent| (-3..=18).contains(exponent)).and_then(decimal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_with_their_suffixes() {
        for (text, value) in [("2", 2.0), ("500m", 0.5), ("1.5", 1.5), ("1k", 1e3), ("4Gi", 4294967296.0), ("1e3", 1e3)]
        {
            assert_eq!(text.parse::<Quantity>().unwrap().value(), value, "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_with_the_reason() {
        for (text, problem) in [
            ("", "does not begin with a number"),
            ("Gi", "does not begin with a number"),
            (".", "does not begin with a number"),
            ("1.2.3", "does not begin with a number"),
            ("-1", "does not begin with a number"),
            ("4GB", "unknown suffix"),
            ("4gi", "unknown suffix"),
            ("0", "zero"),
            ("0Gi", "zero"),
            ("9999Ei", "too large"),
            ("0.0001", "finer than a thousandth"),
        ] {
            let error = text.parse::<Quantity>().unwrap_err();
            assert_eq!(error, Error::Quantity { text: text.to_owned(), problem });
        }
    }

    #[test]
    fn memory_is_rounded_up_to_mebibytes() {
        assert_eq!("1G".parse::<Quantity>().unwrap().mebibytes(), 954);
    }
}
