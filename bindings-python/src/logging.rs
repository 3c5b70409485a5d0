//! Log lines of the core on their way to Python's `logging`.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, Once, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use pyo3::pyfunction;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::Registry,
};

use crate::pump::Shared;

/// As many lines wait at most; the oldest go first.
const LINES: usize = 1_000;

pub(crate) struct Line {
    pub(crate) logger: &'static str,
    /// As in Python's `logging`: 10 is DEBUG, 40 is ERROR.
    pub(crate) level: u8,
    pub(crate) text: String,
}

// Only ever tried, never waited for: a fork may have copied them locked, and a line less is better than a child that hangs.
static WAITING: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());
static READER: Mutex<Weak<Shared>> = Mutex::new(Weak::new());
static DEBUG: AtomicBool = AtomicBool::new(false);
static INSTALLED: Once = Once::new();

/// Sends log lines to the reader of this pump.
pub(crate) fn told_to(pump: &Arc<Shared>) {
    if let Ok(mut reader) = READER.try_lock() {
        *reader = Arc::downgrade(pump);
    }
    INSTALLED.call_once(|| {
        // Fails only when something else in this process is told of everything already.
        let _ = tracing::subscriber::set_global_default(Registry::default().with(ToPython));
    });
}

/// The lines since the last call.
pub(crate) fn take() -> VecDeque<Line> {
    WAITING
        .try_lock()
        .map(|mut lines| std::mem::take(&mut *lines))
        .unwrap_or_default()
}

/// Whether lines below INFO are wanted.
#[pyfunction]
pub(crate) fn set_debug(wanted: bool) {
    DEBUG.store(wanted, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

struct ToPython;

impl<S: Subscriber> Layer<S> for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target().starts_with("retryrmq")
            && (*metadata.level() <= Level::INFO || DEBUG.load(Ordering::Relaxed))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *metadata.level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            Level::INFO => 20,
            Level::DEBUG => 10,
            Level::TRACE => 5,
        };
        let line = Line {
            logger: room(metadata.target()),
            level,
            text: text.finish(),
        };
        if let Ok(mut lines) = WAITING.try_lock() {
            if lines.len() >= LINES {
                lines.pop_front();
            }
            lines.push_back(line);
        }
        if let Ok(reader) = READER.try_lock()
            && let Some(pump) = reader.upgrade()
        {
            pump.nudge();
        }
    }
}

/// `retryrmq::consumer::engine::intake` → `consumer`.
fn room(target: &'static str) -> &'static str {
    target.split("::").nth(1).unwrap_or("")
}

/// The message, then the fields: `pausing (queue=orders pause=30s)`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn finish(mut self) -> String {
        if !self.fields.is_empty() {
            let _ = write!(self.message, " ({})", self.fields);
        }
        self.message
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            let gap = if self.fields.is_empty() { "" } else { " " };
            write!(self.fields, "{gap}{}={value:?}", field.name())
        };
    }
}
