//! `retryrmq doctor`: what will lose, loop or block messages on this broker.

use std::{collections::BTreeSet, time::Duration};

use clap::Args;
use console::Style;
use retryrmq::{
    DEAD_EXCHANGE, MINUTE, clock_queue, parking_queue, parse_duration, terminal_escape,
    unreadable_queue, work_queue_of,
};
use retryrmq_operator::{
    doctor::{Code, Finding, QueueNames, Severity, Snapshot, examine},
    plural,
};
use serde_json::{Value, json};

use crate::{
    error::CliError,
    exit::Exit,
    global::Global,
    management::{self, ManagementClient},
    output::Output,
};

/// Report what will lose, loop or block messages, and how to fix it
///
/// Looks at the queues, policies, exchanges and consumers of the virtual host through the management API. It changes nothing and takes
/// no message. What each code means is in docs/doctor.md.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq doctor                           the whole virtual host
  retryrmq doctor orders                    orders and its waiting and parking queues
  retryrmq doctor --ignore RQ101,RQ112      for CI: exits with 8 if anything else is found
  retryrmq --json doctor | jq -r '.findings[].fix'

The user needs the tag `management` and any permission in the virtual host, and
`monitoring` to see who consumes.",
    override_usage = "retryrmq doctor [OPTIONS] [QUEUE]..."
)]
pub(crate) struct Options {
    /// Only these queues, with the queues where their messages wait and are parked
    #[arg(value_name = "QUEUE")]
    queues: Vec<String>,

    /// Codes that do not count, such as RQ104
    #[arg(long, value_name = "CODE", value_delimiter = ',')]
    ignore: Vec<Code>,

    /// How long a handler may take; shorter timeouts of the broker are reported (RQ115)
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    handler_timeout: String,

    /// How long a consumer with a full prefetch may do nothing before it counts as stuck (RQ114)
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    stuck_after: String,

    #[command(flatten)]
    management: management::Management,
}

const NAMES: QueueNames = QueueNames {
    work_queue_of,
    parking_queue,
    unreadable_queue,
    clock_queue,
    dead_exchange: DEAD_EXCHANGE,
};

/// What harms messages while they are retried. The strategies dead-letter and native need the work queue's own settings.
pub(crate) const HARM_TO_RETRIES: [Code; 5] = [
    Code::WaitingExpires,
    Code::ParkingLimited,
    Code::ForeignPolicy,
    Code::NotAtLeastOnce,
    Code::DelayChanged,
];

/// Where messages that a consumer rejects are lost.
pub(crate) const LOSS_OF_REJECTED: [Code; 5] = [
    Code::NoRoute,
    Code::LimitWithoutRoute,
    Code::MissingExchange,
    Code::DeadEnd,
    Code::RouteWithoutKey,
];

/// The findings with these codes about `queue`, and about where its messages wait and are parked. Of what a policy or a feature flag does
/// there AMQP says nothing.
pub(crate) async fn findings_of(
    codes: &[Code],
    queue: &str,
    management_client: &ManagementClient,
) -> Result<Vec<Finding>, CliError> {
    let times = (MINUTE, 5 * MINUTE); // nothing of what is asked for depends on them
    let snapshot = Snapshot::take(
        &management_client.api,
        &management_client.vhost,
        NAMES,
        times.0,
        times.1,
    )
    .await?;
    let mut findings = examine(&snapshot);
    findings.retain(|finding| {
        let is_of = |name: &String| work_queue_of(name) == Some(queue) || name == queue;
        codes.contains(&finding.code) && finding.queues.iter().any(is_of)
    });
    Ok(findings)
}

/// Logs what [`findings_of`] finds, where `is_told` says so.
pub(crate) async fn warn_of(
    codes: &[Code],
    queue: &str,
    management_client: &ManagementClient,
    mut is_told: impl FnMut(&Finding) -> bool,
) {
    match findings_of(codes, queue, management_client).await {
        Ok(findings) => {
            for finding in findings.iter().filter(|finding| is_told(finding)) {
                tracing::warn!(code = %finding.code, fix = finding.fix, "{}", finding.sentence);
            }
        }
        Err(why) => tracing::warn!("policies were not looked at: {}", why.sentence()),
    }
}

