//! Everything this process logs, so that a test can look for what must be there and for what must not.

use std::{
    io,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use tracing_subscriber::{
    Layer as _, Registry,
    filter::{LevelFilter, Targets},
    fmt::MakeWriter,
    layer::SubscriberExt as _,
    reload,
    util::SubscriberInitExt as _,
};

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// What no line may hold, and the lines of the AMQP client that hold it all the same: the others are too many to keep.
static SECRETS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LEAKS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// How many tests look into the lines of the AMQP client. They are so many that a fifth of all these tests was writing them.
static WATCHES: Mutex<usize> = Mutex::new(0);
static HEARD: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Takes down every line of our own from now on, down to the finest level. Tests run side by side: lines of all of them
/// are here.
pub(crate) fn start() {
    HEARD.get_or_init(|| {
        let (heard, handle) = reload::Layer::new(heard(0));
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(Writers)
            .with_filter(heard);
        tracing_subscriber::registry().with(lines).init();
        handle
    });
}

fn heard(watches: usize) -> Targets {
    let ours = Targets::new().with_target("retryrmq", LevelFilter::TRACE);
    match watches {
        0 => ours,
        _ => ours.with_target("lapin", LevelFilter::TRACE),
    }
}

/// The lines so far that were written by this crate.
pub(crate) fn lines() -> Vec<String> {
    let bytes = lock(&LINES).clone();
    String::from_utf8_lossy(&bytes)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The lines of the AMQP client are looked into as long as this lives.
pub(crate) struct Watch(());

impl Watch {
    /// Looks for a password in every line: as text, and as the numbers that `Debug` makes of bytes. Call [`start`] before.
    pub(crate) fn for_password(password: &str) -> Self {
        let numbers: Vec<String> = password.bytes().map(|byte| byte.to_string()).collect();
        let hex: String = password.bytes().map(|byte| format!("{byte:02x}")).collect();
        lock(&SECRETS).extend([password.to_owned(), numbers.join(", "), hex]);
        Self::change(|watches| watches + 1);
        Self(())
    }

    /// The lines so far that hold what was looked for, also by other watches.
    pub(crate) fn leaks(&self) -> Vec<String> {
        lock(&LEAKS).clone()
    }

    fn change(change: impl FnOnce(usize) -> usize) {
        let mut watches = lock(&WATCHES);
        *watches = change(*watches);
        let handle = HEARD.get().expect("lines are taken down");
        handle.reload(heard(*watches)).unwrap();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        Self::change(|watches| watches - 1);
    }
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
