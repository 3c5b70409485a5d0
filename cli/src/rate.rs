//! Rates of messages, as people write them.

/// Reads `50/s`, `300/m` (or `300/min`) or `1000/h`, and a bare number a second: the messages a second, more than none.
pub(crate) fn per_second(text: &str) -> Option<f64> {
    let (count, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit.trim() {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        _ => return None,
    };
    let count: f64 = count.trim().parse().ok()?;
    (count.is_finite() && count > 0.0).then_some(count / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_per_second_minute_and_hour() {
        for (text, wanted) in [
            ("100/s", 100.0),
            (" 30 / m", 0.5),
            ("30/min", 0.5),
            ("1.8/h", 0.0005),
            ("7", 7.0),
        ] {
            assert!((per_second(text).unwrap() - wanted).abs() < 1e-9, "{text}");
        }
        for text in [
            "", "/s", "many/s", "-1/s", "0/s", "5/d", "inf/s", "nan", "5/s/s",
        ] {
            assert_eq!(per_second(text), None, "{text}");
        }
    }
}
