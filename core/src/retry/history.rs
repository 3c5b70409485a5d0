//! The last failures of a message, newest last (`x-retry-history`).

use lapin::types::{AMQPValue, FieldArray, FieldTable};

use super::headers;

/// One failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The number of the attempt that failed; 1 is the first delivery.
    pub attempt: u32,
    /// When it failed, in seconds since 1970.
    pub at: u64,
    /// The error, one line.
    pub error: String,
    /// The host name of the consumer.
    pub host: String,
    /// The version of the consuming application, [as the client was told](crate::ClientOptions::app_version); empty if it was not.
    pub app_version: String,
}

/// How many failures are kept.
pub(super) const MOST: usize = 10;

impl HistoryEntry {
    /// Reads the history from a message's headers. Entries of another shape are skipped.
    #[must_use]
    pub fn read(table: &FieldTable) -> Vec<Self> {
        let Some(AMQPValue::FieldArray(entries)) = table.inner().get(headers::HISTORY) else {
            return Vec::new();
        };
        entries
            .as_slice()
            .iter()
            .filter_map(|entry| match entry {
                AMQPValue::FieldTable(entry) => Some(Self {
                    attempt: headers::count(entry, "attempt").ok().flatten()?,
                    at: headers::timestamp(entry, "at").ok().flatten()?,
                    error: headers::string(entry, "error").unwrap_or_default(),
                    host: headers::string(entry, "host").unwrap_or_default(),
                    app_version: headers::string(entry, "app-version").unwrap_or_default(),
                }),
                _ => None,
            })
            .collect()
    }

    fn write(&self) -> AMQPValue {
        let mut table = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(text.into());
        table.insert(
            "attempt".into(),
            AMQPValue::LongLongInt(self.attempt.into()),
        );
        table.insert("at".into(), AMQPValue::Timestamp(self.at));
        table.insert("error".into(), text(&self.error));
        table.insert("host".into(), text(&self.host));
        table.insert("app-version".into(), text(&self.app_version));
        AMQPValue::FieldTable(table)
    }

    /// The newest entries that together take less than `budget` bytes, oldest first.
    pub(super) fn write_all(entries: &[Self], budget: usize) -> Option<AMQPValue> {
        const FIXED: usize = 80;
        let mut room = budget;
        let mut kept = Vec::new();
        for entry in entries.iter().rev().take(MOST) {
            let size = FIXED + entry.error.len() + entry.host.len() + entry.app_version.len();
            if size > room {
                break;
            }
            room -= size;
            kept.push(entry.write());
        }
        kept.reverse();
        (!kept.is_empty()).then(|| AMQPValue::FieldArray(FieldArray::from(kept)))
    }
}
