//! `retryrmq parked replay`, `retryrmq parked drop` and `retryrmq parked restore`.

use std::time::Duration;

use clap::Args;
use retryrmq::{Record, parse_duration};
use retryrmq_operator::plural;

use super::{
    action::{Action, Selected},
    apply::{Apply, Progress, ReplayArgs},
    ls,
    notes::{Notes, OnHiddenHold},
    other_consumers::OtherConsumers,
    selection::Selection,
    sort::SortedWalk,
    summary::{SHOWN, Summary},
    target,
};
use crate::{
    error::CliError, exit::Exit, global::Global, output::Output, prompt, shutdown::Shutdown,
};
use retryrmq::terminal_escape;

/// Send parked messages back to the tail of their queue, their attempts counted from the start
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq parked replay orders order-17 '#3=7c1e09ab'
  retryrmq parked replay orders --fingerprint 3f2a9c01
  retryrmq parked replay orders --error timeout --since 2h
  retryrmq parked replay orders --all --limit 100 --dry-run
  retryrmq parked replay orders --all --canary 5 --rate 50/s --audit replays.jsonl
  retryrmq parked replay orders order-17 --edit
  retryrmq parked replay orders_error --dlq --all    each to its own queue

Up to 64 are sent at a time: these may come twice if this is killed. --canary
waits the whole --canary-wait: AMQP tells nobody that a message was handled, only
that it was parked again, or that more wait than before. Where they wait, the
management API says, or --retry. Where nobody can tell, the rest is not replayed,
unless --canary-unknown says `continue`.

A message leaves the parking queue after its copy is confirmed: if this is killed
in between the message may come twice, and it is never lost. What the broker
dead-lettered out of another queue goes back to that queue, unless --to names one;
so does what a waiting queue of your own passed on, and --to orders sends it home
instead.
Of another library's dead letters (--dlq) the original is replayed, without what
was written on it as it failed; where none says which queue, --to is needed.
The first replay to a queue takes two seconds: a younger queue may forget it.
--where on bodies whose format or protobuf type is a guess is refused, as of `drop`.
A broker takes back what is held for 30 minutes (consumer_timeout): a --rate so
slow ends then (exit code 1), and the rest is parked as before: run it again.
Of more than two thousand messages --limit takes the first of the queue, which
are not the oldest where they were looked at before; it says so.",
    override_usage = "retryrmq parked replay [OPTIONS] <QUEUE> <ID…|--error <TEXT>|--where <CONDITION>|…|--all>"
)]
pub(crate) struct Replay {
    #[command(flatten)]
    selected: Selected,

    /// Send them to this queue, wherever they came from
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,

    #[command(flatten)]
    args: ReplayArgs,
}

/// Drop parked messages
///
/// They are kept for a day in QUEUE.parked.dropped: `parked restore` parks them again. Then the broker deletes them.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq parked drop orders '#1=7c1e09ab'
  retryrmq parked drop orders --reason expired --yes
  retryrmq parked drop orders --where 'body.customer.id == 7'
  retryrmq parked drop orders --all --dry-run
  retryrmq parked drop orders --error password --for-good

The first drop makes QUEUE.parked.dropped, and --keep says how long that queue
keeps a message (x-message-ttl). Later drops use it as it is: to keep them longer,
delete it. A message leaves the parking queue after its copy there is confirmed.
Without --yes it asks, and needs a terminal for that. With --yes a place alone
(#1) is refused, because places move, and so are an id that several messages have,
the beginning of a fingerprint that several kinds of failure have, and --where on
bodies whose format or protobuf type is a guess (--proto, --type). --limit takes the oldest of two thousand messages at most.",
    override_usage = "retryrmq parked drop [OPTIONS] <QUEUE> <ID…|--error <TEXT>|--where <CONDITION>|…|--all>"
)]
pub(crate) struct Drop {
    #[command(flatten)]
    selected: Selected,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// How long the broker keeps them, if this is the first drop (default: 1d)
    #[arg(long, value_name = "DURATION")]
    keep: Option<String>,

    /// Keep no copy
    #[arg(long, conflicts_with = "keep")]
    for_good: bool,
}

/// Park dropped messages again
///
/// They are those in QUEUE.parked.dropped, where they are kept for a day.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq parked restore orders --all
  retryrmq parked restore orders order-17
  retryrmq parked ls orders.parked.dropped --dlq    what can be restored

Each message is parked as it was, with its record, at the tail of the parking
queue. It leaves the queue of dropped messages after that is confirmed.",
    override_usage = "retryrmq parked restore [OPTIONS] <QUEUE> <ID…|--error <TEXT>|--where <CONDITION>|…|--all>"
)]
pub(crate) struct Restore {
    #[command(flatten)]
    selected: Selected,
}

