//! Points in time, for people and for programs.

use std::time::{Duration, SystemTime};

use jiff::{Timestamp, tz::TimeZone};
use retryrmq_operator::rough_duration::rough_duration;

/// RFC 3339 in UTC, for JSON; `None` outside the years it can write.
pub(crate) fn rfc3339(time: SystemTime) -> Option<String> {
    Timestamp::try_from(time).ok().map(|time| time.to_string())
}

/// RFC 3339 of seconds since 1970.
pub(crate) fn rfc3339_of_seconds(seconds: u64) -> Option<String> {
    let time = Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
    Some(time.to_string())
}

/// `2026-11-21 03:04:05 +01:00`, in the machine's time zone.
pub(crate) fn absolute(time: SystemTime) -> String {
    match Timestamp::try_from(time) {
        Ok(time) => time
            .to_zoned(TimeZone::system())
            .strftime("%F %T %:z")
            .to_string(),
        Err(_) => "beyond the calendar".to_owned(),
    }
}

/// `11-21 03:04`, in the machine's time zone: where there is little room.
pub(crate) fn short(time: SystemTime) -> String {
    match Timestamp::try_from(time) {
        Ok(time) => time
            .to_zoned(TimeZone::system())
            .strftime("%m-%d %H:%M")
            .to_string(),
        Err(_) => "-".to_owned(),
    }
}

/// `03:04:05`, now, in the machine's time zone.
pub(crate) fn clock() -> String {
    Timestamp::now()
        .to_zoned(TimeZone::system())
        .strftime("%T")
        .to_string()
}

/// `12 s ago`, `5 min ago`, `3 h ago`, `9 days ago`.
pub(crate) fn ago(time: SystemTime) -> String {
    match SystemTime::now().duration_since(time) {
        Ok(age) => format!("{} ago", rough_duration(age)),
        Err(ahead) if ahead.duration() < Duration::from_secs(5) => "now".to_owned(),
        Err(ahead) => format!("in {}", rough_duration(ahead.duration())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_beyond_the_calendar_have_no_text() {
        assert_eq!(rfc3339_of_seconds(0).unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339_of_seconds(u64::MAX), None);
    }
}
