//! Durations in text: `250ms`, `1s`, `5m`, `1h30m`. The same form in every language, flag and file.

use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// One millisecond, the unit of a message's time to live in RabbitMQ.
pub const MILLISECOND: Duration = Duration::from_millis(1);
/// One second.
pub const SECOND: Duration = Duration::from_secs(1);
/// One minute.
pub const MINUTE: Duration = Duration::from_secs(60);
/// One hour.
pub const HOUR: Duration = Duration::from_secs(3_600);
/// One day.
pub const DAY: Duration = Duration::from_secs(86_400);

/// The longest delay: 365 days. Every RabbitMQ version accepts it as `x-message-ttl`.
pub const MAX_DELAY: Duration = Duration::from_secs(365 * 86_400);

const UNITS: [(&str, Duration); 5] = [
    ("ms", MILLISECOND),
    ("s", SECOND),
    ("m", MINUTE),
    ("h", HOUR),
    ("d", DAY),
];

/// Parses a duration such as `250ms`, `1s`, `1.5s`, `5m`, `1h30m` or `2d`. The units are `ms`, `s`, `m`, `h` and `d`.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for an empty text, a missing or unknown unit, a negative number, or more than a thousand years.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let bad = |why: &str| {
        Error::new(
            ErrorKind::InvalidOption,
            format!(
                "cannot read the duration `{}`: {why}; write it like 250ms, 1s, 5m or 1h30m",
                cut(text)
            ),
        )
    };
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad("it is empty"));
    }
    if rest.starts_with('-') {
        return Err(bad("it is negative"));
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let value: f64 = number.parse().map_err(|_| bad("a number is missing"))?;
        let unit = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let (_, unit) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| {
                bad(&if unit.is_empty() {
                    "the unit is missing".to_owned()
                } else {
                    format!("`{}` is not a unit; use ms, s, m, h or d", cut(unit))
                })
            })?;
        let seconds = value * unit.as_secs_f64();
        if seconds > 3.2e10 {
            return Err(bad("it is longer than a thousand years"));
        }
        // Whole numbers and fractions are parsed as integers: 0.1 s as a binary fraction is not exactly 100 ms.
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let unit_ms = u64::try_from(unit.as_millis()).unwrap_or(u64::MAX);
        let whole = whole.parse().unwrap_or(0_u64).saturating_mul(unit_ms);
        let fraction: f64 = format!("0.{fraction}").parse().unwrap_or(0.0);
        let fraction = (fraction * unit.as_nanos() as f64).round() as u64;
        let part = Duration::from_millis(whole).saturating_add(Duration::from_nanos(fraction));
        total = total.saturating_add(part);
        rest = tail.trim_start();
    }
    Ok(total)
}

/// A duration in the form that [`parse_duration`] reads, with the largest unit that leaves no remainder.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let finer = duration.subsec_nanos() % 1_000_000;
    if finer > 0 {
        let finer = format!("{finer:06}");
        return format!("{ms}.{}ms", finer.trim_end_matches('0'));
    }
    for (name, unit) in UNITS.iter().rev() {
        let unit = unit.as_millis();
        if ms >= unit && ms.is_multiple_of(unit) {
            return format!("{}{name}", ms / unit);
        }
    }
    format!("{ms}ms")
}

/// User text for an error sentence, cut so that a huge text does not make a huge error.
pub(super) fn cut(text: &str) -> String {
    if text.chars().count() <= 80 {
        text.to_owned()
    } else {
        text.chars().take(80).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, ms) in [
            ("250ms", 250),
            ("1s", 1_000),
            ("1.5s", 1_500),
            ("0.1s", 100),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            (" 2d ", 172_800_000),
            ("1m 30s", 90_000),
        ] {
            assert_eq!(
                parse_duration(text).unwrap(),
                Duration::from_millis(ms),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_with_a_sentence() {
        for text in [
            "",
            "  ",
            "5",
            "s",
            "-1s",
            "1 fortnight",
            "1.2.3s",
            "1e9s",
            "99999999999d",
            "∞",
        ] {
            let error = parse_duration(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains("write it like"), "{error}");
        }
    }

    #[test]
    fn what_is_finer_than_a_millisecond_is_written_as_it_is_read() {
        for (text, ns, written) in [
            ("1.5ms", 1_500_000, "1.5ms"),
            ("0.001ms", 1_000, "0.001ms"),
            ("10.9065536s", 10_906_553_600, "10906.5536ms"),
            ("0.1s", 100_000_000, "100ms"),
            ("0ms", 0, "0ms"),
        ] {
            let read = parse_duration(text).unwrap();
            assert_eq!(read, Duration::from_nanos(ns), "{text}");
            assert_eq!(format_duration(read), written);
            assert_eq!(parse_duration(written).unwrap(), read);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ms in 0u64..10_000_000_000) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration);
        }

        #[test]
        fn never_panics(text in ".{0,40}") {
            let _ = parse_duration(&text);
        }
    }
}
