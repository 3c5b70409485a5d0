//! `retryrmq parked replay` and `retryrmq parked drop`.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use retryrmq::{ErrorKind, Record};
use serde_json::json;

use super::{
    foreign, ls,
    order::Ordered,
    others::Others,
    place, record,
    selection::{Selection, Words, handle},
    stop::Stop,
    tally::{SHOWN, Tally},
};
use crate::{
    exit::Exit,
    fault::Fault,
    global::Global,
    output::{self, Output},
};
use retryrmq::visible;

/// Send parked messages back to the tail of their queue, their attempts counted from the start
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq parked replay orders order-17 '#3=7c1e09ab'
  retryrmq parked replay orders --fingerprint 3f2a9c01
  retryrmq parked replay orders --error timeout --since 2h
  retryrmq parked replay orders --all --limit 100 --dry-run
  retryrmq parked replay orders_error --dlq --all    each to its own queue

A message leaves the parking queue after its copy is confirmed: if we die in
between it may come twice, it is never lost. What the broker dead-lettered out
of another queue goes back to that queue, unless --to names one; so does what a
waiting queue of your own passed on, and --to orders sends it home instead.
Of another library's dead letters (--dlq) the original is replayed, without what
was written on it as it failed; where none says which queue, --to is needed.
The first replay to a queue takes two seconds: a younger one may forget it.
Of more than two thousand messages --limit takes the first of the queue, which
are not the oldest where they were looked at before; it says so.",
    override_usage = "retryrmq parked replay [OPTIONS] <QUEUE> <ID…|--error <TEXT>|--where <CONDITION>|…|--all>"
)]
pub(crate) struct Replay {
    #[command(flatten)]
    choice: Choice,

    /// Send them to this queue, whichever they came from
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
}

/// Drop parked messages for good
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq parked drop orders '#1=7c1e09ab'
  retryrmq parked drop orders --reason expired --yes
  retryrmq parked drop orders --where 'body.customer.id == 7'
  retryrmq parked drop orders --all --dry-run

Without --yes it asks, and needs a terminal for that. With --yes a place alone
(#1) is refused, because places move, and so are an id that several messages have,
the beginning of a fingerprint that several kinds of failure have, and --where on
bodies whose protobuf type nobody named (--proto-type). --limit takes the oldest of two thousand messages at most.",
    override_usage = "retryrmq parked drop [OPTIONS] <QUEUE> <ID…|--error <TEXT>|--where <CONDITION>|…|--all>"
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

    /// QUEUE is a dead-letter queue itself, whoever fills it: the broker, MassTransit, NServiceBus, Spring, EasyNetQ, Symfony, Celery
    #[arg(long)]
    dlq: bool,

    #[command(flatten)]
    which: Words,

    /// At most this many, the oldest of two thousand first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Only say which
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Debug)]
enum Deed {
    /// To the queue that was named, or each to its own.
    Replay(Option<String>),
    Drop,
}

impl Deed {
    fn done(&self) -> &'static str {
        match self {
            Self::Replay(_) => "replayed",
            Self::Drop => "dropped",
        }
    }

    /// Where this one goes.
    fn target<'a>(&'a self, record: &'a Record) -> Option<&'a str> {
        match self {
            Self::Replay(Some(to)) => Some(to),
            Self::Replay(None) => Some(&record.home),
            Self::Drop => None,
        }
    }
}

pub(super) async fn replay(
    options: Replay,
    global: &Global,
    output: &Output,
) -> Result<Exit, Fault> {
    if options.to.as_deref() == Some("") {
        return Err(Fault::usage("--to names no queue"));
    }
    let selection = options.choice.which.read()?;
    let deed = Deed::Replay(options.to);
    act(options.choice, selection, deed, true, global, output).await
}

