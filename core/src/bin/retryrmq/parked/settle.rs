//! `retryrmq parked replay` and `retryrmq parked drop`.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use retryrmq::{Browse, Parked, Record};
use serde_json::json;

use super::{
    ls, record,
    selection::{Selection, Words},
};
use crate::{exit::Exit, fault::Fault, global::Global, output::Output, visible};

/// Send parked messages back to the tail of their queue, their attempts counted from the start
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq parked replay orders order-17 '#3'
  retryrmq parked replay orders --fingerprint 3f2a9c01
  retryrmq parked replay orders --all --limit 100 --dry-run

A message leaves the parking queue after its copy is confirmed: if we die in
between it may come twice, it is never lost.",
    override_usage = "retryrmq parked replay [OPTIONS] <QUEUE> <ID…|--fingerprint <HEX>|--reason <REASON>|--all>"
)]
pub(crate) struct Replay {
    #[command(flatten)]
    choice: Choice,
}

/// Drop parked messages for good
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq parked drop orders '#1'
  retryrmq parked drop orders --reason expired --yes
  retryrmq parked drop orders --all --dry-run

Without --yes it asks, and needs a terminal for that.",
    override_usage = "retryrmq parked drop [OPTIONS] <QUEUE> <ID…|--fingerprint <HEX>|--reason <REASON>|--all>"
)]
pub(crate) struct Drop {
    #[command(flatten)]
    choice: Choice,

    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Clone, Debug, Args)]
struct Choice {
    /// The queue (its own name, not that of the parking queue)
    queue: String,

    #[command(flatten)]
    which: Words,

    /// At most this many, the oldest first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Only say which
    #[arg(long)]
    dry_run: bool,
}

/// As many are shown one by one.
const SHOWN: usize = 10;

#[derive(Clone, Copy)]
enum Deed {
    Replay,
    Drop,
}

impl Deed {
    fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Drop => "dropped",
        }
    }
}

pub(super) async fn replay(
    options: Replay,
    global: &Global,
    output: &Output,
) -> Result<Exit, Fault> {
    act(options.choice, Deed::Replay, true, global, output).await
}

pub(super) async fn drop(options: Drop, global: &Global, output: &Output) -> Result<Exit, Fault> {
    let sure = options.yes || options.choice.dry_run;
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !sure && !can_ask {
        return Err(Fault::usage(
            "dropped messages are gone for good: say --yes, or look first with --dry-run",
        ));
    }
    act(options.choice, Deed::Drop, sure, global, output).await
}

async fn act(
    choice: Choice,
    deed: Deed,
    sure: bool,
    global: &Global,
    output: &Output,
) -> Result<Exit, Fault> {
    let selection = choice.which.read()?;
    let client = global.connect().await?;
    let parked = client.parked(&choice.queue);
    let mut walk = Walk {
        browse: parked.browse().await?,
        selection,
        place: 0,
        left: choice.limit.unwrap_or(u64::MAX),
    };
    let done = if sure {
        on_the_way(&mut walk, &choice, deed, output).await
    } else {
        after_a_question(&mut walk, &parked, deed, output).await
    };
    let Walk {
        browse,
        selection,
        left,
        ..
    } = walk;
    browse.close().await?;
    client.close().await;
    let done = done?;
    // With a limit the rest was not looked for.
    let missing = selection.missing(&parked.name()).filter(|_| left > 0);
    if missing.is_none() || done.count > 0 {
        tell(&done, &choice, deed, output);
    }
    missing.map_or(Ok(Exit::Ok), Err)
}

/// A walk past the chosen messages.
struct Walk {
    browse: Browse,
    selection: Selection,
    place: usize,
    left: u64,
}

impl Walk {
    async fn next(&mut self) -> Result<Option<(usize, Record)>, Fault> {
        while self.left > 0
            && !self.selection.ends_by(self.place)
            && let Some(record) = self.browse.next().await?
        {
            self.place += 1;
            if self.selection.takes(self.place, &record) {
                self.left -= 1;
                return Ok(Some((self.place, record)));
            }
        }
        Ok(None)
    }

    async fn act(&mut self, deed: Deed, record: &Record) -> Result<(), Fault> {
        match deed {
            Deed::Replay => self.browse.replay(record).await?,
            Deed::Drop => self.browse.discard(record).await?,
        }
        Ok(())
    }
}

