//! Asks before something is done that cannot be undone as easily.

use std::io::{self, IsTerminal, Write};

use crate::fault::Fault;

/// Whether the operator says yes.
///
/// # Errors
/// Without a terminal nobody can be asked.
pub(crate) async fn agreed(question: &str) -> Result<bool, Fault> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Fault::usage(format!(
            "{question} Nobody can be asked here: say --yes"
        )));
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer
        .await
        .map_err(|why| Fault::failed(format!("cannot ask: {why}")))??;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}