pub(super) async fn drop(options: Drop, global: &Global, output: &Output) -> Result<Exit, Fault> {
    let sure = options.yes || options.choice.dry_run;
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !sure && !can_ask {
        return Err(Fault::usage(
            "dropped messages are gone for good: say --yes, or look first with --dry-run",
        ));
    }
    let selection = options.choice.which.read()?;
    if options.yes && !options.choice.dry_run {
        selection.refuse_guesses()?;
    }
    if let Some(place) = selection
        .bare_place()
        .filter(|_| options.yes && !options.choice.dry_run)
    {
        return Err(Fault::usage(format!(
            "{place} alone is no name for what is dropped for good, because places move: say {place}=MARK, as `parked ls` shows it, or the message's id"
        )));
    }
    act(options.choice, selection, Deed::Drop, sure, global, output).await
}

async fn act(
    choice: Choice,
    selection: Selection,
    deed: Deed,
    sure: bool,
    global: &Global,
    output: &Output,
) -> Result<Exit, Fault> {
    let stop = Stop::listen()?;
    let client = global.connect().await?;
    let parked = place::parked(&client, &choice.queue, choice.dlq);
    let Some(ordered) = Ordered::open(&parked, choice.dlq, stop).await? else {
        return Ok(Exit::Interrupted);
    };
    let parked = parked.name();
    let mut walk = Walk {
        // Every message that a name may mean has to be seen before one is gone for good.
        thorough: match deed {
            Deed::Drop => selection.is_named() || selection.has_part_of_a_fingerprint(),
            Deed::Replay(_) => selection.bare_place().is_some(),
        },
        ordered,
        selection,
        left: choice.limit.unwrap_or(u64::MAX),
        found: false,
    };
    let mut tally = Tally::default();
    let done = if let Err(fault) = oldest_are_known(&mut walk, &choice, &deed).await {
        Err(fault)
    } else if walk.thorough || !sure {
        all_at_once(&mut walk, &choice, &deed, sure, &mut tally, output).await
    } else {
        on_the_way(&mut walk, &choice, &deed, &mut tally, output).await
    };
    let Walk {
        ordered,
        selection,
        left,
        found,
        ..
    } = walk;
    let (others, stopped) = (Others::of(&ordered.browse), ordered.is_stopped());
    let closed = ordered.close().await;
    client.close().await;
    let summary = summary(&tally, &choice, &deed);
    done.and(closed).map_err(|fault| fault.after(&summary))?;
    // With a limit, or when we were stopped, the rest was not looked for.
    let missing = selection.missing().filter(|_| left > 0 && !stopped);
    let unmatched = missing.is_none() && !found && !stopped && selection.is_a_filter();
    selection.tell(output);
    if !unmatched && (missing.is_none() || tally.count > 0) {
        tell(&tally, &summary, &deed, output)?;
    }
    if stopped {
        return Ok(Exit::Interrupted);
    }
    if unmatched {
        return Err(others.or_not_found(selection.described(), &parked));
    }
    if let Some(missing) = missing {
        return Err(others.or_not_found(&missing, &parked));
    }
    if others.hold() && !selection.is_named() && left > 0 {
        return others.told(&parked, output);
    }
    Ok(Exit::Ok)
}

/// A walk past the chosen messages.
struct Walk {
    ordered: Ordered,
    selection: Selection,
    left: u64,
    /// Goes to the end, whatever has been found.
    thorough: bool,
    /// Any was chosen, whatever became of it.
    found: bool,
}

impl Walk {
    async fn next(&mut self) -> Result<Option<(usize, Record)>, Fault> {
        while (self.thorough || (self.left > 0 && !self.selection.ends_by(self.ordered.place)))
            && let Some((place, record)) = self.ordered.next().await?
        {
            if self.thorough
                && self
                    .selection
                    .may_take(place, &record, self.ordered.parking())
            {
                self.found = true;
                return Ok(Some((place, record)));
            }
            if !self.thorough && self.selection.takes(place, &record, self.ordered.parking()) {
                self.left -= 1;
                self.found = true;
                return Ok(Some((place, record)));
            }
        }
        Ok(None)
    }