/// Each message as it comes: nothing is held that is done with.
async fn on_the_way(
    walk: &mut Walk,
    choice: &Choice,
    deed: Deed,
    output: &Output,
) -> Result<Done, Fault> {
    let progress = output.progress(Some(walk.browse.remaining().into()), "looked at");
    let mut done = Done::default();
    let mut rows = Vec::new();
    while let Some((place, record)) = walk.next().await? {
        if choice.dry_run {
            if !output.is_json() {
                rows.push(ls::row(place, &record, output));
            }
        } else if let Err(fault) = walk.act(deed, &record).await {
            progress.finish_and_clear();
            return Err(fault.after(&format!(
                "{} messages before it were {}",
                done.count,
                deed.done()
            )));
        }
        done.note(&record);
        if output.is_json() {
            let mut line = record::summary(place, &record);
            line[deed.done()] = json!(!choice.dry_run);
            output.json_line(&line)?;
        }
        progress.set_position(walk.place as u64);
    }
    progress.finish_and_clear();
    if !rows.is_empty() {
        ls::print(rows, output)?;
    }
    Ok(done)
}

/// Holds exactly the messages that are asked about while the question stands.
async fn after_a_question(
    walk: &mut Walk,
    parked: &Parked,
    deed: Deed,
    output: &Output,
) -> Result<Done, Fault> {
    let mut chosen = Vec::new();
    while let Some(next) = walk.next().await? {
        chosen.push(next);
    }
    if let Some(fault) = walk
        .selection
        .missing(&parked.name())
        .filter(|_| walk.left > 0)
    {
        return Err(fault);
    }
    if chosen.is_empty() {
        return Ok(Done::default());
    }
    let rows = chosen
        .iter()
        .take(SHOWN)
        .map(|(place, record)| ls::row(*place, record, output))
        .collect();
    ls::print(rows, output)?;
    if chosen.len() > SHOWN {
        output.line(&output.dim(format!("… and {} more", chosen.len() - SHOWN)))?;
    }
    let plural = if chosen.len() == 1 {
        "message"
    } else {
        "messages"
    };
    let mut asked = Done::default();
    chosen.iter().for_each(|(_, record)| asked.note(record));
    let question = format!(
        "Drop {} {plural} of {} for good{}? [y/N] ",
        chosen.len(),
        visible::line(&parked.name()),
        asked.names()
    );
    if !agreed(&question).await? {
        return Ok(Done::default());
    }
    let mut done = Done::default();
    for (place, record) in &chosen {
        walk.act(deed, record).await.map_err(|fault| {
            fault.after(&format!(
                "{} messages before it were {}",
                done.count,
                deed.done()
            ))
        })?;
        done.note(record);
        if output.is_json() {
            let mut line = record::summary(*place, record);
            line[deed.done()] = json!(true);
            output.json_line(&line)?;
        }
    }
    Ok(done)
}

async fn agreed(question: &str) -> Result<bool, Fault> {
    let mut err = io::stderr().lock();
    err.write_all(question.as_bytes())?;
    err.flush()?;
    std::mem::drop(err);
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map(|_| answer)
    })
    .await;
    match answer {
        Ok(answer) => Ok(matches!(
            answer?.trim().to_ascii_lowercase().as_str(),
            "y" | "yes"
        )),
        Err(_) => Ok(false),
    }
}

/// How many are done with, and the first of them by name: `#2` alone says little once it is gone.
#[derive(Default)]
struct Done {
    count: u64,
    names: Vec<String>,
}

impl Done {
    fn note(&mut self, record: &Record) {
        self.count += 1;
        if self.names.len() < SHOWN {
            let message = record.message();
            self.names.push(match message.message_id() {
                Some(id) => visible::line(id).into_owned(),
                None => format!("(no id, fingerprint {})", record.fingerprint),
            });
        }
    }

    fn names(&self) -> String {
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
}

fn tell(done: &Done, choice: &Choice, deed: Deed, output: &Output) {
    let count = done.count;
    let plural = if count == 1 { "message" } else { "messages" };
    let would = if choice.dry_run { "would be " } else { "" };
    let target = match deed {
        Deed::Replay => format!(" to {}", visible::line(&choice.queue)),
        Deed::Drop => String::new(),
    };
    output.note(&format!(
        "{count} {plural} {would}{}{target}{}",
        deed.done(),
        done.names()
    ));
}
