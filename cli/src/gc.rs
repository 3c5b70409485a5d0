//! `retryrmq gc`: waiting queues that nobody needs any more.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::Args;
use retryrmq::{Client, DeleteResult, Policy, WaitingQueue, format_duration, terminal_escape};
use retryrmq_operator::plural;
use serde_json::{Value, json};

use crate::{
    error::CliError,
    exit::Exit,
    global::Global,
    output::{Color, Column, Output, TableCell, TextStyle},
    prompt,
    retry_args::policies,
    setup::Setup,
};

/// Delete waiting queues that are empty, unused, and in no policy
///
/// Stop the consumers of QUEUE first, and everybody who publishes to it with a delay: while anybody may publish into a queue that
/// is deleted, RabbitMQ loses messages that it has confirmed, whatever a client asks for. So nothing is deleted while QUEUE has
/// consumers. A consumer that starts later creates the queues that it needs.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq gc [OPTIONS] <QUEUE…|--setup <FILE>>", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The work queues whose waiting queues are looked through
    #[arg(required_unless_present = "setup")]
    queues: Vec<String>,

    /// A policy of their consumers, whose queues stay; may be given several times [default: the default policy]
    #[arg(long, value_name = "POLICY")]
    retry: Vec<String>,

    /// A policy that they had before, whose queues are looked for; may be given several times
    #[arg(long, value_name = "POLICY")]
    was: Vec<String>,

    /// A file of `retryrmq setup`: its queues are looked through, and the queues of its policies stay
    #[arg(long, value_name = "FILE", conflicts_with = "retry")]
    setup: Option<PathBuf>,

    /// Confirm that quorum queues are empty (`rabbitmqctl list_queues -p VHOST name messages` shows 0); required to delete them
    ///
    /// No AMQP client sees what a quorum queue could not dead-letter because the work queue was missing or full.
    #[arg(long)]
    seen_empty: bool,

    /// Keep no waiting queue: messages of these queues are no longer retried
    #[arg(long, conflicts_with_all = ["retry", "setup"])]
    off: bool,

    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq gc orders --retry 'fixed(5s)' --dry-run
  retryrmq gc orders --retry 'fixed(5s)' --was 'list(7s, 70s)'
  rabbitmqctl list_queues -p VHOST name messages     look first, and if it says 0:
  retryrmq gc orders --seen-empty
  retryrmq gc orders --off --was 'fixed(5s)'         after retries were turned off
  retryrmq gc --setup retries.toml --yes

It finds the queues of the policies that are named, of the default policy, and of delays that
handlers chose. It takes three seconds for each queue that is deleted.

Exit code 5: some stay, because QUEUE has consumers, or nobody has seen that they are empty.
Exit code 1: messages came into one while it was deleted, and are gone.

JSON: a line for each waiting queue with queue, name, delay_ms, waiting and verdict: kept
(a policy has it), in_use (messages or readers), consumed (QUEUE has consumers), uncertain
(needs --seen-empty), unneeded (--dry-run, or not deleted because of an error), deleted,
deleted_with_messages (lost says how many).";

