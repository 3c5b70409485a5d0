//! Asks before something is done that cannot be undone as easily.

use std::io::{self, BufRead, IsTerminal, Write};

use retryrmq::terminal_escape;

use crate::{error::CliError, output::Output};

/// Whether somebody is there to be asked.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Whether the operator says yes.
///
/// # Errors
/// Without a terminal nobody can be asked.
pub(crate) async fn agreed(question: &str) -> Result<bool, CliError> {
    if can_ask() {
        return agrees(question).await;
    }
    Err(CliError::usage(format!(
        "{question} There is no terminal to ask on; pass --yes"
    )))
}

/// Whether the operator wants `what` done to the broker: `sure`, or asked and agreed; what was declined is told.
///
/// # Errors
/// Without a terminal nobody can be asked.
pub(crate) async fn wants(
    sure: bool,
    what: &str,
    question: &str,
    output: &Output,
) -> Result<bool, CliError> {
    if sure {
        return Ok(true);
    }
    if !can_ask() {
        return Err(CliError::usage(format!(
            "this {what}: pass --yes, or look first with --dry-run"
        )));
    }
    let agreed = agrees(question).await?;
    if !agreed {
        output.note("nothing was changed");
    }
    Ok(agreed)
}

/// What [`wants`] is asked for where a policy is made or taken away.
pub(crate) const POLICY: &str = "changes a policy of the broker";

/// Asks, on the terminal. Everything but yes is no.
pub(crate) async fn agrees(question: &str) -> Result<bool, CliError> {
    {
        let mut err = io::stderr().lock();
        err.write_all(format!("{} [y/N] ", terminal_escape::line(question)).as_bytes())?;
        err.flush()?;
    }
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer
        .await
        .map_err(|why| CliError::failed(format!("cannot ask: {why}")))??;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}