pub(super) async fn replay(
    options: Replay,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    if options
        .to
        .as_ref()
        .is_some_and(|to| to.is_empty() || to.len() > 255)
    {
        return Err(CliError::usage(
            "--to names no queue: a name has 1 to 255 bytes",
        ));
    }
    let mut selection = options.selected.which.read()?;
    if !options.selected.dry_run {
        selection.refuse_guesses()?;
    }
    let action = Action::Replay(options.to);
    act(
        options.selected,
        selection,
        (action, options.args),
        true,
        global,
        output,
    )
    .await
}

pub(super) async fn drop(
    options: Drop,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let sure = options.yes || options.selected.dry_run;
    if !sure && !prompt::can_ask() {
        return Err(CliError::usage(
            "this drops messages: pass --yes, or look first with --dry-run",
        ));
    }
    let mut selection = options.selected.which.read()?;
    if options.yes && !options.selected.dry_run {
        selection.refuse_guesses()?;
    }
    if let Some(place) = selection
        .bare_place()
        .filter(|_| options.yes && !options.selected.dry_run)
    {
        return Err(CliError::usage(format!(
            "{place} alone does not name what is dropped, because places move: write {place}=MARK, as `parked ls` shows it, or the message's id"
        )));
    }
    let text = options.keep.as_deref();
    let keep = parse_duration(text.unwrap_or("1d"))
        .ok()
        .filter(|keep| (SECOND..=LONGEST_KEPT).contains(keep))
        .ok_or_else(|| CliError::usage("--keep is a time such as 1d or 12h, from 1s to 365d"))?;
    // What is in the queue of dropped messages already is dropped from there for good.
    let was_dropped =
        options.selected.dlq && target::before_the_drop(&options.selected.queue).is_some();
    if was_dropped && options.keep.is_some() {
        return Err(CliError::usage(
            "what is in the queue of dropped messages is dropped from there for good: leave --keep out",
        ));
    }
    let keep = (!options.for_good && !was_dropped).then_some(keep);
    let args = ReplayArgs::of_drop(options.keep.is_some());
    let action = (Action::Drop(keep), args);
    act(options.selected, selection, action, sure, global, output).await
}

pub(super) async fn restore(
    options: Restore,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    // Whoever looked at that queue with --dlq names it, which does not say from which queue its messages were dropped.
    if let Some(work) = target::before_the_drop(&options.selected.queue) {
        let work = terminal_escape::line(work);
        return Err(CliError::usage(format!(
            "name the queue and not that of its dropped messages: `parked restore {work}`, or `parked restore {work} --dlq` if they were dropped from the dead-letter queue {work}"
        )));
    }
    let selection = options.selected.which.read()?;
    let action = (Action::Restore, ReplayArgs::default());
    act(options.selected, selection, action, true, global, output).await
}

async fn act(
    selected: Selected,
    selection: Selection,
    (action, args): (Action, ReplayArgs),
    sure: bool,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    let parked = match action {
        Action::Restore => target::parked(&client, &selected.queue, selected.dlq).dropped(),
        _ => target::parked(&client, &selected.queue, selected.dlq),
    };
    // What somebody dropped is not on hold any more.
    let is_restore = matches!(action, Action::Restore);
    let notes = if is_restore || selection.is_named() || selection.wants_a_fingerprint() {
        Some(Notes::default())
    } else {
        let work = target::family(&selected.queue, selected.dlq);
        let unseen = match action {
            Action::Drop(_) if !selected.dry_run => OnHiddenHold::Refuses,
            _ => OnHiddenHold::IsTold,
        };
        Notes::unless_cut(&shutdown, &client, work, unseen).await?
    };
    let Some(notes) = notes else {
        return Ok(Exit::Interrupted);
    };
    let mut apply = Apply::prepare(
        (&client, &parked),
        &shutdown,
        &selected,
        &action,
        &args,
        (global, output),
    )
    .await?;
    let Some(ordered) = SortedWalk::open(&parked, selected.dlq || is_restore, shutdown).await?
    else {
        return Ok(Exit::Interrupted);
    };
    let (total, name) = (ordered.browse.remaining(), parked.name());
    let mut walk = Walk {
        // Every message that a name may mean has to be seen before one is gone for good.
        thorough: match action {
            Action::Drop(_) => selection.is_named() || selection.has_part_of_a_fingerprint(),
            Action::Replay(_) | Action::Restore => selection.bare_place().is_some(),
        },
        ordered,
        selection,
        left: selected.limit.unwrap_or(u64::MAX),
        notes,
        spared: 0,
        found: false,
    };
    let done = if let Err(cli_error) = oldest_are_known(&mut walk, &selected, &action).await {
        Err(cli_error)
    } else if walk.thorough || !sure {
        all_at_once(&mut walk, &selected, &action, sure, &mut apply, output).await
    } else {
        on_the_way(&mut walk, &mut apply, output).await
    };
    let Walk {
        ordered,
        selection,
        left,
        spared,
        found,
        ..
    } = walk;
    let (others, stopped) = (OtherConsumers::of(&ordered.browse), ordered.is_stopped());
    let done = ordered.close_after(done).await;
    let totals = std::mem::take(&mut apply.totals);
    client.close().await;
    let mut summary = summary(&totals, &selected, &action, apply.kept_in());
    if spared > 0 {
        summary.push_str(&format!(
            "; {spared} on hold were left alone (`parked ls --group` says why; name them to act on them)"
        ));
    }
    if stopped {
        let left = u64::from(total).saturating_sub(totals.count);
        summary.push_str(&format!(
            "; stopped, {left} remain in {}",
            terminal_escape::line(&name)
        ));
    }
    done.map_err(|cli_error| cli_error.after(&summary))?;
    // With a limit, or when we were stopped, the rest was not looked for.
    let missing = selection.missing().filter(|_| left > 0 && !stopped);
    let unmatched = missing.is_none() && !found && !stopped && selection.is_a_filter();
    selection.report_unevaluated(output);
    if !unmatched && (missing.is_none() || totals.count > 0) {
        print_summary(totals, &summary, &selected, &action, output)?;
    }
    if stopped {
        return Ok(Exit::Interrupted);
    }
    if unmatched {
        return Err(others.or_not_found(selection.described(), &name));
    }
    if let Some(missing) = missing {
        return Err(others.or_not_found(&missing, &name));
    }
    if others.hold() && !selection.is_named() && left > 0 {
        return others.report(&name, output);
    }
    Ok(Exit::Ok)
}

