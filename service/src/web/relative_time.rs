//! A time as people read it.

use jiff::Timestamp;

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
        let text = match seconds {
            0 => "now".to_owned(),
            1.. => format!("{} ago", length(seconds)),
            _ => format!("in {}", length(-seconds)),
        };
        let iso = Timestamp::from_second(at.as_second()).unwrap_or(at);
        Self {
            iso: iso.to_string(),
            text,
        }
    }
}

fn length(seconds: i64) -> String {
    match seconds {
        ..90 => format!("{seconds} s"),
        90..5_400 => format!("{} min", (seconds + 30) / 60),
        5_400..172_800 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
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
