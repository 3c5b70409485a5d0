//! Log lines of the core on their way to Go's `slog`.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::Registry,
};

use crate::news;

/// As many lines wait at most; the oldest go first.
const LINES: usize = 1_000;

/// One line.
#[derive(Debug, uniffi::Record)]
pub struct Line {
    /// The room of the core that it comes from: `consumer`, `client`, …
    pub room: String,
    /// As in `slog`: −4 is DEBUG, 8 is ERROR.
    pub level: i8,
    /// The message.
    pub text: String,
    /// Its fields, name and value in turns.
    pub fields: Vec<String>,
}

static WAITING: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());
static WANTED: AtomicBool = AtomicBool::new(false);
static DEBUG: AtomicBool = AtomicBool::new(false);
static INSTALLED: Once = Once::new();

/// Whether lines are wanted at all, and whether those below INFO are.
#[uniffi::export]
pub fn log_lines(wanted: bool, debug: bool) {
    INSTALLED.call_once(|| {
        // Fails only when something else in this process is told of everything already.
        let _ = tracing::subscriber::set_global_default(Registry::default().with(ToGo));
    });
    WANTED.store(wanted, Ordering::Relaxed);
    DEBUG.store(debug, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

/// The lines since the last call.
pub(crate) fn take() -> Vec<Line> {
    WAITING
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
        .collect()
}

struct ToGo;

impl<S: Subscriber> Layer<S> for ToGo {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        WANTED.load(Ordering::Relaxed)
            && metadata.target().starts_with("retryrmq")
            && (*metadata.level() <= Level::INFO || DEBUG.load(Ordering::Relaxed))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut said = Said::default();
        event.record(&mut said);
        let line = Line {
            room: room(metadata.target()).to_owned(),
            level: match *metadata.level() {
                Level::ERROR => 8,
                Level::WARN => 4,
                Level::INFO => 0,
                Level::DEBUG | Level::TRACE => -4,
            },
            text: said.message,
            fields: said.fields,
        };
        let mut lines = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= LINES {
            lines.pop_front();
        }
        lines.push_back(line);
        drop(lines);
        news::nudge();
    }
}

/// `retryrmq::consumer::engine::intake` → `consumer`.
fn room(target: &'static str) -> &'static str {
    target.split("::").nth(1).unwrap_or("")
}

#[derive(Default)]
struct Said {
    message: String,
    fields: Vec<String>,
}

impl Said {
    fn field(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = value;
        } else {
            self.fields.extend([field.name().to_owned(), value]);
        }
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = write!(text, "{value:?}");
        self.field(field, text);
    }
}
