//! How long ago something was, as people read it: rounded, in one unit.

use std::time::Duration;

/// `12 s`, `5 min`, `3 h`, `9 days`. A unit ends where two digits no longer tell enough: at 100 s, 99 min and 36 h.
#[must_use]
pub fn rough_duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..100 => format!("{seconds} s"),
        seconds @ ..5_940 => format!("{} min", (seconds + 30) / 60),
        seconds @ ..129_600 => format!("{} h", (seconds + 1_800) / 3_600),
        seconds => format!("{} days", (seconds + 43_200) / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_to_one_unit() {
        for (seconds, text) in [
            (0, "0 s"),
            (99, "99 s"),
            (100, "2 min"),
            (5_939, "99 min"),
            (7_200, "2 h"),
            (129_599, "36 h"),
            (129_600, "2 days"),
            (864_000, "10 days"),
        ] {
            assert_eq!(rough_duration(Duration::from_secs(seconds)), text);
        }
    }
}