/// Logs what deletes messages from the parking queue of `queue`.
pub(crate) async fn warn_of_lost_parking(queue: &str, management_client: &ManagementClient) {
    let parking = [parking_queue(queue), queue.to_owned()];
    warn_of(
        &[Code::ParkingLimited],
        queue,
        management_client,
        |finding| finding.queues.iter().any(|name| parking.contains(name)),
    )
    .await;
}

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let handler_timeout = duration("--handler-timeout", &options.handler_timeout)?;
    let stuck_after = duration("--stuck-after", &options.stuck_after)?;
    let management_client = options.management.open(global)?;
    let spinner = output.progress(None, "looking at the broker");
    if let Ok(style) = indicatif::ProgressStyle::with_template("{spinner} {msg}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    let taken = Snapshot::take(
        &management_client.api,
        &management_client.vhost,
        NAMES,
        handler_timeout,
        stuck_after,
    )
    .await;
    spinner.finish_and_clear();
    let snapshot = taken?;
    if let Some(missing) = options
        .queues
        .iter()
        .find(|name| !snapshot.has_any_of(name))
    {
        return Err(management_client.no_queue(missing));
    }
    let mut findings = examine(&snapshot);
    findings.retain(|finding| is_asked_for(finding, &options.queues));
    let found = findings.len();
    findings.retain(|finding| !options.ignore.contains(&finding.code));
    let ignored = found - findings.len();
    if output.is_json() {
        output.json_document(&as_json(&findings, ignored, &snapshot, &management_client))?;
    } else {
        for finding in &findings {
            show(finding, output)?;
        }
        let all = place(
            snapshot.queue_count(),
            &management_client.vhost,
            &options.queues,
        );
        output.line(&format!("{all}: {}", summary(&findings, ignored)))?;
        for unknown in &snapshot.unknown {
            output.note(&format!("note: {}", unknown.sentence()));
        }
    }
    Ok(if findings.is_empty() {
        Exit::Ok
    } else {
        Exit::Found
    })
}

fn duration(option: &str, text: &str) -> Result<Duration, CliError> {
    parse_duration(text).map_err(|why| CliError::usage(format!("{option}: {why}")))
}

/// Whether it is about one of these queues, or a queue that belongs to one.
fn is_asked_for(finding: &Finding, queues: &[String]) -> bool {
    let named = |name: &str| queues.iter().any(|queue| queue == name);
    queues.is_empty()
        || finding
            .queues
            .iter()
            .any(|queue| named(queue) || work_queue_of(queue).is_some_and(named))
}

fn show(finding: &Finding, output: &Output) -> Result<(), CliError> {
    let style = match finding.severity {
        Severity::Error => Style::new().red().bold(),
        Severity::Warning => Style::new().yellow(),
        Severity::Notice => Style::new().cyan(),
    };
    output.line(&format!(
        "{} {} {} {}",
        output.paint(format!("{:<7}", finding.severity), style),
        output.bold(finding.code.to_string()),
        finding.subject.sort(),
        output.bold(terminal_escape::line(finding.subject.name()))
    ))?;
    let sentence = terminal_escape::line(&finding.sentence);
    match output.width() {
        Some(width) => {
            let room = usize::from(width).saturating_sub(2).max(20);
            for line in textwrap::wrap(&sentence, room) {
                output.line(&format!("  {line}"))?;
            }
        }
        None => output.line(&format!("  {sentence}"))?,
    }
    // Not wrapped: it is to be copied.
    output.line(&format!(
        "  {} {}",
        output.dim("fix"),
        terminal_escape::line(&finding.fix)
    ))?;
    output.line(&format!("  {} {}\n", output.dim("see"), finding.page()))
}

/// What was looked at. `asked` are the queues whose findings are told; if there are none, all are.
fn place(count: usize, vhost: &str, asked: &[String]) -> String {
    let queues = plural::counted(count as u64, "queue");
    let of = match asked {
        [] => String::new(),
        asked => format!("{}, of ", terminal_escape::line(&asked.join(", "))),
    };
    format!(
        "looked at {of}{queues} in virtual host {}",
        terminal_escape::line(vhost)
    )
}

fn summary(findings: &[Finding], ignored: usize) -> String {
    let ignored = match ignored {
        0 => String::new(),
        count => format!(", {count} ignored"),
    };
    if findings.is_empty() {
        return format!("nothing found{ignored}");
    }
    let codes: BTreeSet<Code> = findings.iter().map(|finding| finding.code).collect();
    let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
    let things = plural::counted(findings.len() as u64, "finding");
    format!("{things} ({}){ignored}", codes.join(", "))
}

pub(crate) fn finding_as_json(finding: &Finding) -> Value {
    json!({
        "code": finding.code.to_string(),
        "severity": finding.severity.to_string(),
        "kind": finding.subject.sort(),
        "name": finding.subject.name(),
        "queues": finding.queues,
        "sentence": finding.sentence,
        "fix": finding.fix,
        "page": finding.page(),
    })
}

fn as_json(
    findings: &[Finding],
    ignored: usize,
    snapshot: &Snapshot,
    management_client: &ManagementClient,
) -> Value {
    let findings: Vec<Value> = findings.iter().map(finding_as_json).collect();
    let unknown: Vec<&str> = snapshot
        .unknown
        .iter()
        .map(|unknown| unknown.sentence())
        .collect();
    json!({
        "vhost": management_client.vhost,
        "healthy": findings.is_empty(),
        "findings": findings,
        "ignored": ignored,
        "unknown": unknown,
    })
}
