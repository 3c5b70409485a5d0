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
        entries(table)
            .map(|entry| Self {
                attempt: entry.attempt,
                at: entry.at,
                error: entry.error.to_owned(),
                host: entry.host.to_owned(),
                app_version: entry.app_version.to_owned(),
            })
            .collect()
    }
}

/// An entry as the headers have it, or as they will.
#[derive(Clone, Copy)]
pub(super) struct Written<'a> {
    pub(super) attempt: u32,
    pub(super) at: u64,
    pub(super) error: &'a str,
    pub(super) host: &'a str,
    pub(super) app_version: &'a str,
}

/// The entries that have the shape of one, oldest first.
fn entries(table: &FieldTable) -> impl DoubleEndedIterator<Item = Written<'_>> {
    let entries = match table.inner().get(headers::HISTORY) {
        Some(AMQPValue::FieldArray(entries)) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().filter_map(|entry| match entry {
        AMQPValue::FieldTable(entry) => Written::read(entry),
        _ => None,
    })
}

impl<'a> Written<'a> {
    fn read(entry: &'a FieldTable) -> Option<Self> {
        let text = |name| entry.inner().get(name).and_then(headers::as_text);
        Some(Self {
            attempt: headers::count(entry, "attempt").ok().flatten()?,
            at: headers::timestamp(entry, "at").ok().flatten()?,
            error: text("error").unwrap_or_default(),
            host: text("host").unwrap_or_default(),
            app_version: text("app-version").unwrap_or_default(),
        })
    }

    fn size(&self) -> usize {
        const FIXED: usize = 80;
        FIXED + self.error.len() + self.host.len() + self.app_version.len()
    }

    fn write(&self) -> AMQPValue {
        let mut table = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(text.into());
        table.insert(
            "attempt".into(),
            AMQPValue::LongLongInt(self.attempt.into()),
        );
        table.insert("at".into(), AMQPValue::Timestamp(self.at));
        table.insert("error".into(), text(self.error));
        table.insert("host".into(), text(self.host));
        table.insert("app-version".into(), text(self.app_version));
        AMQPValue::FieldTable(table)
    }
}

/// The history after one failure more: the newest entries that together take less than `budget` bytes, oldest first.
pub(super) fn written(
    before: Option<&FieldTable>,
    newest: Written<'_>,
    budget: usize,
) -> Option<AMQPValue> {
    let older = before.into_iter().flat_map(|table| entries(table).rev());
    let mut room = budget;
    let mut kept = Vec::new();
    for entry in std::iter::once(newest).chain(older).take(MOST) {
        if entry.size() > room {
            break;
        }
        room -= entry.size();
        kept.push(entry.write());
    }
    kept.reverse();
    (!kept.is_empty()).then(|| AMQPValue::FieldArray(FieldArray::from(kept)))
}