/// A walk past the chosen messages.
struct Walk {
    ordered: SortedWalk,
    selection: Selection,
    left: u64,
    /// Goes to the end, whatever has been found.
    thorough: bool,
    /// What is on hold, unless the messages are named.
    notes: Notes,
    /// How many were passed over because of that.
    spared: u64,
    /// Any was chosen, whatever became of it.
    found: bool,
}

impl Walk {
    async fn next(&mut self) -> Result<Option<(usize, Record)>, CliError> {
        while (self.thorough || (self.left > 0 && !self.selection.ends_by(self.ordered.place)))
            && let Some((place, record)) = self.ordered.next().await?
        {
            if self.thorough
                && !self.notes.holds(&record.fingerprint)
                && self
                    .selection
                    .may_take(place, &record, self.ordered.parking())
            {
                self.found = true;
                return Ok(Some((place, record)));
            }
            if !self.thorough && self.selection.takes(place, &record, self.ordered.parking()) {
                self.found = true;
                if self.notes.holds(&record.fingerprint) {
                    self.spared += 1;
                    continue;
                }
                self.left -= 1;
                self.found = true;
                return Ok(Some((place, record)));
            }
        }
        Ok(None)
    }
}

/// Refuses to drop "the oldest" where nobody can tell which those are; a replay undoes itself when it fails again, and says so.
async fn oldest_are_known(
    walk: &mut Walk,
    selected: &Selected,
    action: &Action,
) -> Result<(), CliError> {
    let asks = selected.limit.is_some() && !walk.selection.is_named();
    if !asks || walk.ordered.is_of_time().await? || walk.ordered.is_stopped() {
        return Ok(());
    }
    let parked = terminal_escape::line(walk.ordered.parking());
    if matches!(action, Action::Replay(_) | Action::Restore) {
        tracing::warn!(
            "--limit means the oldest first, which can be told of two thousand messages at most, and {parked} has more: it takes the first of the queue"
        );
        return Ok(());
    }
    Err(CliError::usage(format!(
        "--limit means the oldest first, which can be told of two thousand messages at most, and {parked} has more; nothing was dropped: leave --limit out, or name the messages as `parked ls` shows them"
    )))
}

/// Each message as it comes: nothing is held that is done with.
async fn on_the_way(
    walk: &mut Walk,
    apply: &mut Apply<'_>,
    output: &Output,
) -> Result<(), CliError> {
    let total = walk.ordered.browse.remaining();
    let progress = output.progress(Some(total.into()), "looked at");
    apply.named = walk.selection.is_named();
    let done = async {
        loop {
            while let Some((place, record)) = walk.next().await? {
                if apply.take(&mut walk.ordered, place, record).await? == Progress::End {
                    return Ok(());
                }
                progress.set_position(walk.ordered.place as u64);
            }
            apply.flush(&mut walk.ordered).await?;
            // A limit is for those that go.
            match apply.take_refused() {
                0 => return Ok(()),
                refused => walk.left = walk.left.saturating_add(refused),
            }
        }
    }
    .await;
    progress.finish_and_clear();
    apply.show();
    done.and_then(|()| apply.cli_error.take().map_or(Ok(()), Err))
}

