//! What was done with parked messages, for the summary: how many, the first of them by name, and where they went.

use std::collections::BTreeMap;

use retryrmq::Record;

use super::message_ref::handle;
use crate::{error::CliError, line_printer::LinePrinter};
use retryrmq::terminal_escape;

/// The most messages shown individually.
pub(super) const SHOWN: usize = 10;

/// How many are done with, and the first of them by name: `#2` alone says little once it is gone.
#[derive(Default)]
pub(super) struct Summary {
    pub(super) count: u64,
    names: Vec<String>,
    targets: BTreeMap<String, u64>,
    pub(super) printer: LinePrinter,
}

impl Summary {
    /// Notes a message, and the queue that it went to.
    pub(super) fn note(&mut self, place: usize, record: &Record, target: Option<&str>) {
        self.count += 1;
        if let Some(target) = target {
            *self.targets.entry(target.to_owned()).or_default() += 1;
        }
        if self.names.len() < SHOWN {
            let message = record.message();
            self.names.push(match message.message_id() {
                Some(id) => terminal_escape::line(id).into_owned(),
                None => format!("(no id, {})", handle(place, record)),
            });
        }
    }

    /// Prints, as long as anybody listens.
    pub(super) fn print(&mut self, print: impl FnOnce() -> Result<(), CliError>) {
        self.printer.hears(print);
    }

    /// `: a, b, …`
    pub(super) fn names(&self) -> String {
        let more = if self.count > SHOWN as u64 {
            ", …"
        } else {
            ""
        };
        match self.names.join(", ") {
            names if names.is_empty() => names,
            names => format!(": {names}{more}"),
        }
    }

    /// ` to orders`, or how many to which.
    pub(super) fn targets(&self) -> String {
        let each: Vec<String> = self
            .targets
            .iter()
            .map(|(queue, count)| match self.targets.len() {
                1 => terminal_escape::line(queue).into_owned(),
                _ => format!("{} ({count})", terminal_escape::line(queue)),
            })
            .collect();
        match each.join(", ") {
            all if all.is_empty() => all,
            all => format!(" to {all}"),
        }
    }
}
