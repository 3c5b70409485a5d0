//! Log lines of the core, for JavaScript.

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use napi_derive::napi;
use retryrmq::log_buffer::{self, Level};

use crate::notifier::Notifier;

/// A line for the log.
#[napi(object, object_from_js = false)]
pub struct Line {
    /// `error`, `warn`, `info` or `debug`.
    pub level: &'static str,
    /// The line, with its fields at the end.
    pub text: String,
    /// What happened, without the fields. Left out with them: most lines have none.
    pub message: Option<String>,
    /// The names and values that belong to it.
    pub fields: Option<Vec<(String, String)>>,
}

impl From<log_buffer::LogLine> for Line {
    fn from(line: log_buffer::LogLine) -> Self {
        let level = match line.level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            _ => "debug",
        };
        let text = line.to_string();
        let fields = line.fields.into_iter();
        let fields: Vec<_> = fields
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let has_fields = !fields.is_empty();
        Self {
            level,
            text,
            message: has_fields.then_some(line.message),
            fields: has_fields.then_some(fields),
        }
    }
}

/// The reader of the lines is the oldest environment that still exists, mostly the main thread.
static READERS: Mutex<Vec<Weak<Notifier>>> = Mutex::new(Vec::new());

/// The console gets warnings and errors. Lines that it would drop are not even made: a storm of failures has one for each.
static WANTED_AT_FIRST: Once = Once::new();

fn readers() -> MutexGuard<'static, Vec<Weak<Notifier>>> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reader() -> Option<Arc<Notifier>> {
    let mut readers = readers();
    readers.retain(|reader| reader.upgrade().is_some_and(|reader| !reader.has_ended()));
    readers.first().and_then(Weak::upgrade)
}

/// Adds the environment behind this notifier as a reader, after those before it.
pub(crate) fn send_log_lines_to(notifier: &Arc<Notifier>) {
    WANTED_AT_FIRST.call_once(|| log_buffer::set_level(Level::WARN));
    readers().push(Arc::downgrade(notifier));
    log_buffer::capture(|| {
        if let Some(reader) = reader() {
            reader.log_lines_arrived();
        }
    });
}

/// The lines since the last call, if they are for this environment.
pub(crate) fn take(notifier: &Arc<Notifier>) -> Vec<Line> {
    if !reader().is_some_and(|reader| Arc::ptr_eq(&reader, notifier)) {
        return Vec::new();
    }
    log_buffer::take().into_iter().map(Line::from).collect()
}

/// Keeps the lines of all levels from now on, for a logger of the application.
#[napi(catch_unwind)]
pub fn want_all_lines() {
    WANTED_AT_FIRST.call_once(|| {});
    log_buffer::set_level(Level::DEBUG);
}
