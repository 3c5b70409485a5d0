//! Log lines of the core on their way to JavaScript.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use napi_derive::napi;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::Registry,
};

use crate::bridge::{Line, Shared};

/// As many lines wait at most; the oldest go first.
const LINES: usize = 1_000;

/// The lines that wait, and who reads them: the oldest environment that is still there, mostly the main thread.
struct Log {
    lines: VecDeque<Line>,
    readers: Vec<Weak<Shared>>,
}

static LOG: Mutex<Log> = Mutex::new(Log {
    lines: VecDeque::new(),
    readers: Vec::new(),
});
static DETAILS: AtomicBool = AtomicBool::new(false);
static INSTALLED: Once = Once::new();

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reader(log: &mut Log) -> Option<Arc<Shared>> {
    log.readers.retain(|reader| reader.strong_count() > 0);
    log.readers.first().and_then(Weak::upgrade)
}

/// Sends log lines to the environment behind this bridge, once those before it are gone.
pub(crate) fn told_to(bridge: &Arc<Shared>) {
    log().readers.push(Arc::downgrade(bridge));
    INSTALLED.call_once(|| {
        // Fails only when something else in this process is told of everything already.
        let _ = tracing::subscriber::set_global_default(Registry::default().with(ToJavaScript));
    });
}

/// The lines since the last call, if they are for this environment.
pub(crate) fn take(bridge: &Arc<Shared>) -> Vec<Line> {
    let mut log = log();
    if reader(&mut log).is_some_and(|reader| Arc::ptr_eq(&reader, bridge)) {
        log.lines.drain(..).collect()
    } else {
        Vec::new()
    }
}

/// Whether lines below `info` are wanted.
#[napi(catch_unwind)]
pub fn set_debug(wanted: bool) {
    DETAILS.store(wanted, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

struct ToJavaScript;

impl<S: Subscriber> Layer<S> for ToJavaScript {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target().starts_with("retryrmq")
            && (*metadata.level() <= Level::INFO || DETAILS.load(Ordering::Relaxed))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            _ => "debug",
        };
        let mut log = log();
        if log.lines.len() >= LINES {
            log.lines.pop_front();
        }
        log.lines.push_back(Line {
            level,
            text: text.finish(),
        });
        let reader = reader(&mut log);
        drop(log);
        if let Some(reader) = reader {
            reader.nudge();
        }
    }
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
            // Writing into a string cannot fail.
            let _ = write!(self.message, " ({})", self.fields);
        }
        self.message
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            let gap = if self.fields.is_empty() { "" } else { " " };
            write!(self.fields, "{gap}{}={value:?}", field.name())
        };
    }
}
