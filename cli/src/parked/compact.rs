//! `retryrmq parked compact`.

use clap::Args;
use serde_json::json;

use super::{
    audit::{Audit, AuditLog},
    other_consumers::{self, OtherConsumers},
};
use crate::{error::CliError, exit::Exit, global::Global, output::Output, shutdown::Shutdown};
use retryrmq::terminal_escape;
use retryrmq_operator::plural;

/// Rewrite a parking queue, so that the broker can free its disk
///
/// A quorum queue may keep its log from its oldest message on, whatever was taken out of it since. This puts every message back as
/// a confirmed copy, in order, and then acknowledges the original: nothing is lost. If it is killed meanwhile, at most 256 messages
/// are there twice. It writes as many bytes as the queue holds.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq parked compact [OPTIONS] <QUEUE>", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The queue whose parked messages to rewrite (its own name, not that of the parking queue)
    queue: String,

    #[command(flatten)]
    log: AuditLog,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked compact orders

JSON: rewritten, kept (messages that no whole copy can be made of), remaining.";

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    let parked = client.parked(&options.queue);
    let mut audit = Audit::open(
        Some(&options.log),
        (&client, &shutdown),
        "compact",
        &options.queue,
    )
    .await?;
    let Some(browse) = shutdown.unless_cut(parked.browse()).await else {
        return Ok(Exit::Interrupted);
    };
    let mut browse = browse?;
    if let Some(warning) = browse.warning() {
        tracing::warn!("{}", terminal_escape::line(warning));
    }
    let total = browse.remaining();
    let progress = output.progress(Some(total.into()), "rewritten");
    let rewriting = browse.rewrite(|done| {
        progress.set_position(done);
        !shutdown.is_set()
    });
    let Some(rewritten) = shutdown.unless_cut(rewriting).await else {
        return Ok(Exit::Interrupted); // an alarm: what is under way would be done twice
    };
    progress.finish_and_clear();
    let taken = OtherConsumers::of(&browse);
    let closed = shutdown.unless_cut(browse.close()).await;
    let rewritten = rewritten.map_err(|error| other_consumers::refused(error, &parked.name()));
    let mut written = Ok(());
    // Whatever becomes of the end: this was done.
    if let (Some(audit), Ok((rewritten, _))) = (&mut audit, &rewritten) {
        let mut line = audit.line("rewritten");
        line["count"] = json!(rewritten);
        let done = format!(
            "{} {} rewritten",
            plural::messages(*rewritten),
            plural::word(*rewritten, "was", "were")
        );
        written = audit.append(&[line], &done).await;
    }
    let is_cut = closed.is_none();
    if !is_cut {
        client.close().await; // which would wait for what was cut short
    }
    let closed = closed.map(|closed| closed.map_err(CliError::from));
    let (rewritten, kept) = ended(rewritten, closed.unwrap_or(Ok(())), total)?;
    written?;
    if is_cut {
        output.note(&format!(
            "stopped before the broker confirmed the end: {}",
            state(rewritten, total)
        ));
        return Ok(Exit::Interrupted);
    }
    let name = parked.name();
    let remaining = u64::from(total).saturating_sub(rewritten + kept);
    let not_all = if kept == 0 {
        String::new()
    } else {
        format!("; {kept} could not be, and still hold the log: replay, export or drop them")
    };
    let stopped = if shutdown.is_set() {
        format!("; stopped, {remaining} remain as they are")
    } else {
        String::new()
    };
    if output.is_json() {
        output.json_document(
            &json!({ "rewritten": rewritten, "kept": kept, "remaining": remaining }),
        )?;
    }
    output.note(&format!(
        "{rewritten} of {} in {} rewritten{not_all}{stopped}",
        plural::messages(total.into()),
        terminal_escape::line(&name)
    ));
    if shutdown.is_set() {
        return Ok(Exit::Interrupted);
    }
    if taken.hold() {
        return taken.report(&name, output);
    }
    Ok(Exit::Ok)
}

/// What was rewritten, if it was also ended in good order.
fn ended(
    rewritten: Result<(u64, u64), CliError>,
    closed: Result<(), CliError>,
    total: u32,
) -> Result<(u64, u64), CliError> {
    match (rewritten, closed) {
        (Ok(counts), Ok(())) => Ok(counts),
        (Ok((rewritten, _)), Err(cli_error)) => Err(cli_error.after(&state(rewritten, total))),
        (Err(cli_error), Ok(())) => Err(cli_error),
        (Err(cli_error), Err(later)) => Err(cli_error.then(later)),
    }
}

/// Where the messages are when nobody knows whether the last acknowledgements came.
fn state(rewritten: u64, total: u32) -> String {
    format!(
        "{rewritten} of {} {} rewritten; every message is still parked, and some that were rewritten last may be there twice: run this again to see that it ends",
        plural::messages(total.into()),
        plural::word(rewritten, "was", "were")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_fails_says_what_was_done_and_where_the_messages_are() {
        let lost = || Err(CliError::failed("the connection was lost"));
        let cli_error = ended(Ok((7, 1)), lost(), 9).unwrap_err();
        let said = cli_error.sentence();
        for part in [
            "the connection was lost; 7 of 9 messages were rewritten",
            "still parked",
            "twice",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(cli_error.exit(), Exit::Failed);
        // Where the rewriting failed, the end is told of as well.
        let cli_error = ended(Err(CliError::refused("no")), lost(), 9).unwrap_err();
        assert_eq!(cli_error.sentence(), "no; the connection was lost");
        assert_eq!(ended(Ok((7, 1)), Ok(()), 9).unwrap(), (7, 1));
    }
}