/// A waiting queue, and what is to become of it.
struct Finding {
    queue: String,
    waiting_queue: WaitingQueue,
    verdict: QueueVerdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueVerdict {
    Kept,
    InUse,
    Consumed,
    /// Nobody has seen whether it is empty.
    Uncertain,
    Unneeded,
    Deleted,
    /// With messages that came in the last moment.
    Lost(u32),
}

/// The queues that are looked through, each with the policies that keep their queues.
fn wanted(options: &Options) -> Result<Vec<(String, Vec<Policy>)>, CliError> {
    let mut wanted = Vec::new();
    if let Some(file) = &options.setup {
        let setup = Setup::read(file)?;
        for queue in &setup.queues {
            if options.queues.is_empty() || options.queues.contains(&queue.name) {
                wanted.push((
                    queue.name.clone(),
                    queue.rules.policies().cloned().collect(),
                ));
            }
        }
        if let Some(stranger) = options
            .queues
            .iter()
            .find(|name| !wanted.iter().any(|(queue, _)| queue == *name))
        {
            return Err(CliError::usage(format!(
                "{} has no queue `{stranger}`",
                file.display()
            )));
        }
        return Ok(wanted);
    }
    let mut kept = policies(&options.retry)?;
    if kept.is_empty() && !options.off {
        kept.push(Policy::default());
    }
    wanted.extend(
        options
            .queues
            .iter()
            .map(|queue| (queue.clone(), kept.clone())),
    );
    Ok(wanted)
}

/// The delays whose queues stay. The detour is among them: a consumer declares it with the others. Without a policy there is no consumer.
fn kept(policies: &[Policy]) -> BTreeSet<Duration> {
    const DETOUR: Duration = Duration::from_millis(100);
    let delays = policies.iter().flat_map(Policy::delays);
    let detour = (!policies.is_empty()).then_some(DETOUR);
    delays.chain(detour).collect()
}

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let wanted = wanted(&options)?;
    let was = policies(&options.was)?;
    let client = global.connect().await?;
    let done = sweep(&options, &wanted, &was, &client, output).await;
    client.close().await;
    done
}

async fn sweep(
    options: &Options,
    wanted: &[(String, Vec<Policy>)],
    was: &[Policy],
    client: &Client,
    output: &Output,
) -> Result<Exit, CliError> {
    let (mut findings, mut failed) = (Vec::new(), None);
    for (queue, policies) in wanted {
        let stay = kept(policies);
        let asked = policies.iter().chain(was).cloned();
        for waiting_queue in client.waiting(queue).queues(asked).await? {
            let verdict = if stay.contains(&waiting_queue.delay) {
                QueueVerdict::Kept
            } else if waiting_queue.messages > 0 || waiting_queue.consumers > 0 {
                QueueVerdict::InUse
            } else {
                QueueVerdict::Unneeded
            };
            findings.push(Finding {
                queue: queue.clone(),
                waiting_queue,
                verdict,
            });
        }
    }
    let unneeded = findings
        .iter()
        .filter(|finding| finding.verdict == QueueVerdict::Unneeded)
        .count();
    if unneeded > 0 && !options.dry_run {
        if !options.yes && !prompt::agreed(&question(&findings, unneeded)).await? {
            output.note("nothing was deleted");
            return Ok(Exit::Ok);
        }
        let bar = output.progress(Some(unneeded as u64), "waiting queues");
        for finding in findings
            .iter_mut()
            .filter(|finding| finding.verdict == QueueVerdict::Unneeded)
        {
            let waiting = client.waiting(&finding.queue);
            finding.verdict = match waiting
                .delete_unused(&finding.waiting_queue, options.seen_empty)
                .await
            {
                Ok(DeleteResult::Deleted) => QueueVerdict::Deleted,
                Ok(DeleteResult::DeletedWith(lost)) => QueueVerdict::Lost(lost),
                Ok(DeleteResult::Consumed) => QueueVerdict::Consumed,
                Ok(DeleteResult::Uncertain) => QueueVerdict::Uncertain,
                Ok(_) => QueueVerdict::InUse,
                // What was deleted before it is told first.
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            };
            bar.inc(1);
        }
        bar.finish_and_clear();
    }
    let exit = report(&findings, output)?;
    match failed {
        // The exit code tells of the worst: that messages are gone.
        Some(error) if exit == Exit::Failed => {
            Err(CliError::failed(CliError::from(error).sentence()))
        }
        Some(error) => Err(error.into()),
        None => Ok(exit),
    }
}

