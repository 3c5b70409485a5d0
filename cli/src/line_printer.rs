//! Whoever reads a line for each message, and may leave before the end: what was asked for goes on without.

use serde_json::json;

use crate::{
    error::CliError,
    output::{self, Output},
};

/// Whether anybody still listens.
#[derive(Debug, Default)]
pub(crate) struct LinePrinter {
    /// Why nothing more is printed.
    gone: Option<CliError>,
}

impl LinePrinter {
    /// Prints, as long as anybody listens.
    pub(crate) fn hears(&mut self, print: impl FnOnce() -> Result<(), CliError>) {
        if self.gone.is_none() {
            self.gone = print().err();
        }
    }

    /// Tells what was `done`, and how often, or what a dry run `would` have done, where nobody has read the lines to their end.
    ///
    /// # Errors
    /// Where it was not the reader who left, as with a full disk.
    pub(crate) fn end(
        self,
        (done, count): (&str, u64),
        would: bool,
        summary: &str,
        output: &Output,
    ) -> Result<(), CliError> {
        match self.gone {
            None => Ok(()),
            Some(cli_error) if cli_error.is_closed_pipe() => {
                if output.is_json() {
                    // A program that reads this must not take a rehearsal for the real action.
                    let line = if would {
                        json!({ format!("would_be_{done}"): count })
                    } else {
                        json!({ done: count })
                    };
                    output::err_line(&line.to_string());
                }
                Ok(())
            }
            Some(cli_error) => Err(CliError::failed(format!(
                "{}; {summary}",
                cli_error.sentence()
            ))),
        }
    }
}
