//! `retryrmq topology`: what a consumer needs on the broker, compared and applied.

use std::borrow::Cow;

use clap::Args;
use retryrmq::{Argument, Finding, HANDOVER_QUEUE, Item, Missing, Plan, Status};
use serde_json::{Map, Value, json};

use crate::{
    doctor,
    error::CliError,
    exit::Exit,
    global::Global,
    management::Management,
    output::{Color, Column, Output, TextStyle},
    retry_args::{RetryArgs, not_reserved},
};
use retryrmq::terminal_escape;

/// Print the queues and exchanges that a consumer needs, compared with the broker, and create what is missing
///
/// Nothing is ever changed or deleted. The exit code is 0 when everything is there, 3 when something is missing, 5
/// when something differs.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq topology [OPTIONS] <QUEUE>", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The queue to be consumed
    queue: String,

    #[command(flatten)]
    retry_args: RetryArgs,

    /// Create what is missing
    #[arg(long, conflicts_with = "offline")]
    apply: bool,

    /// Only plan; no broker is asked
    #[arg(long)]
    offline: bool,

    /// Plan for QUEUE even if its name is reserved for the queues of another one: `*.parked`, `*.unreadable` or `*.retry.<number>`
    #[arg(long)]
    reserved_name: bool,

    #[command(flatten)]
    management: Management,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq topology orders --retry 'fixed(5s)' --offline
  retryrmq topology orders --retry 'list(1s, 10s, 1m)' --apply
  retryrmq topology orders --strategy native \\
      --retry 'linear(5s, step=5s, max=1m)'
  retryrmq topology orders --work-queue '{\"x-max-priority\": 10}' --apply

After --apply, `retryrmq consume --no-declare` needs no right to configure.

With --management, or RETRYRMQ_MANAGEMENT_URL, it also warns of policies and feature
flags that harm what is retried, waits or is parked there: RQ108 to RQ111 and RQ123
of `retryrmq doctor`.

JSON, one document: queue, strategy, complete, and items, each with kind, name,
arguments, purpose, status (present, created, missing, differs, unknown) and, as
far as there is one, type, exchange, routing_key, difference. With --management also
warnings, as the findings of `doctor`, or null and warnings_error.";

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let (rules, strategy) = (options.retry_args.rules()?, options.retry_args.strategy()?);
    let queue_type = options.retry_args.queue_type()?;
    if options.queue.is_empty() {
        return Err(CliError::usage("the queue's name is empty"));
    }
    not_reserved(&options.queue, options.reserved_name)?;
    let plan = strategy.plan(
        &options.queue,
        &rules,
        queue_type,
        options.retry_args.work_queue()?.as_ref(),
    );
    let plan = plan.map_err(CliError::in_flags)?;
    let asks = options.management.is_given() && !options.offline;
    let management_client = asks.then(|| options.management.open(global)).transpose()?;
    let findings = if options.offline {
        None
    } else {
        Some(examine(&options, &plan, global).await?)
    };
    let warnings = match &management_client {
        Some(management_client) => Some(
            doctor::findings_of(&doctor::HARM_TO_RETRIES, &options.queue, management_client).await,
        ),
        None => None,
    };
    let exit = findings.as_deref().map_or(Exit::Ok, verdict);
    if output.is_json() {
        let items: Vec<Value> = match &findings {
            Some(findings) => findings
                .iter()
                .map(|finding| as_json(&finding.item, Some(&finding.status)))
                .collect(),
            None => plan.items.iter().map(|item| as_json(item, None)).collect(),
        };
        let complete = findings.as_ref().map(|_| exit == Exit::Ok);
        let mut document = json!({"queue": options.queue, "strategy": strategy.as_str(), "complete": complete, "items": items});
        match warnings {
            Some(Ok(warnings)) => {
                document["warnings"] = warnings.iter().map(doctor::finding_as_json).collect();
            }
            Some(Err(why)) => {
                document["warnings"] = Value::Null;
                document["warnings_error"] = json!(why.sentence());
            }
            None => {}
        }
        output.json_document(&document)?;
        return Ok(exit);
    }
    print(&plan, findings.as_deref(), output)?;
    match warnings {
        Some(Ok(warnings)) => {
            for warning in &warnings {
                output.note(&format!("warning: {} ({})", warning.sentence, warning.code));
                output.note(&format!("  {}", warning.fix));
            }
        }
        Some(Err(why)) => output.note(&format!("policies were not looked at: {}", why.sentence())),
        None => {}
    }
    note_unchecked(findings.as_deref().unwrap_or_default(), output);
    let lacks_service = |finding: &Finding| {
        finding.status == Status::Missing && finding.item.name() == HANDOVER_QUEUE
    };
    match exit {
        Exit::NotFound
            if findings
                .as_ref()
                .is_some_and(|all| all.iter().any(lacks_service)) =>
        {
            output.note(
                "the queue of the service is missing; the service makes it: start `retryrmq serve`",
            );
        }
        Exit::NotFound if findings.is_some_and(|findings| findings.iter().any(is_for_others)) => {
            output.note("something is missing; --apply makes it, but never the queue itself with --work-queue existing");
        }
        Exit::NotFound => output.note("something is missing; --apply makes it"),
        Exit::Refused => output
            .note("something differs: delete it when it is empty, or keep to the arguments it has"),
        _ => {}
    }
    Ok(exit)
}

