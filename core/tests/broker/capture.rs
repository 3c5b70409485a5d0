//! Everything this process logs, so that a test can look for what must be there and for what must not.

use std::{
    io,
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

use tracing_subscriber::{
    Layer as _, filter::LevelFilter, filter::Targets, fmt::MakeWriter, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// What no line may hold, and the lines of the AMQP client that hold it all the same: the others are too many to keep.
static SECRETS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LEAKS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static START: Once = Once::new();

/// Takes down every line of our own from now on, down to the finest level. Tests run side by side: lines of all of them
/// are here.
pub(crate) fn start() {
    START.call_once(|| {
        let heard = Targets::new()
            .with_target("retryrmq", LevelFilter::TRACE)
            .with_target("lapin", LevelFilter::TRACE);
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(Writers)
            .with_filter(heard);
        tracing_subscriber::registry().with(lines).init();
    });
}

/// The lines so far that were written by this crate.
pub(crate) fn lines() -> Vec<String> {
    let bytes = lock(&LINES).clone();
    String::from_utf8_lossy(&bytes)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// From now on looks for a password in the lines of the AMQP client as well: as text, and as the numbers that `Debug`
/// makes of bytes.
pub(crate) fn watch_for(password: &str) {
    let numbers: Vec<String> = password.bytes().map(|byte| byte.to_string()).collect();
    let hex: String = password.bytes().map(|byte| format!("{byte:02x}")).collect();
    lock(&SECRETS).extend([password.to_owned(), numbers.join(", "), hex]);
}

/// The lines so far that hold what was watched for.
pub(crate) fn leaks() -> Vec<String> {
    lock(&LEAKS).clone()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Writers;

impl<'a> MakeWriter<'a> for Writers {
    type Writer = Writer;

    fn make_writer(&'a self) -> Writer {
        Writer { keep: true }
    }

    fn make_writer_for(&'a self, of: &tracing::Metadata<'_>) -> Writer {
        Writer {
            keep: of.target().starts_with("retryrmq"),
        }
    }
}

struct Writer {
    keep: bool,
}

impl io::Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.keep {
            lock(&LINES).extend_from_slice(line);
        }
        let secrets = lock(&SECRETS).clone();
        if !secrets.is_empty() {
            let line = String::from_utf8_lossy(line);
            if secrets.iter().any(|secret| line.contains(secret)) {
                lock(&LEAKS).push(line.into_owned());
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
