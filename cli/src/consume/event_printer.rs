//! What happened to which message: a line each, for people or for programs, and the sum of it.

use console::Style;
use retryrmq::{Event, format_duration};
use retryrmq_operator::plural;
use serde_json::{Value, json};

use crate::{error::CliError, nonblocking_output, output::Output};
use retryrmq::terminal_escape;

/// Tells and counts.
pub(super) struct EventPrinter<'a> {
    output: &'a Output,
    /// Crashes after which a message is parked.
    most_crashes: u32,
    /// Attempts that ended.
    pub(super) attempts: u64,
    handled: u64,
    retried: u64,
    deferred: u64,
    parked: u64,
    rejected: u64,
}

impl<'a> EventPrinter<'a> {
    pub(super) fn new(output: &'a Output, most_crashes: u32) -> Self {
        Self {
            output,
            most_crashes,
            attempts: 0,
            handled: 0,
            retried: 0,
            deferred: 0,
            parked: 0,
            rejected: 0,
        }
    }

    /// Consuming has begun.
    pub(super) fn consuming(
        &self,
        queue: &str,
        server: &str,
        target: Option<&str>,
    ) -> Result<(), CliError> {
        if self.output.is_json() {
            self.output
                .json_line(&json!({"event": "consuming", "queue": queue}))?;
        }
        let target = target.map_or_else(String::new, |target| format!(" to {target}"));
        let rest = format!(
            "{} on RabbitMQ {}{target}; Ctrl-C drains and ends",
            terminal_escape::line(queue),
            terminal_escape::line(server)
        );
        self.output.happened("start", Style::new().cyan(), &rest);
        Ok(())
    }

    /// Why nothing can be printed any more.
    pub(super) fn unread(&self) -> Result<(), CliError> {
        nonblocking_output::out().map_or(Ok(()), |nonblocking| Ok(nonblocking.check()?))
    }

    /// The end was asked for, or is due.
    pub(super) fn draining(
        &self,
        running: usize,
        (one, many): (&str, &str),
        by_signal: bool,
    ) -> Result<(), CliError> {
        if self.output.is_json() {
            return self
                .output
                .json_line(&json!({"event": "draining", "running": running}));
        }
        // An end by --count or --idle comes without anybody at the keyboard.
        if running > 0 && by_signal {
            let runs = if running == 1 {
                format!("{one} still runs")
            } else {
                format!("{many} still run")
            };
            let rest = format!("{running} {runs}; Ctrl-C or SIGTERM now stops at once");
            self.output.happened("drain", Style::new().cyan(), &rest);
        }
        Ok(())
    }

    /// An attempt succeeded.
    pub(super) fn handled(
        &mut self,
        id: Option<&str>,
        attempt: u32,
        took: std::time::Duration,
    ) -> Result<(), CliError> {
        self.handled += 1;
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if self.output.is_json() {
            return self.output.json_line(
                &json!({"event": "handled", "message_id": id, "attempt": attempt, "ms": ms}),
            );
        }
        if self.output.is_verbose() {
            self.output.happened(
                "ok",
                Style::new().green(),
                &format!("{}  attempt {attempt}, {ms} ms", name(id)),
            );
        }
        Ok(())
    }

    /// The crate says what became of a message, or of the connection.
    pub(super) fn event(&mut self, event: &Event) -> Result<(), CliError> {
        match event {
            Event::Retried { .. } => self.retried += 1,
            Event::Deferred { .. } => self.deferred += 1,
            Event::Parked { .. } => self.parked += 1,
            Event::Rejected { .. } => self.rejected += 1,
            _ => {}
        }
        if self.output.is_json() {
            return self.output.json_line(&as_json(event));
        }
        let (word, style, rest) = for_people(event, self.most_crashes);
        self.output.happened(word, style, &rest);
        Ok(())
    }

