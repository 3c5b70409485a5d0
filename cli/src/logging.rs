//! The log on standard error: what the crate warns about, in the form of the other remarks.

use std::{fmt, io};

use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    filter::Targets,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{
    global::Global,
    nonblocking_output,
    output::{Output, WORD},
    time_format,
};

/// Starts logging. Only this crate is heard: the AMQP client under it logs bodies, and at TRACE level passwords.
pub(crate) fn start(global: &Global, output: &Output) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::WARN,
        (_, 1) => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(|| Stderr)
        .with_ansi(output.colors_stderr())
        .event_format(Line);
    let _ = tracing_subscriber::registry() // fails only when one is set already
        .with(layer)
        .with(
            Targets::new()
                .with_target("retryrmq", level)
                // The report says what became of each message.
                .with_target("retryrmq::attempt", LevelFilter::OFF),
        )
        .try_init();
}

/// Where lines go: each comes in one piece.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match nonblocking_output::err() {
            Some(nonblocking) => {
                let _ = nonblocking.say(line.to_vec()); // where nobody reads there is nobody to tell
                Ok(line.len())
            }
            None => io::stderr().write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `03:04:05  warn      what happened  name=value`
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (word, style) = match *event.metadata().level() {
            Level::ERROR => ("error", console::Style::new().red().bold()),
            Level::WARN => ("warn", console::Style::new().yellow()),
            Level::INFO => ("info", console::Style::new().cyan()),
            _ => ("debug", console::Style::new().dim()),
        };
        let (style, dim) = (
            style.force_styling(out.has_ansi_escapes()),
            console::Style::new()
                .dim()
                .force_styling(out.has_ansi_escapes()),
        );
        write!(
            out,
            "{}  {}  ",
            dim.apply_to(time_format::clock()),
            style.apply_to(format!("{word:<WORD$}"))
        )?;
        ctx.format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}
