//! Everything this process logs, so that a test can look for what must be there and for what must not.

use std::{
    io,
    sync::{Mutex, Once, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static START: Once = Once::new();

/// Takes down every line of our own from now on, down to the finest level. Tests run side by side: lines of all of them
/// are here.
pub(crate) fn start() {
    START.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(Writers)
            .init();
    });
}

/// The lines so far that were written by this crate.
pub(crate) fn lines() -> Vec<String> {
    let bytes = LINES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    String::from_utf8_lossy(&bytes)
        .lines()
        .map(str::to_owned)
        .collect()
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
            LINES
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend_from_slice(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
