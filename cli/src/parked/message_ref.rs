//! The name of a message in what we print.

use retryrmq::Record;

/// How a message is named in what we print: so that it can be copied.
pub(super) fn handle(place: usize, record: &Record) -> String {
    format!("#{place}={}", record.mark.get(..8).unwrap_or(&record.mark))
}
