//! Numbers as people read them.

use std::time::Duration;

/// A count in groups of three digits.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + 4);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A count in five columns: `950`, `1.2k`, `30k`, `4.5M`.
pub(super) fn short(number: f64) -> String {
    let (number, unit) = match number {
        large if large >= 999_500.0 => (large / 1e6, "M"),
        large if large >= 9_999.5 => (large / 1e3, "k"),
        small => (small, ""),
    };
    if number >= 99.5 || number.fract().abs() < 0.05 {
        format!("{number:.0}{unit}")
    } else {
        format!("{number:.1}{unit}")
    }
}

/// A time as a clock is read: `850ms`, `5.05s`, `1m13.5s`, `1h2m3s`, `2d4h`. Nobody reads milliseconds after an hour.
pub(super) fn time(time: Duration) -> String {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let rounded = |to: u64| ms.saturating_add(to / 2) / to * to;
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..10_000 => format!("{}s", plain(rounded(10), 1_000)),
        10_000..59_950 => format!("{}s", plain(rounded(100), 1_000)),
        59_950..599_950 => parts(rounded(100), [(60_000, "m"), (1_000, "s")]),
        599_950..3_599_500 => parts(rounded(1_000), [(60_000, "m"), (1_000, "s")]),
        3_599_500..86_370_000 => parts(rounded(60_000), [(3_600_000, "h"), (60_000, "m")]),
        _ => parts(rounded(3_600_000), [(86_400_000, "d"), (3_600_000, "h")]),
    }
}

fn parts(ms: u64, [large, small]: [(u64, &str); 2]) -> String {
    let (whole, rest) = (ms / large.0, ms % large.0);
    match rest {
        0 => format!("{whole}{}", large.1),
        _ => format!("{whole}{}{}{}", large.1, plain(rest, small.0), small.1),
    }
}

/// So many of a unit, with the digits behind the point that it needs.
fn plain(ms: u64, unit: u64) -> String {
    (ms as f64 / unit as f64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!(
            [count(7), count(1_234), count(1_234_567)],
            ["7", "1 234", "1 234 567"]
        );
        for (number, shown) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (7.0, "7"),
            (99.4, "99.4"),
            (950.0, "950"),
            (9_999.0, "9999"),
            (10_000.0, "10k"),
            (12_345.0, "12.3k"),
            (999_400.0, "999k"),
            (4_500_000.0, "4.5M"),
        ] {
            assert_eq!(short(number), shown);
        }
    }

    #[test]
    fn times_are_rounded_as_they_grow() {
        for (ms, shown) in [
            (0, "0ms"),
            (850, "850ms"),
            (1_234, "1.23s"),
            (9_999, "10s"),
            (59_949, "59.9s"),
            (59_950, "1m"),
            (73_500, "1m13.5s"),
            (1_809_400, "30m9s"),
            (3_599_600, "1h"),
            (5_430_000, "1h31m"),
            (86_370_000, "1d"),
            (190_000_000, "2d5h"),
        ] {
            assert_eq!(time(Duration::from_millis(ms)), shown, "{ms}");
        }
    }
}