    /// The sum.
    pub(super) fn done(&self) -> Result<(), CliError> {
        if self.output.is_json() {
            return self.output.json_line(&json!({
                "event": "done", "attempts": self.attempts, "handled": self.handled, "retried": self.retried,
                "deferred": self.deferred, "parked": self.parked, "rejected": self.rejected,
            }));
        }
        let parts: Vec<String> = [
            (self.handled, "handled"),
            (self.retried, "retried"),
            (self.deferred, "deferred"),
            (self.parked, "parked"),
            (self.rejected, "rejected"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
        let colon = if parts.is_empty() { "" } else { ": " };
        let attempts = plural::word(self.attempts, "attempt", "attempts");
        self.output.happened(
            "end",
            Style::new().cyan(),
            &format!("{} {attempts}{colon}{}", self.attempts, parts.join(", ")),
        );
        Ok(())
    }
}

fn name(id: Option<&str>) -> String {
    id.map_or_else(
        || "(no id)".to_owned(),
        |id| terminal_escape::line(id).into_owned(),
    )
}

fn for_people(event: &Event, most_crashes: u32) -> (&'static str, Style, String) {
    let (yellow, red, cyan) = (
        Style::new().yellow(),
        Style::new().red(),
        Style::new().cyan(),
    );
    let shown = |text: &str| terminal_escape::line(text).into_owned();
    match event {
        Event::Retried {
            message_id,
            attempt,
            delay,
            error,
            ..
        } => (
            "retry",
            yellow,
            format!(
                "{}  attempt {attempt} failed: {}; again in {}",
                name(message_id.as_deref()),
                shown(error),
                format_duration(*delay)
            ),
        ),
        Event::Deferred {
            message_id, delay, ..
        } => (
            "defer",
            cyan,
            format!(
                "{}  again in {}",
                name(message_id.as_deref()),
                format_duration(*delay)
            ),
        ),
        Event::Parked {
            message_id,
            attempt,
            reason,
            error,
            ..
        } => (
            "park",
            red,
            format!(
                "{}  attempt {attempt} failed: {}; parked as {reason}",
                name(message_id.as_deref()),
                shown(error)
            ),
        ),
        Event::HandedOver {
            message_id,
            attempt,
            error,
            ..
        } => (
            "retry",
            yellow,
            format!(
                "{}  attempt {attempt} failed: {}; handed over to the service",
                name(message_id.as_deref()),
                shown(error)
            ),
        ),
        Event::Rejected {
            message_id, error, ..
        } => (
            "reject",
            red,
            format!(
                "{}  failed: {}; left to the queue's own dead-lettering",
                name(message_id.as_deref()),
                shown(error)
            ),
        ),
        // Before its delay was over.
        Event::Detoured {
            message_id,
            crashes: 0,
            ..
        } => (
            "early",
            yellow,
            format!(
                "{}  came back too early; it waits for the rest of its delay",
                name(message_id.as_deref())
            ),
        ),
        Event::Detoured {
            message_id,
            crashes,
            ..
        } => (
            "crash",
            yellow,
            format!(
                "{}  redelivered, because its consumer never settled it ({crashes} of {most_crashes}); it will run again",
                name(message_id.as_deref())
            ),
        ),
        Event::AlreadyHandled { message_id, .. } => (
            "again",
            cyan,
            format!(
                "{}  redelivered although it was handled; acknowledged",
                name(message_id.as_deref())
            ),
        ),
        Event::Replayed { message_id, .. } => ("replayed", cyan, name(message_id.as_deref())),
        Event::PublishFailed {
            message_id, error, ..
        } => (
            "warn",
            yellow,
            format!(
                "{}  cannot be stored yet: {}",
                name(message_id.as_deref()),
                shown(error)
            ),
        ),
        Event::Requeued { message_id, .. } => (
            "back",
            yellow,
            format!("{}  back to its queue", name(message_id.as_deref())),
        ),
        Event::Disconnected { .. } => (
            "lost",
            red,
            "the connection; unacknowledged messages are redelivered".to_owned(),
        ),
        Event::UnreadableMoved {
            to, count, cause, ..
        } => (
            "moved",
            yellow,
            format!(
                "{} to {}, which RabbitMQ cannot deliver over AMQP 0-9-1: {}",
                plural::messages((*count).into()),
                shown(to),
                shown(cause)
            ),
        ),
        Event::ConsumingStopped { error, .. } => ("stop", red, shown(error)),
        Event::Reconnected { .. } => (
            "found",
            Style::new().green(),
            "the connection; consuming again".to_owned(),
        ),
        Event::Paused { delay, .. } => (
            "pause",
            yellow,
            format!(
                "too many attempts fail; no messages for {}",
                format_duration(*delay)
            ),
        ),
        Event::Resumed { .. } => (
            "go on",
            Style::new().green(),
            "the probe succeeded".to_owned(),
        ),
        other => ("event", cyan, other.name().to_owned()),
    }
}

/// An event by its stable names; what an event does not say is left out.
fn as_json(event: &Event) -> Value {
    let fields = event.fields();
    let mut object = json!({"event": event.name(), "queue": fields.queue});
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            object[name] = value;
        }
    };
    let ms = |duration: std::time::Duration| {
        json!(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    };
    let span = if matches!(event, Event::Paused { .. }) {
        "pause_ms"
    } else {
        "delay_ms"
    };
    set("message_id", fields.message_id.map(|id| json!(id)));
    set("attempt", fields.attempt.map(|attempt| json!(attempt)));
    set(span, fields.delay.map(ms));
    set("reason", fields.reason.map(|reason| json!(reason.as_str())));
    set("error", fields.error.map(|error| json!(error)));
    set("error_type", fields.error_type.map(|name| json!(name)));
    set("crashes", fields.crashes.map(|crashes| json!(crashes)));
    set("to", fields.to.map(|to| json!(to)));
    set("count", fields.count.map(|count| json!(count)));
    set("cause", fields.cause.map(|cause| json!(cause)));
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::WORD;

    #[test]
    fn what_happened_does_not_read_as_what_we_do() {
        let told = |event: &Event| for_people(event, 10).0;
        let events = Event::one_of_each();
        let replayed = events.iter().find(|event| event.name() == "replayed");
        assert_eq!(replayed.map(told), Some("replayed"));
    }

    #[test]
    fn every_word_fits_its_column() {
        for event in Event::one_of_each() {
            let (word, ..) = for_people(&event, 10);
            assert!(word.len() <= WORD, "{word}");
        }
    }
}