async fn examine(
    options: &Options,
    plan: &Plan,
    global: &Global,
) -> Result<Vec<Finding>, CliError> {
    let (rules, strategy) = (options.retry_args.rules()?, options.retry_args.strategy()?);
    let queue_type = options.retry_args.queue_type()?;
    let client = global.connect_for(queue_type).await?;
    let findings = async {
        strategy.check(client.server(), &options.queue, &rules, queue_type)?;
        if options.apply {
            client.apply_plan(plan).await
        } else {
            client.compare_plan(plan).await
        }
    }
    .await;
    client.close().await;
    findings.map_err(CliError::in_flags)
}

/// What is missing and somebody else's to make.
pub(crate) fn is_for_others(finding: &Finding) -> bool {
    let missing = match &finding.item {
        Item::Queue { missing, .. } => *missing,
        _ => Missing::Made,
    };
    finding.status == Status::Missing && missing == Missing::Refused
}

/// Without its binding an exchange loses every message, and one of another kind does not delay.
fn note_unchecked(findings: &[Finding], output: &Output) {
    for finding in findings {
        if finding.services == Some(0) {
            output.note("nothing consumes the queue of the service: what is handed over waits there until `retryrmq serve` runs");
        }
        if finding.status != Status::Unknown {
            continue;
        }
        match &finding.item {
            Item::Binding { .. } => output.note(
                "whether the binding exists was not checked: --apply makes it; `rabbitmqctl list_bindings -p VHOST source_name destination_name routing_key` shows it",
            ),
            Item::Exchange { .. } => output.note(
                "what the exchange is like was not checked, because this user may not declare it: `rabbitmqctl list_exchanges -p VHOST name type arguments` shows it",
            ),
            _ => {}
        }
    }
}

pub(crate) fn verdict(findings: &[Finding]) -> Exit {
    let any = |wanted: fn(&Status) -> bool| findings.iter().any(|finding| wanted(&finding.status));
    if any(|status| matches!(status, Status::Differs(_))) {
        Exit::Refused
    } else if any(|status| matches!(status, Status::Missing)) {
        Exit::NotFound
    } else {
        Exit::Ok
    }
}

/// The stable word, and how it looks.
pub(crate) fn word(status: &Status) -> (&'static str, &'static str, Color) {
    match status {
        Status::Present => ("present", "✓ present", Color::Green),
        Status::Created => ("created", "+ created", Color::Cyan),
        Status::Missing => ("missing", "✗ missing", Color::Red),
        Status::Differs(_) => ("differs", "≠ differs", Color::Red),
        _ => ("unknown", "? unknown", Color::Yellow),
    }
}

fn print(plan: &Plan, findings: Option<&[Finding]>, output: &Output) -> Result<(), CliError> {
    let rows = plan.items.iter().enumerate().map(|(index, item)| {
        let mut row = Vec::new();
        if let Some(finding) = findings.and_then(|findings| findings.get(index)) {
            let (_, shown, color) = word(&finding.status);
            row.push(TextStyle::In(color).of(shown));
        }
        row.push(TextStyle::Dim.of(kind(item)));
        row.push(TextStyle::Bold.of(terminal_escape::line(item.name())));
        row.push(TextStyle::Plain.of(purpose(item)));
        row
    });
    let mut columns = vec![
        Column::left("kind", 8),
        Column::left("name", 60),
        Column::left("purpose", 0),
    ];
    if findings.is_some() {
        columns.insert(0, Column::left("status", 9));
    }
    output.table(&columns, rows.collect())?;
    details(plan, findings, output)
}