fn question(findings: &[Finding], unneeded: usize) -> String {
    let names: Vec<_> = findings
        .iter()
        .filter(|finding| finding.verdict == QueueVerdict::Unneeded)
        .take(8)
        .map(|finding| terminal_escape::line(&finding.waiting_queue.name).into_owned())
        .collect();
    let more = if unneeded > names.len() {
        format!(" and {} more", unneeded - names.len())
    } else {
        String::new()
    };
    format!(
        "Delete {}{more}? Nobody may start to consume, or publish with a delay, meanwhile.",
        names.join(", ")
    )
}

fn report(findings: &[Finding], output: &Output) -> Result<Exit, CliError> {
    if output.is_json() {
        for finding in findings {
            output.json_line(&as_json(finding))?;
        }
    } else if findings.is_empty() {
        output.note("there is no waiting queue");
    } else {
        let columns = [
            Column::left("verdict", 22),
            Column::right("waits", 9),
            Column::right("waiting", 9),
            Column::left("queue", 0),
        ];
        let rows = findings.iter().map(row);
        output.table(&columns, rows.collect())?;
    }
    if findings
        .iter()
        .any(|finding| finding.verdict == QueueVerdict::Uncertain)
    {
        output.note(
            "quorum queues stay: what they could not dead-letter AMQP does not show. If `rabbitmqctl list_queues -p VHOST name messages` says 0 \
             for them, pass --seen-empty",
        );
    }
    for finding in findings {
        match finding.verdict {
            QueueVerdict::Consumed => output.note(&format!(
                "{} stays: {} has consumers, stop them first",
                finding.waiting_queue.name, finding.queue
            )),
            QueueVerdict::Lost(lost) => output.note(&format!(
                "{} came into {} while it was deleted, and {} gone: somebody published into it meanwhile",
                plural::messages(lost.into()),
                finding.waiting_queue.name,
                plural::word(lost.into(), "is", "are")
            )),
            _ => {}
        }
    }
    if findings
        .iter()
        .any(|finding| matches!(finding.verdict, QueueVerdict::Lost(_)))
    {
        return Ok(Exit::Failed);
    }
    let stayed = |finding: &Finding| {
        matches!(
            finding.verdict,
            QueueVerdict::Consumed | QueueVerdict::Uncertain
        )
    };
    Ok(if findings.iter().any(stayed) {
        Exit::Refused
    } else {
        Exit::Ok
    })
}

impl QueueVerdict {
    /// The stable word, and how it looks.
    fn word(self) -> (&'static str, TableCell) {
        let (word, look, shown) = match self {
            Self::Kept => ("kept", TextStyle::Dim, "kept: a policy has it"),
            Self::InUse => ("in_use", TextStyle::In(Color::Yellow), "in use"),
            Self::Consumed => ("consumed", TextStyle::In(Color::Yellow), "stays: consumers"),
            Self::Uncertain => ("uncertain", TextStyle::In(Color::Yellow), "is it empty?"),
            Self::Unneeded => ("unneeded", TextStyle::In(Color::Cyan), "unneeded"),
            Self::Deleted => ("deleted", TextStyle::In(Color::Green), "✓ deleted"),
            Self::Lost(_) => (
                "deleted_with_messages",
                TextStyle::In(Color::Red),
                "deleted, not empty",
            ),
        };
        (word, look.of(shown))
    }
}

fn row(finding: &Finding) -> Vec<TableCell> {
    vec![
        finding.verdict.word().1,
        TextStyle::Bold.of(format_duration(finding.waiting_queue.delay)),
        TextStyle::Plain.of(finding.waiting_queue.messages),
        TextStyle::Plain.of(terminal_escape::line(&finding.waiting_queue.name)),
    ]
}

fn as_json(finding: &Finding) -> Value {
    let mut object = json!({
        "queue": finding.queue,
        "name": finding.waiting_queue.name,
        "delay_ms": u64::try_from(finding.waiting_queue.delay.as_millis()).unwrap_or(u64::MAX),
        "waiting": finding.waiting_queue.messages,
        "verdict": finding.verdict.word().0,
    });
    if let QueueVerdict::Lost(lost) = finding.verdict {
        object["lost"] = json!(lost);
    }
    object
}