/// Holds exactly the messages that are meant, and looks at all others, before anything is done; asks, if it has to.
async fn all_at_once(
    walk: &mut Walk,
    selected: &Selected,
    action: &Action,
    sure: bool,
    apply: &mut Apply<'_>,
    output: &Output,
) -> Result<(), CliError> {
    let mut chosen = Vec::new();
    // Nobody is shown a body any more, and there may be very many.
    let lean = matches!(action, Action::Drop(None)) && !output.is_json();
    let mut bytes = 0;
    while let Some((place, record)) = walk.next().await? {
        bytes += record.message().body().len();
        if bytes > MOST_HELD && matches!(action, Action::Drop(Some(_))) && !selected.dry_run {
            return Err(CliError::usage(
                "the selected messages have more than 256 MiB, too much to hold while you answer; nothing was dropped: check them with --dry-run, then pass --yes; or select fewer messages, or pass --for-good",
            ));
        }
        chosen.push(match lean {
            true => (place, record.without_body()),
            false => (place, record),
        });
    }
    if chosen.is_empty() || walk.ordered.is_stopped() {
        return Ok(());
    }
    if walk.thorough {
        let others = OtherConsumers::of(&walk.ordered.browse);
        let for_good = matches!(action, Action::Drop(_)) && sure && !selected.dry_run;
        if for_good && walk.selection.may_mean_more(&chosen) && others.hold() {
            return Err(others.may_hold_more(walk.ordered.parking()));
        }
        if for_good {
            walk.selection.refuse_several_kinds(&chosen)?;
        }
        walk.selection.refuse_two_meanings(&chosen, action.done())?;
        chosen = walk.selection.settle(chosen, for_good)?;
        let most = usize::try_from(walk.left).unwrap_or(usize::MAX);
        chosen.truncate(most);
        walk.left -= chosen.len() as u64;
    }
    let is_missing = || walk.selection.missing().is_some() && walk.left > 0;
    if !sure && (is_missing() || !agreed(walk, selected, action, &chosen, output).await?) {
        return Ok(());
    }
    let done = async {
        for (place, record) in chosen {
            if apply.take(&mut walk.ordered, place, record).await? == Progress::End {
                return Ok(());
            }
        }
        apply.flush(&mut walk.ordered).await
    }
    .await;
    apply.show();
    done
}

/// Shows what would be gone, and asks.
async fn agreed(
    walk: &mut Walk,
    selected: &Selected,
    action: &Action,
    chosen: &[(usize, Record)],
    output: &Output,
) -> Result<bool, CliError> {
    let rows = chosen
        .iter()
        .take(SHOWN)
        .map(|(place, record)| ls::row(*place, record, output))
        .collect();
    ls::print(rows, output)?;
    if chosen.len() > SHOWN {
        output.line(&output.dim(format!("… and {} more", chosen.len() - SHOWN)))?;
    }
    let mut asked = Summary::default();
    for (place, record) in chosen {
        asked.note(*place, record, None);
    }
    let question = format!(
        "Drop {} parked for {}{}{}?",
        plural::messages(chosen.len() as u64),
        terminal_escape::line(&selected.queue),
        if matches!(action, Action::Drop(None)) {
            " for good"
        } else {
            ""
        },
        asked.names()
    );
    tokio::select! {
        agreed = prompt::agrees(&question) => agreed,
        () = walk.ordered.stopped() => Ok(false),
    }
}

fn summary(
    totals: &Summary,
    selected: &Selected,
    action: &Action,
    kept_in: Option<&str>,
) -> String {
    let count = totals.count;
    let would = if selected.dry_run { "would be " } else { "" };
    let queue = kept_in.map(terminal_escape::line);
    let (place, kept) = match (action, queue) {
        (Action::Restore, Some(queue)) => (format!(" to {queue}"), String::new()),
        (_, Some(queue)) if count > 0 && !selected.dry_run => (
            String::new(),
            format!(
                "; kept in {queue}: `parked restore{}` parks them again",
                if selected.dlq { " --dlq" } else { "" }
            ),
        ),
        _ => (totals.targets(), String::new()),
    };
    format!(
        "{} {would}{}{place}{}{kept}",
        plural::messages(count),
        action.done(),
        totals.names()
    )
}

/// The most bytes of bodies held while a question waits for its answer.
const MOST_HELD: usize = 256 * 1024 * 1024;
/// The longest that dropped messages are kept.
const LONGEST_KEPT: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const SECOND: Duration = Duration::from_secs(1);

/// Tells what was done, also where nobody read the lines that told of each.
fn print_summary(
    totals: Summary,
    summary: &str,
    selected: &Selected,
    action: &Action,
    output: &Output,
) -> Result<(), CliError> {
    output.note(summary);
    let done = (action.done(), totals.count);
    totals.printer.end(done, selected.dry_run, summary, output)
}
