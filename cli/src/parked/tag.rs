//! `retryrmq parked tag` and `retryrmq parked hold`.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use clap::Args;
use retryrmq::Client;
use serde_json::json;

use super::{
    audit, filter,
    notes::{Note, NoteRow, Notes},
    sort::SortedWalk,
};
use crate::{error::CliError, exit::Exit, global::Global, output::Output, shutdown::Shutdown};
use retryrmq::terminal_escape;

/// Write a note and an owner on a group of failures
///
/// `parked ls --group` and `parked show` show them to everybody. They are kept on the broker, in QUEUE.notes.parked.
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "retryrmq parked tag [OPTIONS] --group <FINGERPRINT> <QUEUE>",
    after_help = "\
Examples:
  retryrmq parked tag orders --group 36567b941ac2e6b8 --owner ana --note 'TICKET-7'
  retryrmq parked tag orders --group 36567b941ac2e6b8 --clear"
)]
pub(crate) struct Tag {
    #[command(flatten)]
    words: TagArgs,

    /// Remove the note, the owner and a hold
    #[arg(long, conflicts_with_all = ["note", "owner"])]
    clear: bool,
}

/// Have replay and drop leave a group of failures alone
///
/// `parked replay`, `parked drop` and `parked export --remove` pass it over, unless its messages are named, by id or by fingerprint;
/// `parked forget` refuses to begin.
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "retryrmq parked hold [OPTIONS] --group <FINGERPRINT> <QUEUE>",
    after_help = "\
Examples:
  retryrmq parked hold orders --group 36567b941ac2e6b8 --note 'until the vendor is back'
  retryrmq parked hold orders --group 36567b941ac2e6b8 --release"
)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    words: TagArgs,

    /// End the hold; note and owner stay
    #[arg(long)]
    release: bool,
}

#[derive(Clone, Debug, Args)]
struct TagArgs {
    /// The queue (its own name, not that of the parking queue)
    queue: String,

    /// The group: its fingerprint, or the beginning that `parked ls --group` shows, if one parked group begins so
    #[arg(long, value_name = "FINGERPRINT")]
    group: String,

    /// A sentence for whoever comes next
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// Whose it is
    #[arg(long, value_name = "WHO")]
    owner: Option<String>,
}

/// Longer ones belong into a ticket.
const LONGEST: usize = 4_096;

pub(super) async fn tag(options: Tag, global: &Global, output: &Output) -> Result<Exit, CliError> {
    if !options.clear && options.words.note.is_none() && options.words.owner.is_none() {
        return Err(CliError::usage("pass --note, --owner or --clear"));
    }
    let clear = options.clear;
    let change = move |note: &mut Note| {
        if clear {
            (note.note, note.owner, note.hold) = Default::default();
        }
    };
    write(options.words, change, global, output).await
}

pub(super) async fn hold(
    options: HoldArgs,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let release = options.release;
    let change = move |note: &mut Note| note.hold = !release;
    write(options.words, change, global, output).await
}

/// The fingerprint of the one group of parked messages that begins so.
async fn whole(
    client: &Client,
    queue: &str,
    start: &str,
    shutdown: Shutdown,
) -> Result<String, CliError> {
    let parked = client.parked(queue);
    let cut = || CliError::failed("it was interrupted before the group was found".to_owned());
    let mut walk = SortedWalk::open(&parked, false, shutdown)
        .await?
        .ok_or_else(cut)?;
    let mut all = BTreeSet::new();
    let looked = async {
        while let Some((_, record)) = walk.next().await? {
            if record.fingerprint.starts_with(start) {
                all.insert(record.fingerprint.clone());
            }
        }
        Ok(())
    };
    let looked = looked.await;
    walk.close_after(looked).await?;
    let count = all.len();
    match all.pop_first() {
        Some(group) if count == 1 => Ok(group),
        Some(_) => Err(CliError::usage(format!(
            "{count} groups begin with {start}: write more digits, as `parked ls --group --json` shows them"
        ))),
        None => Err(CliError::not_found(format!(
            "no parked message belongs to a group that begins with {start}; for a group of which none is parked now, write all 16 digits"
        ))),
    }
}

async fn write(
    words: TagArgs,
    change: impl FnOnce(&mut Note),
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let start = filter::hexadecimal(&words.group).ok_or_else(|| {
        CliError::usage("--group is 4 to 16 hexadecimal digits, as `parked ls --group` shows them")
    })?;
    if [&words.note, &words.owner]
        .into_iter()
        .flatten()
        .any(|text| text.len() > LONGEST)
    {
        return Err(CliError::usage("a note or an owner has 4096 bytes at most"));
    }
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    // Whoever mistypes the queue would write where nobody looks.
    let parking = retryrmq::parking_queue(&words.queue);
    if client.depths(std::slice::from_ref(&parking)).await? == [None] {
        return Err(CliError::not_found(format!(
            "there is no queue `{}`; check the queue's name",
            terminal_escape::line(&parking)
        )));
    }
    let work = async {
        let group = match start.len() {
            16 => start,
            _ => whole(&client, &words.queue, &start, shutdown.clone()).await?,
        };
        let notes = Notes::of(&client, Some(&words.queue)).await?;
        let known = notes.latest(&group).cloned().unwrap_or_default();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or(Duration::ZERO).as_millis();
        let known_at = known.at;
        let next = known.next(format!("{:016x}", fastrand::u64(..)));
        let mut note = Note {
            fingerprint: group.clone(),
            note: words.note.unwrap_or(known.note),
            owner: words.owner.unwrap_or(known.owner),
            by: audit::who(),
            // Also where the clock of whoever wrote before is ahead.
            at: u64::try_from(now)
                .unwrap_or(u64::MAX)
                .max(known_at.saturating_add(1)),
            ..next
        };
        change(&mut note);
        Notes::write(&client, &words.queue, &note, known_at).await?;
        Ok::<_, CliError>((group, note))
    };
    let Some(written) = shutdown.unless_cut(work).await else {
        return Ok(Exit::Interrupted);
    };
    client.close().await;
    let (group, note) = written?;
    if output.is_json() {
        let mut line = note.json();
        line["fingerprint"] = json!(group);
        output.json_document(&line)?;
    }
    let what = match note.sentence() {
        none if none.is_empty() => "nothing is noted any more".to_owned(),
        sentence => sentence,
    };
    output.note(&format!("{group}: {what}"));
    Ok(Exit::Ok)
}
