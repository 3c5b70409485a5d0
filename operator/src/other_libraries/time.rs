//! Times as other libraries write them.

use std::time::{Duration, SystemTime};

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// Year 9999: beyond it neither people nor libraries can print it.
const LAST: u64 = 253_402_300_799;

/// Seconds since 1970.
pub(crate) fn of_seconds(seconds: u64) -> Option<SystemTime> {
    (seconds <= LAST).then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// ISO 8601, as `2026-07-01T10:00:00.1234567Z`; UTC where it names no offset.
pub(crate) fn iso(text: &str) -> Option<SystemTime> {
    let zoned = text.parse::<Timestamp>().ok();
    let time = zoned.or_else(|| {
        let local: DateTime = text.parse().ok()?;
        TimeZone::UTC.to_timestamp(local).ok()
    });
    later_than_1970(time?)
}

/// As NServiceBus writes it: `2026-07-01 10:00:00:123456 Z`.
pub(crate) fn nservicebus(text: &str) -> Option<SystemTime> {
    let (seconds, fraction) = text.trim().strip_suffix('Z')?.trim_end().rsplit_once(':')?;
    iso(&format!("{}.{fraction}Z", seconds.replacen(' ', "T", 1)))
}

fn later_than_1970(time: Timestamp) -> Option<SystemTime> {
    let seconds = u64::try_from(time.as_second()).ok()?;
    let nanos = u32::try_from(time.subsec_nanosecond()).ok()?;
    Some(of_seconds(seconds)? + Duration::from_nanos(nanos.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_has_its_own_way_to_write_it() {
        let at = |millis| Some(SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
        assert_eq!(iso("2026-07-01T10:00:00.1230000Z"), at(1_782_900_000_123));
        assert_eq!(iso("2026-07-01T12:00:00+02:00"), at(1_782_900_000_000));
        assert_eq!(iso("2026-07-01T10:00:00"), at(1_782_900_000_000));
        assert_eq!(
            nservicebus("2026-07-01 10:00:00:123000 Z"),
            at(1_782_900_000_123)
        );
        for none in [
            "",
            "yesterday",
            "1969-12-31T23:59:59Z",
            "2026-13-01T00:00:00Z",
            ": Z",
        ] {
            assert_eq!((iso(none), nservicebus(none)), (None, None), "{none}");
        }
    }
}