    /// Does it, unless this is a rehearsal, and tells.
    async fn act(
        &mut self,
        (place, record): (usize, &Record),
        choice: &Choice,
        deed: &Deed,
        tally: &mut Tally,
        output: &Output,
    ) -> Result<(), Refused> {
        let target = deed.target(record);
        if let Some(target) = target {
            let letter = self.ordered.letter(record);
            if let Some(why) = foreign::obstacle(letter.as_ref(), target) {
                return Err(Refused::Unfit(Fault::not_found(format!(
                    "{}: {why}",
                    handle(place, record)
                ))));
            }
        }
        if !choice.dry_run {
            let done = self.ordered.settle(record, target).await;
            if !done.map_err(Refused::of)? {
                return Ok(());
            }
        }
        tally.note(place, record, target);
        if output.is_json() {
            let mut line = record::summary(place, record);
            line[deed.done()] = json!(!choice.dry_run);
            if let Some(target) = target {
                line["to"] = json!(target);
            }
            tally.print(|| output.json_line(&line));
        }
        Ok(())
    }
}

/// Why something was not done.
enum Refused {
    /// With this message, which others do not share.
    This(Fault),
    /// With this message, which goes nowhere. The fault names it.
    Unfit(Fault),
    All(Fault),
}

impl Refused {
    fn of(error: retryrmq::Error) -> Self {
        let alone = matches!(
            error.kind(),
            ErrorKind::Unroutable | ErrorKind::QueueNotFound | ErrorKind::TooLarge
        );
        if alone {
            Self::This(error.into())
        } else {
            Self::All(error.into())
        }
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::This(fault) | Refused::Unfit(fault) | Refused::All(fault) => fault,
        }
    }
}

/// Refuses to drop "the oldest" where nobody can tell which those are; a replay undoes itself when it fails again, and says so.
async fn oldest_are_known(walk: &mut Walk, choice: &Choice, deed: &Deed) -> Result<(), Fault> {
    let asks = choice.limit.is_some() && !walk.selection.is_named();
    if !asks || walk.ordered.is_of_time().await? || walk.ordered.is_stopped() {
        return Ok(());
    }
    let parked = visible::line(walk.ordered.parking());
    if let Deed::Replay(_) = deed {
        tracing::warn!(
            "--limit means the oldest first, which can be told of two thousand messages at most, and {parked} has more: it takes the first of the queue"
        );
        return Ok(());
    }
    Err(Fault::usage(format!(
        "--limit means the oldest first, which can be told of two thousand messages at most, and {parked} has more; nothing was dropped: leave --limit out, or name the messages as `parked ls` shows them"
    )))
}

/// Each message as it comes: nothing is held that is done with.
async fn on_the_way(
    walk: &mut Walk,
    choice: &Choice,
    deed: &Deed,
    tally: &mut Tally,
    output: &Output,
) -> Result<(), Fault> {
    let total = walk.ordered.browse.remaining();
    let progress = output.progress(Some(total.into()), "looked at");
    let mut rows = Vec::new();
    let done = async {
        let mut first = None;
        while let Some((place, record)) = walk.next().await? {
            let acted = walk
                .act((place, &record), choice, deed, tally, output)
                .await;
            match acted {
                Ok(()) if choice.dry_run && !output.is_json() => {
                    rows.push(ls::row(place, &record, output));
                }
                Ok(()) => {}
                // It stays where it is, and those behind it go on.
                Err(Refused::This(fault))
                    if !walk.selection.is_named() && matches!(deed, Deed::Replay(None)) =>
                {
                    walk.left = walk.left.saturating_add(1);
                    output.note(&format!("{}: {}", handle(place, &record), fault.sentence()));
                    first.get_or_insert(fault);
                }
                Err(Refused::Unfit(fault)) if !walk.selection.is_named() => {
                    walk.left = walk.left.saturating_add(1);
                    output.note(fault.sentence());
                    first.get_or_insert(fault);
                }
                Err(refused) => return Err(refused.into()),
            }
            progress.set_position(walk.ordered.place as u64);
        }
        first.map_or(Ok(()), Err)
    }
    .await;
    progress.finish_and_clear();
    if !rows.is_empty() {
        tally.print(|| ls::print(rows, output));
    }
    done
}

