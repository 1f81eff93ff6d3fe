//! Numbers formatted for people: grouped thousands, fitting units, and no more digits than matter.

/// A whole number with grouped thousands: `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate: from 100 on, a whole number with grouped thousands; below that, three digits.
pub fn rate(number: f64) -> String {
    match number {
        n if !n.is_finite() || n < 0.0 => "–".into(),
        n if n >= 99.5 => count(n.round() as u64),
        n if n >= 9.95 => format!("{n:.1}"),
        0.0 => "0".into(),
        n => format!("{n:.2}"),
    }
}

/// A loss or score: four significant digits, scientific notation if very small or large, and grouped thousands.
pub fn value(number: f64) -> String {
    if number.is_nan() {
        return "not a number".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "infinite".into() } else { "−infinite".into() };
    }
    let size = number.abs();
    let text = match size {
        _ if size == 0.0 => "0".into(),
        _ if !(1e-4..1e6).contains(&size) => format!("{number:.2e}"),
        _ if size >= 999.95 => format!("{}{}", if number < 0.0 { "-" } else { "" }, count(size.round() as u64)),
        _ => format!("{number:.*}", (3 - size.log10().floor() as i32).clamp(0, 6) as usize),
    };
    text.replace('-', "−")
}

/// A duration: `0.2 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub fn duration(secs: f64) -> String {
    if !secs.is_finite() || secs < 0.0 {
        return "–".into();
    }
    let whole = secs.round() as u64;
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {small_unit}"),
    };
    match whole {
        _ if secs < 9.95 => format!("{secs:.1} s"),
        0..60 => format!("{whole} s"),
        60..3600 => two(whole / 60, "min", whole % 60, "s"),
        3600..86400 => two(whole / 3600, "h", whole % 3600 / 60, "min"),
        _ => two(whole / 86400, "d", whole % 86400 / 3600, "h"),
    }
}

/// A duration for a prediction, rounded to a credible precision: `2 s`, `3 min`, `2 h 5 min`.
pub fn about(secs: f64) -> String {
    match secs {
        s if !s.is_finite() || s < 0.0 => "–".into(),
        s if s < 60.0 => format!("{:.0} s", s.max(1.0)),
        s if s < 3600.0 => format!("{:.0} min", s / 60.0),
        s => duration((s / 60.0).round() * 60.0),
    }
}

/// Bytes in decimal units: `512 B`, `318 kB`, `1.2 GB`.
pub fn bytes(number: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut size, mut unit) = (number as f64, 0);
    while size >= 999.5 && unit + 1 < units.len() {
        (size, unit) = (size / 1000.0, unit + 1);
    }
    if unit == 0 || size >= 9.95 { format!("{size:.0} {}", units[unit]) } else { format!("{size:.1} {}", units[unit]) }
}

/// Bytes per second.
pub fn byte_rate(number: f64) -> String {
    if number.is_finite() && number >= 0.0 { format!("{}/s", bytes(number.round() as u64)) } else { "–".into() }
}

/// A share from 0 to 1 as a whole percentage: `97%`.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0}%", share.clamp(0.0, 1.0) * 100.0) } else { "–".into() }
}

/// A score from 0 to 1 as a percentage with two decimals: `97.51%`.
pub fn fraction(share: f64) -> String {
    if share.is_finite() { format!("{:.2}%", share * 100.0).replace('-', "−") } else { value(share) }
}

/// Makes users' text safe to print on one line: replaces control characters, which could move a terminal's cursor.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn rates_have_three_digits() {
        assert_eq!([0.0, 0.123, 12.34, 99.96, 2049.4, f64::NAN].map(rate), ["0", "0.12", "12.3", "100", "2,049", "–"]);
    }

    #[test]
    fn values_have_four_digits_and_what_is_not_a_number_is_said_to_be_so() {
        assert_eq!([0.123456, 12.3456, -2.5, 1e-9].map(value), ["0.1235", "12.35", "−2.500", "1.00e−9"]);
        assert_eq!([999.4, 999.96, -204_922.4].map(value), ["999.4", "1,000", "−204,922"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(value), ["not a number", "infinite"]);
    }

    #[test]
    fn fractions_are_percentages_with_two_decimals() {
        assert_eq!([0.9751, 1.0, f64::NAN].map(fraction), ["97.51%", "100.00%", "not a number"]);
    }

    #[test]
    fn durations_have_at_most_two_units() {
        let shown = [0.24, 12.4, 200.0, 3600.0, 7500.0, 273_600.0, -1.0].map(duration);
        assert_eq!(shown, ["0.2 s", "12 s", "3 min 20 s", "1 h", "2 h 5 min", "3 d 4 h", "–"]);
    }

    #[test]
    fn bytes_are_shown_in_the_unit_that_fits() {
        assert_eq!(
            [0, 512, 318_040, 999_900, 1_240_000_000].map(bytes),
            ["0 B", "512 B", "318 kB", "1.0 MB", "1.2 GB"]
        );
        assert_eq!(bytes(u64::MAX), "18 EB");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
