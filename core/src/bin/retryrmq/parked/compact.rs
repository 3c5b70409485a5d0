//! `retryrmq parked compact`.

use clap::Args;
use serde_json::json;

use super::{
    audit::{Audit, Log},
    others::{self, Others},
};
use crate::{exit::Exit, fault::Fault, global::Global, output::Output, stop::Stop};
use retryrmq::visible;

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
    log: Log,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked compact orders

JSON: rewritten, kept (messages that no whole copy can be made of), remaining.";

pub(crate) async fn run(options: Options, global: &Global, output: &Output) -> Result<Exit, Fault> {
    let stop = Stop::listen()?;
    let client = global.connect().await?;
    let parked = client.parked(&options.queue);
    let mut audit = Audit::open(
        Some(&options.log),
        (&client, &stop),
        "compact",
        &options.queue,
    )
    .await?;
    let Some(browse) = stop.unless_cut(parked.browse()).await else {
        return Ok(Exit::Interrupted);
    };
    let mut browse = browse?;
    if let Some(warning) = browse.warning() {
        tracing::warn!("{}", visible::line(warning));
    }
    let total = browse.remaining();
    let progress = output.progress(Some(total.into()), "rewritten");
    let rewriting = browse.rewrite(|done| {
        progress.set_position(done);
        !stop.is_set()
    });
    let Some(rewritten) = stop.unless_cut(rewriting).await else {
        return Ok(Exit::Interrupted); // an alarm: what is under way would be done twice
    };
    progress.finish_and_clear();
    let taken = Others::of(&browse);
    let Some(closed) = stop.unless_cut(browse.close()).await else {
        return Ok(Exit::Interrupted);
    };
    let rewritten = rewritten.map_err(|error| others::refused(error, &parked.name()));
    let (rewritten, kept) = rewritten?;
    closed?;
    let mut written = Ok(());
    if let Some(audit) = &mut audit {
        let mut line = audit.line("rewritten");
        line["count"] = json!(rewritten);
        let done = format!("{rewritten} messages were rewritten");
        written = audit.append(&[line], &done).await;
    }
    client.close().await;
    written?;
    let name = parked.name();
    let remaining = u64::from(total).saturating_sub(rewritten + kept);
    let not_all = if kept == 0 {
        String::new()
    } else {
        format!("; {kept} could not be, and still hold the log: replay, export or drop them")
    };
    let stopped = if stop.is_set() {
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
        "{rewritten} of {total} messages in {} rewritten{not_all}{stopped}",
        visible::line(&name)
    ));
    if stop.is_set() {
        return Ok(Exit::Interrupted);
    }
    if taken.hold() {
        return taken.told(&name, output);
    }
    Ok(Exit::Ok)
}