/// Holds exactly the messages that are meant, and looks at all others, before anything is done; asks, if it has to.
async fn all_at_once(
    walk: &mut Walk,
    choice: &Choice,
    deed: &Deed,
    sure: bool,
    tally: &mut Tally,
    output: &Output,
) -> Result<(), Fault> {
    let mut chosen = Vec::new();
    while let Some(next) = walk.next().await? {
        chosen.push(next);
    }
    if chosen.is_empty() || walk.ordered.is_stopped() {
        return Ok(());
    }
    if walk.thorough {
        let others = Others::of(&walk.ordered.browse);
        let for_good = matches!(deed, Deed::Drop) && sure && !choice.dry_run;
        if for_good && walk.selection.may_mean_more(&chosen) && others.hold() {
            return Err(others.may_hold_more(walk.ordered.parking()));
        }
        if for_good {
            walk.selection.refuse_several_kinds(&chosen)?;
        }
        walk.selection.refuse_two_meanings(&chosen, deed.done())?;
        chosen = walk.selection.settle(chosen, for_good)?;
        let most = usize::try_from(walk.left).unwrap_or(usize::MAX);
        chosen.truncate(most);
        walk.left -= chosen.len() as u64;
    }
    let is_missing = || walk.selection.missing().is_some() && walk.left > 0;
    if !sure && (is_missing() || !agreed(walk, choice, &chosen, output).await?) {
        return Ok(());
    }
    if choice.dry_run && !output.is_json() {
        let rows = chosen
            .iter()
            .map(|(place, record)| ls::row(*place, record, output));
        let rows = rows.collect();
        tally.print(|| ls::print(rows, output));
    }
    for (place, record) in &chosen {
        if walk.ordered.is_stopped() {
            break;
        }
        walk.act((*place, record), choice, deed, tally, output)
            .await?;
    }
    Ok(())
}

/// Shows what would be gone, and asks.
async fn agreed(
    walk: &mut Walk,
    choice: &Choice,
    chosen: &[(usize, Record)],
    output: &Output,
) -> Result<bool, Fault> {
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
    let mut asked = Tally::default();
    for (place, record) in chosen {
        asked.note(*place, record, None);
    }
    let mut err = io::stderr().lock();
    err.write_all(
        format!(
            "Drop {} {plural} parked for {} for good{}? [y/N] ",
            chosen.len(),
            visible::line(&choice.queue),
            asked.names()
        )
        .as_bytes(),
    )?;
    err.flush()?;
    std::mem::drop(err);
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    tokio::select! {
        answer = answer => match answer {
            Ok(answer) => Ok(matches!(
                answer?.trim().to_ascii_lowercase().as_str(),
                "y" | "yes"
            )),
            Err(_) => Ok(false),
        },
        () = walk.ordered.stopped() => Ok(false),
    }
}

fn summary(tally: &Tally, choice: &Choice, deed: &Deed) -> String {
    let count = tally.count;
    let plural = if count == 1 { "message" } else { "messages" };
    let would = if choice.dry_run { "would be " } else { "" };
    format!(
        "{count} {plural} {would}{}{}{}",
        deed.done(),
        tally.targets(),
        tally.names()
    )
}

/// Tells what was done, also where nobody read the lines that told of each.
fn tell(tally: &Tally, summary: &str, deed: &Deed, output: &Output) -> Result<(), Fault> {
    output.note(summary);
    match &tally.unheard {
        Some(fault) if fault.is_closed_pipe() => {
            if output.is_json() {
                output::err_line(&json!({ deed.done(): tally.count }).to_string());
            }
            Ok(())
        }
        Some(fault) => Err(Fault::failed(format!("{}; {summary}", fault.sentence()))),
        None => Ok(()),
    }
}
