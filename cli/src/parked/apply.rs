//! What is done with each chosen message: waves of them are sent, confirmed, written down, and only then acknowledged.

use std::{sync::Arc, time::Duration};

use clap::Args;
use retryrmq::{Client, ErrorKind, Parked, Record, Resend, parse_duration};
use retryrmq_operator::plural;
use serde_json::{Value, json};

use super::{
    action::{Action, Selected},
    audit::Audit,
    canary::{Canary, CanaryResult, WaitingQueues},
    edit::Editor,
    foreign, ls,
    message_ref::handle,
    rate_limit::{Rate, RateLimiter},
    record,
    sort::SortedWalk,
    summary::Summary,
};
use crate::{
    error::CliError,
    global::Global,
    management::Management,
    output::{Output, TableCell},
    shutdown::Shutdown,
};
use retryrmq::terminal_escape;

/// How messages are replayed.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ReplayArgs {
    /// No faster than this: 50/s, 300/m, 1000/h
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Replay this many first, wait for --canary-wait, and go on only if none of them was parked again and none waits for a retry
    #[arg(long, value_name = "N", conflicts_with = "dry_run", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    canary: Option<u64>,

    /// How long to watch the --canary; longer than a handler and its first retries take
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        requires = "canary"
    )]
    canary_wait: String,

    /// What to do where nobody can tell whether the --canary lives: the management API cannot be asked for the waiting queues of its target, failures
    /// wait in the target itself (strategy native), or a service runs that may keep them in Redis
    #[arg(
        long,
        value_name = "ACTION",
        default_value = "stop",
        requires = "canary"
    )]
    canary_unknown: OnUnknown,

    /// The policy by which the target's consumers retry, for --canary: its waiting queues are watched, and the management API is not asked. Not for
    /// the strategy native, and not where a service retries
    #[arg(long, value_name = "POLICY", requires = "canary")]
    retry: Option<String>,

    #[command(flatten)]
    management: Management,

    /// Edit each message in $VISUAL or $EDITOR before it goes: body, headers and properties. A message that is left unchanged stays
    /// parked
    #[arg(long, conflicts_with_all = ["dry_run", "canary"], requires = "which")]
    edit: bool,

    /// Keep the count of retries: a message that had spent all of them gets one attempt
    #[arg(long)]
    keep_count: bool,

    /// Whether `drop --keep` was given.
    #[arg(skip)]
    is_keep_said: bool,
}

/// What `--canary-unknown` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum OnUnknown {
    /// Replay nothing more
    #[default]
    Stop,
    /// Replay the rest
    Continue,
}

/// Longer than this a broker does not let a message be held: its `consumer_timeout` is 30 minutes.
const LONGEST_WAIT: Duration = Duration::from_secs(20 * 60);

impl ReplayArgs {
    pub(super) fn of_drop(is_keep_said: bool) -> Self {
        Self {
            is_keep_said,
            ..Self::default()
        }
    }

    fn waiting_queues(&self, global: &Global) -> Result<WaitingQueues, CliError> {
        match &self.retry {
            Some(policy) => {
                let policy = policy.parse().map_err(|why: retryrmq::Error| {
                    CliError::usage(format!(
                        "--retry: {}",
                        terminal_escape::line(&why.to_string())
                    ))
                })?;
                Ok(WaitingQueues::Of(policy))
            }
            None => Ok(WaitingQueues::Listed(self.management.open(global)?)),
        }
    }

    fn canary_wait(&self) -> Result<Duration, CliError> {
        let wait = parse_duration(&self.canary_wait)
            .map_err(|why| CliError::usage(format!("--canary-wait: {why}")))?;
        if wait > LONGEST_WAIT {
            return Err(CliError::usage(
                "--canary-wait is 20m at most: what is parked is held meanwhile, and a broker takes it back after 30 minutes",
            ));
        }
        Ok(wait)
    }
}

/// Whether there is more to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    On,
    /// The canary was not in time.
    End,
}

/// The first ones, which go alone.
struct CanaryMessages {
    count: usize,
    canary_wait: Duration,
    waiting_queues: Arc<WaitingQueues>,
    on_unknown: OnUnknown,
}

