//! A time as people read it.

use std::time::Duration;

use jiff::Timestamp;
use retryrmq_operator::rough_duration::rough_duration;

/// A time, and how long ago or ahead it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RelativeTime {
    /// For machines and for the tooltip (RFC 3339, UTC).
    pub(super) iso: String,
    pub(super) text: String,
}

impl RelativeTime {
    pub(super) fn of(at: Timestamp, now: Timestamp) -> Self {
        let seconds = now.as_second() - at.as_second();
        let length = Duration::from_secs(seconds.unsigned_abs());
        let text = match seconds {
            0 => "now".to_owned(),
            1.. => format!("{} ago", rough_duration(length)),
            _ => format!("in {}", rough_duration(length)),
        };
        let iso = Timestamp::from_second(at.as_second()).unwrap_or(at);
        Self {
            iso: iso.to_string(),
            text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_near_or_far() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        for (seconds, text) in [
            (0, "now"),
            (-7, "7 s ago"),
            (-100, "2 min ago"),
            (-7_200, "2 h ago"),
            (-260_000, "3 days ago"),
            (60, "in 60 s"),
        ] {
            let at = Timestamp::from_second(1_800_000_000 + seconds).unwrap();
            assert_eq!(RelativeTime::of(at, now).text, text);
        }
    }
}