/// The arguments under the table: they are what somebody copies who makes the queues by other means.
fn details(plan: &Plan, findings: Option<&[Finding]>, output: &Output) -> Result<(), CliError> {
    for (index, item) in plan.items.iter().enumerate() {
        let arguments = arguments(item);
        let status = findings
            .and_then(|findings| findings.get(index))
            .map(|finding| &finding.status);
        let is_any = matches!(
            item,
            Item::Queue {
                any_arguments: true,
                ..
            }
        );
        let head = match status {
            // Its own arguments are not known, and matter to nobody.
            Some(Status::Present) if is_any || matches!(item, Item::Binding { .. }) => {
                "exists, and is not changed"
            }
            Some(Status::Present) if matches!(item, Item::Exchange { .. }) => {
                "exists with this type; RabbitMQ does not compare its x-delayed-type"
            }
            Some(Status::Present) => "exists, declared with",
            Some(Status::Created) => "was declared with",
            Some(Status::Unknown) if matches!(item, Item::Exchange { .. }) => {
                "exists, and may not be compared with"
            }
            _ if matches!(item, Item::Binding { .. }) => "would be made",
            _ => "would be declared with",
        };
        output.line(&format!(
            "\n{}  {}",
            output.bold(terminal_escape::line(item.name())),
            output.dim(head)
        ))?;
        if is_any && status == Some(&Status::Present) {
            continue;
        }
        if let Item::Exchange { kind, .. } = item {
            output.line(&format!("  type {kind}"))?;
        }
        for (name, value) in arguments {
            output.line(&format!(
                "  {} {}",
                output.dim(format!("{name:<26}")),
                terminal_escape::line(&value.to_string())
            ))?;
        }
        if is_any {
            output.line(&format!(
                "  {}",
                output.dim("an existing one is not changed")
            ))?;
        }
        if let Some(Status::Differs(why)) = status {
            output.line(&format!(
                "  {}",
                output.paint(terminal_escape::line(why), console::Style::new().red())
            ))?;
        }
    }
    Ok(())
}

fn kind(item: &Item) -> &'static str {
    match item {
        Item::Queue { .. } => "queue",
        Item::Exchange { .. } => "exchange",
        Item::Binding { .. } => "binding",
        _ => "other",
    }
}

pub(crate) fn purpose(item: &Item) -> String {
    match item {
        Item::Queue { purpose, .. } | Item::Exchange { purpose, .. } => (*purpose).to_owned(),
        Item::Binding {
            exchange,
            routing_key,
            ..
        } => {
            format!(
                "from {} with {}",
                terminal_escape::line(exchange),
                terminal_escape::line(routing_key)
            )
        }
        other => terminal_escape::line(&other.to_string()).into_owned(),
    }
}

fn arguments(item: &Item) -> &[(Cow<'static, str>, Argument)] {
    match item {
        Item::Queue { arguments, .. } | Item::Exchange { arguments, .. } => arguments,
        _ => &[],
    }
}

pub(crate) fn as_json(item: &Item, status: Option<&Status>) -> Value {
    let arguments: Map<String, Value> = arguments(item)
        .iter()
        .map(|(name, value)| {
            let value = match value {
                Argument::Text(text) => json!(text),
                Argument::Number(number) => json!(number),
                Argument::Flag(flag) => json!(flag),
                other => json!(other.to_string()),
            };
            (name.to_string(), value)
        })
        .collect();
    let mut object = json!({
        "kind": kind(item),
        "name": item.name(),
        "arguments": arguments,
        "purpose": purpose(item),
        "status": status.map(|status| word(status).0),
    });
    if let Item::Exchange { kind, .. } = item {
        object["type"] = json!(kind);
    }
    if let Item::Binding {
        exchange,
        routing_key,
        ..
    } = item
    {
        object["exchange"] = json!(exchange);
        object["routing_key"] = json!(routing_key);
    }
    if let Some(Status::Differs(why)) = status {
        object["difference"] = json!(why);
    }
    object
}
