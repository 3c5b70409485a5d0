//! The header `Retry-After` (RFC 9110, 10.2.3): seconds, or the time when it is over.

use std::time::{Duration, SystemTime};

/// How long to wait from `now` on; more than any policy allows when the number is larger than what we can count.
///
/// # Errors
/// When it is neither.
pub(super) fn read(value: &[u8], now: SystemTime) -> Result<Duration, String> {
    let text = std::str::from_utf8(value).unwrap_or_default().trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(text.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    match httpdate::parse_http_date(text) {
        // One that has passed: at once.
        Ok(then) => Ok(then.duration_since(now).unwrap_or_default()),
        Err(_) => {
            let start: String = String::from_utf8_lossy(value).chars().take(80).collect();
            Err(format!(
                "`Retry-After: {start}` is neither seconds nor an HTTP date; the policy decides"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read_and_nothing_else() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, seconds) in [
            ("30", 30),
            (" 0 ", 0),
            ("99999999999999", 99_999_999_999_999),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
            ("Sun, 06 Nov 1994 08:50:07 GMT", 30),
            ("Sunday, 06-Nov-94 08:50:07 GMT", 30),
            ("Sun Nov  6 08:50:07 1994", 30),
            ("Sat, 06 Nov 1993 08:49:37 GMT", 0),
        ] {
            assert_eq!(
                read(text.as_bytes(), now),
                Ok(Duration::from_secs(seconds)),
                "{text}"
            );
        }
        assert_eq!(read("9".repeat(400).as_bytes(), now), Ok(Duration::MAX));
        for text in [
            &b""[..],
            b"-1",
            b"1.5",
            b"soon",
            b"1e9",
            b"\xff\xfe",
            b"+5",
            b"30s",
        ] {
            assert!(read(text, now).unwrap_err().contains("Retry-After"));
        }
    }
}