/// What is being done.
pub(super) struct Apply<'a> {
    client: &'a Client,
    parked: &'a Parked,
    selected: &'a Selected,
    action: &'a Action,
    output: &'a Output,
    pub(super) totals: Summary,
    audit: Option<Audit>,
    rate_limiter: RateLimiter,
    editor: Option<Editor>,
    keep_count: bool,
    /// The queue that copies go to with their records, when there are any.
    kept_in: Option<String>,
    /// Whether that queue has to be made first, for how long it keeps a message.
    made_with: Option<Duration>,
    is_keep_said: bool,
    first: Option<CanaryMessages>,
    /// The messages were chosen one by one: one that cannot go ends it.
    pub(super) named: bool,
    batch: Vec<(usize, Record, Resend)>,
    rows: Vec<Vec<TableCell>>,
    /// How many could not go since somebody asked, and why the first of all could not.
    refused: u64,
    pub(super) cli_error: Option<CliError>,
}

impl<'a> Apply<'a> {
    /// Nothing has happened when this fails.
    pub(super) async fn prepare(
        (client, parked): (&'a Client, &'a Parked),
        shutdown: &Shutdown,
        selected: &'a Selected,
        action: &'a Action,
        args: &ReplayArgs,
        (global, output): (&Global, &'a Output),
    ) -> Result<Self, CliError> {
        let first = args.canary.map(|count| {
            Ok::<_, CliError>(CanaryMessages {
                count: usize::try_from(count).unwrap_or(usize::MAX),
                canary_wait: args.canary_wait()?,
                waiting_queues: Arc::new(args.waiting_queues(global)?),
                on_unknown: args.canary_unknown,
            })
        });
        let editor = args.edit.then(Editor::of_environment);
        let (first, editor) = (first.transpose()?, editor.transpose()?);
        let log = (!selected.dry_run).then_some(&selected.log);
        let (kept_in, made_with) = match action {
            Action::Replay(_) | Action::Drop(None) => (None, None),
            Action::Drop(keep) => (Some(parked.dropped().name()), *keep),
            Action::Restore => (Some(parked.parking()), None),
        };
        Ok(Self {
            client,
            parked,
            selected,
            action,
            output,
            totals: Summary::default(),
            audit: Audit::open(log, (client, shutdown), action.name(), &selected.queue).await?,
            rate_limiter: RateLimiter::of(args.rate),
            editor,
            keep_count: args.keep_count,
            kept_in,
            made_with,
            is_keep_said: args.is_keep_said,
            first,
            named: true,
            batch: Vec::new(),
            rows: Vec::new(),
            refused: 0,
            cli_error: None,
        })
    }

    /// Takes a chosen message; it is done with when its wave is full, or with [`flush`](Self::flush).
    pub(super) async fn take(
        &mut self,
        ordered: &mut SortedWalk,
        place: usize,
        record: Record,
    ) -> Result<Progress, CliError> {
        let mut resend = Resend::of(&record).keep_count(self.keep_count);
        if let Action::Replay(to) = self.action {
            if let Some(to) = to {
                resend = resend.to(to);
            }
            let letter = ordered.letter(&record);
            let of_it = |why: String| format!("{}: {why}", handle(place, &record));
            let cli_error = match resend.obstacle() {
                Some(why) => Some(CliError::failed(of_it(why))),
                None => foreign::obstacle(letter.as_ref(), resend.target())
                    .map(|why| CliError::not_found(of_it(why))),
            };
            if let Some(cli_error) = cli_error {
                return self
                    .unfit(ordered, (place, &record, &resend), cli_error)
                    .await;
            }
            if let Some(letter) = &letter {
                if self.first.is_some() && !foreign::keeps_marks(letter) {
                    return Err(CliError::usage(format!(
                        "{}: --canary could not tell whether it is given up again, because {} writes headers of its own then; nothing was replayed: leave --canary out, and take --limit for the first ones",
                        handle(place, &record),
                        letter.library
                    )));
                }
                resend = foreign::instead(resend, letter, self.keep_count);
            }
        }
        if self.selected.dry_run {
            self.rehearse(ordered, place, &record, &resend)?;
            return Ok(Progress::On);
        }
        if let Some(editor) = &self.editor {
            let edited = editor.edit(place, &record, &resend, self.output);
            match edited.await? {
                Some((content, saved)) => {
                    resend = resend.content(content.properties, content.body);
                    self.batch.push((place, record, resend));
                    let done = self.flush(ordered).await;
                    return done
                        .map(|()| Progress::On)
                        .map_err(|cli_error| saved.keep(cli_error));
                }
                None => {
                    self.print(place, &record, &resend, "unchanged", None);
                    return Ok(Progress::On);
                }
            }
        }
        self.batch.push((place, record, resend));
        let most = match &self.first {
            Some(first) => first.count,
            None => self.rate_limiter.batch(),
        };
        if self.batch.len() < most {
            return Ok(Progress::On);
        }
        let Some(first) = self.first.take() else {
            return self.flush(ordered).await.map(|()| Progress::On);
        };
        self.canary(ordered, &first).await
    }

    /// Does what was taken and is not done yet.
    pub(super) async fn flush(&mut self, ordered: &mut SortedWalk) -> Result<(), CliError> {
        let mut batch = std::mem::take(&mut self.batch);
        while !batch.is_empty() && !ordered.is_stopped() {
            let rest = batch.split_off(batch.len().min(self.rate_limiter.batch()));
            let now = std::mem::replace(&mut batch, rest);
            tokio::select! {
                () = self.rate_limiter.wait(now.len()) => {}
                () = ordered.stopped() => break,
            }
            self.settle(ordered, now).await?;
        }
        Ok(())
    }

    /// Prints the table of a rehearsal.
    pub(super) fn show(&mut self) {
        if !self.rows.is_empty() {
            let rows = std::mem::take(&mut self.rows);
            self.totals.print(|| ls::print(rows, self.output));
        }
    }

    /// How many could not go since this was asked.
    pub(super) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// A message that goes nowhere stays where it is, and those behind it go on; unless it was named, which ends it with those
    /// before it done.
    async fn unfit(
        &mut self,
        ordered: &mut SortedWalk,
        (place, record, resend): (usize, &Record, &Resend),
        cli_error: CliError,
    ) -> Result<Progress, CliError> {
        if self.named {
            self.flush(ordered).await?;
        }
        let outcome = if self.selected.dry_run {
            "would be refused"
        } else {
            "refused"
        };
        self.print(place, record, resend, outcome, Some(&cli_error));
        if self.named {
            return Err(cli_error);
        }
        self.refused += 1;
        self.output.note(cli_error.sentence());
        self.cli_error.get_or_insert(cli_error);
        Ok(Progress::On)
    }

    /// Says what would become of a message, as the action would: what would be refused ends it where the action would end.
    fn rehearse(
        &mut self,
        ordered: &SortedWalk,
        place: usize,
        record: &Record,
        resend: &Resend,
    ) -> Result<(), CliError> {
        let asked = match (self.action, &self.kept_in) {
            (Action::Replay(_), _) => ordered.browse.would_send(resend),
            (_, Some(_)) => ordered.browse.would_copy(record),
            (_, None) => Ok(()),
        };
        if let Err(error) = asked {
            return self.refuse((place, record, resend), error, "would be refused", false);
        }
        self.totals.note(place, record, self.target(resend));
        if self.output.is_json() {
            let mut line = self.line(place, record);
            line[self.action.done()] = json!(false);
            if let Some(target) = self.target(resend) {
                line["to"] = json!(target);
            }
            line["outcome"] = json!(format!("would be {}", self.action.done()));
            self.totals.print(|| self.output.json_line(&line));
        } else {
            self.rows.push(ls::row(place, record, self.output));
        }
        Ok(())
    }

    /// Tells of a message that is refused, which stays where it is. Those behind it go on if it alone is concerned.
    ///
    /// # Errors
    /// Why, if it ends the others, too. `begun`: some have gone, and to say that an option made no sense, and nothing was done, would be
    /// wrong.
    fn refuse(
        &mut self,
        (place, record, resend): (usize, &Record, &Resend),
        error: retryrmq::Error,
        outcome: &str,
        some_are_sent: bool,
    ) -> Result<(), CliError> {
        let alone = match self.action {
            Action::Replay(Some(_)) => false,
            // Where there is no queue to copy to, none of them can go.
            Action::Drop(_) | Action::Restore if error.kind() == ErrorKind::Unroutable => false,
            Action::Replay(None) | Action::Drop(_) | Action::Restore => {
                concerns_one(&error) && !self.named
            }
        };
        let mut why = CliError::from(error).on_the_way();
        if matches!(self.action, Action::Drop(_)) {
            why = why.after("it is still parked: --for-good drops it without keeping a copy");
        }
        if alone || some_are_sent {
            why = why.of_one();
        }
        self.print(place, record, resend, outcome, Some(&why));
        if !alone {
            return Err(why);
        }
        self.refused += 1;
        self.output
            .note(&format!("{}: {}", handle(place, record), why.sentence()));
        self.cli_error.get_or_insert(why);
        Ok(())
    }

    /// The queue with the copies of what was dropped or restored.
    pub(super) fn kept_in(&self) -> Option<&str> {
        self.kept_in.as_deref()
    }

    /// The queue that it goes to, where there is one.
    fn target<'r>(&self, resend: &'r Resend) -> Option<&'r str> {
        let target = matches!(self.action, Action::Replay(_)).then(|| resend.target());
        target.filter(|target| !target.is_empty())
    }

    /// A message as `ls` lists it.
    fn line(&self, place: usize, record: &Record) -> Value {
        let letter = foreign::of(record, &self.parked.name());
        record::summary(place, record, letter.as_ref())
    }

    /// One outcome for each message.
    fn print(
        &mut self,
        place: usize,
        record: &Record,
        resend: &Resend,
        outcome: &str,
        cli_error: Option<&CliError>,
    ) {
        if !self.output.is_json() {
            return;
        }
        let mut line = self.line(place, record);
        line[self.action.done()] = json!(outcome == self.action.done());
        line["outcome"] = json!(outcome);
        if let Some(target) = self.target(resend) {
            line["to"] = json!(target);
        }
        if resend.is_edited() {
            line["edited"] = json!(true);
        }
        if let Some(cli_error) = cli_error {
            line["error_of_replay"] = json!(cli_error.sentence());
            line["code"] = json!(cli_error.code());
        }
        self.totals.print(|| self.output.json_line(&line));
    }

    /// Sends a wave, writes it down, and lets go of what was sent.
    async fn settle(
        &mut self,
        ordered: &mut SortedWalk,
        batch: Vec<(usize, Record, Resend)>,
    ) -> Result<(), CliError> {
        let answers = match (self.action, &self.kept_in) {
            (Action::Replay(_), _) => {
                let resends: Vec<_> = batch.iter().map(|(_, _, resend)| resend.clone()).collect();
                ordered.send(&resends).await
            }
            (_, None) => Some(batch.iter().map(|_| Ok(())).collect()),
            (_, Some(queue)) => {
                if let Some(keep) = self.made_with.take() {
                    let made = self.parked.make_dropped(keep).await;
                    let made = made.map_err(|why| CliError::from(why).after(NOTHING_KEPT))?;
                    if !made && self.is_keep_said {
                        tracing::warn!(
                            "{} exists, and keeps messages as long as it always did: --keep changes nothing; to change it, delete that queue",
                            terminal_escape::line(queue)
                        );
                    }
                }
                let records: Vec<_> = batch.iter().map(|(_, record, _)| record.clone()).collect();
                ordered.copy_to(&records, queue).await
            }
        };
        let Some(answers) = answers else {
            return Ok(()); // cut short: what became of it is not known
        };
        let sent = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
        self.write_down(&batch, &answers, sent).await?;
        let (mut cli_error, mut gone) = (None, 0);
        for ((place, record, resend), answer) in batch.into_iter().zip(answers) {
            let Err(error) = answer else {
                match ordered.drop(&record).await {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    Err(error) => return Err(self.doubled(error, sent - gone, &resend)),
                }
                gone += 1;
                let target = self.target(&resend).map(str::to_owned);
                self.totals.note(place, &record, target.as_deref());
                self.print(place, &record, &resend, self.action.done(), None);
                continue;
            };
            let some_are_sent = sent > 0 || self.totals.count > 0;
            if let Err(why) =
                self.refuse((place, &record, &resend), error, "refused", some_are_sent)
            {
                cli_error.get_or_insert(why);
            }
        }
        cli_error.map_or(Ok(()), Err)
    }

    async fn write_down(
        &mut self,
        batch: &[(usize, Record, Resend)],
        answers: &[retryrmq::Result<()>],
        sent: u64,
    ) -> Result<(), CliError> {
        let Some(audit) = &mut self.audit else {
            return Ok(());
        };
        let is_replay = matches!(self.action, Action::Replay(_));
        let lines: Vec<_> = batch
            .iter()
            .zip(answers)
            .filter(|(_, answer)| answer.is_ok())
            .map(|((_, record, resend), _)| {
                let target = is_replay.then(|| resend.target());
                let mut line = audit.of(self.action.done(), record, target);
                if resend.is_edited() {
                    line["edited"] = json!(true);
                }
                line
            })
            .collect();
        let done = match (is_replay, &self.kept_in) {
            (true, _) => format!(
                "{} replayed that it does not name, and parked as well",
                plural::messages(sent)
            ),
            (false, Some(queue)) => format!(
                "what it does not name was not {}; {sent} copies of it are in {}",
                self.action.done(),
                terminal_escape::line(queue)
            ),
            (false, None) => "what it does not name was not dropped".to_owned(),
        };
        audit.append(&lines, &done).await
    }

    /// The walk was over when copies had gone.
    fn doubled(&self, error: retryrmq::Error, count: u64, resend: &Resend) -> CliError {
        let cli_error = CliError::from(error);
        let to = match (self.action, &self.kept_in) {
            (Action::Replay(_), _) => resend.target(),
            (_, Some(queue)) => queue,
            (_, None) => return cli_error,
        };
        let messages = plural::messages(count);
        let were = plural::word(count, "was", "were");
        let they = plural::word(count, "it is", "they are");
        cli_error.after(&format!(
            "{messages} {were} {} to {} before that was known: {they} still in {} as well",
            if matches!(self.action, Action::Replay(_)) {
                "replayed"
            } else {
                "copied"
            },
            terminal_escape::line(to),
            terminal_escape::line(&self.parked.name())
        ))
    }

    /// The first ones go; the others only if those live.
    async fn canary(
        &mut self,
        ordered: &mut SortedWalk,
        first: &CanaryMessages,
    ) -> Result<Progress, CliError> {
        let mut targets: Vec<String> = self
            .batch
            .iter()
            .map(|(_, _, resend)| resend.target().to_owned())
            .collect();
        targets.sort_unstable();
        targets.dedup();
        let mut watched = Vec::new();
        for target in &targets {
            let (walked, waiting_queues) = (ordered.parking(), &first.waiting_queues);
            watched.push(Canary::before(self.client, target, walked, waiting_queues).await?);
        }
        self.flush(ordered).await?;
        let count = self.totals.count;
        if count == 0 && !ordered.is_stopped() {
            // None of them could go: the next ones are first.
            self.first = Some(CanaryMessages {
                waiting_queues: Arc::clone(&first.waiting_queues),
                ..*first
            });
            return Ok(Progress::On);
        }
        self.output.note(&format!(
            "{count} replayed first{}; watching them for {}",
            self.totals.targets(),
            retryrmq::format_duration(first.canary_wait)
        ));
        let (mut canary_wait, mut unknown) = (first.canary_wait, None);
        for canary in &watched {
            let result = canary
                .result(self.client, self.parked, ordered, canary_wait)
                .await?;
            canary_wait = Duration::ZERO; // all of them have waited
            let why = match result {
                CanaryResult::Live => continue,
                CanaryResult::Unknown(why) if first.on_unknown == OnUnknown::Continue => {
                    unknown.get_or_insert(why);
                    continue;
                }
                CanaryResult::Unknown(why) => format!(
                    "cannot tell whether the first {count} succeed: {why}. The rest was not replayed; --canary-unknown continue replays it all the same"
                ),
                CanaryResult::Stopped => return Ok(Progress::End),
                CanaryResult::ParkedAgain(again, error) => format!(
                    "{again} of the first {count} {} parked again ({error}): the rest was not replayed",
                    plural::word(again as u64, "was", "were"),
                ),
                CanaryResult::ParkedElsewhere(why) => format!(
                    "of the first {count}, some seem to be parked again: {why}. The rest was not replayed"
                ),
                CanaryResult::Waiting(why) => format!(
                    "the first {count} may not be handled yet: {why}. The rest was not replayed; give them longer with --canary-wait, or mend their consumer"
                ),
            };
            return Err(CliError::failed(why));
        }
        self.output.note(&match unknown {
            None => format!(
                "the first {count} live: none was parked again, and none waits; the rest follows"
            ),
            Some(why) => format!(
                "none of the first {count} was seen to be parked again or to wait, but nobody can tell: {why}; the rest follows"
            ),
        });
        Ok(Progress::On)
    }
}

const NOTHING_KEPT: &str =
    "nothing was dropped: with --for-good no copy is kept, and that queue is not needed";

/// Whether others do not share it: each message has its own target.
fn concerns_one(error: &retryrmq::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unroutable
            | ErrorKind::QueueNotFound
            | ErrorKind::TooLarge
            | ErrorKind::InvalidOption
    )
}
