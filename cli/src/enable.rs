//! `retryrmq enable`: dead-lettering for a queue whose consumers have no library, as a policy that keeps all of the one in force.

use std::time::{Duration, Instant};

use clap::Args;
use retryrmq::{SAFE_AGE, parking_queue, terminal_escape, work_queue_of};
use retryrmq_operator::{
    dlx_policy::{DeadLetterRoute, DeadLetterTarget, Obstacle, PolicyChange, PolicyPlan, plan},
    doctor::Finding,
    management::{Policy, Queue, QueueKind, Scope},
};
use serde_json::{Value, json};

use crate::{
    doctor,
    error::CliError,
    exit::Exit,
    global::Global,
    management::{self, ManagementClient},
    output::Output,
    prompt,
};

/// Where the service takes dead letters from, as `retryrmq serve` declares it.
const SERVICE: &str = retryrmq::DEAD_EXCHANGE;
/// How long a policy may take until it is in force.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Create a policy that sends the rejected messages of a queue to its parking queue: for consumers without this library
///
/// RabbitMQ applies one policy to a queue. So this makes one for this queue alone, with every key of the one in force, and shows the
/// difference before it acts. No queue is deleted, and none is declared except the parking queue, if it is missing.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "\
Examples:
  retryrmq enable orders --dry-run     what would change
  retryrmq enable orders               asks, then does it
  retryrmq enable orders --yes
  retryrmq enable orders --service     retried by `retryrmq serve` first
  retryrmq disable orders              takes it back, exactly

The user needs the tag `policymaker`, and to configure orders.parked where it is
missing. A dead-letter exchange among the queue's own arguments wins over every
policy: then nothing is changed.",
    override_usage = "retryrmq enable [OPTIONS] <QUEUE>"
)]
pub(crate) struct Options {
    /// The queue (its own name, not that of the parking queue)
    queue: String,

    /// Dead-letter to this queue, which must be there, instead of the parking queue
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,

    /// Dead-letter to the service (`retryrmq serve`), which retries, instead of the parking queue
    #[arg(long, conflicts_with = "to")]
    service: bool,

    /// Override a policy that already dead-letters elsewhere
    #[arg(long)]
    replace: bool,

    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    management: management::Management,
}

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let name = &options.queue;
    if let Some(work) = work_queue_of(name) {
        return Err(CliError::usage(format!(
            "`{name}` belongs to `{work}`: messages wait or are parked there; enable `{work}`"
        )));
    }
    let target = if options.service {
        SERVICE.to_owned()
    } else {
        options.to.clone().unwrap_or_else(|| parking_queue(name))
    };
    if target.is_empty() || target == *name || target.len() > 255 {
        return Err(CliError::usage(format!(
            "dead letters of `{name}` cannot go to `{target}`: --to names another queue, of 255 bytes at most"
        )));
    }
    let management_client = options.management.open(global)?;
    let decided = decide(&management_client, &options, &target).await?;
    if options.service {
        check_service(&management_client).await?;
    }
    let is_there = match management_client
        .api
        .queue(&management_client.vhost, &target)
        .await?
    {
        _ if options.service => true,
        Some(queue) if queue.kind == QueueKind::Stream => {
            return Err(CliError::refused(format!(
                "`{target}` is a stream, which keeps what is taken from it: dead letters cannot be replayed from there"
            )));
        }
        Some(_) => true,
        None if options.to.is_some() => return Err(management_client.no_queue(&target)),
        None => false,
    };
    let (policy, changes, base) = match &decided {
        PolicyPlan::Done(policy) => {
            let made =
                !is_there && make_again(&management_client, &target, &options, output).await?;
            return already(policy.as_ref(), &target, &options, (is_there, made), output);
        }
        PolicyPlan::Make {
            policy,
            changes,
            base,
            ..
        } => (policy, changes, base.as_ref()),
    };
    let warnings = match is_there && !options.service && options.to.is_none() {
        true => harm(name, &management_client).await,
        false => Vec::new(),
    };
    if !output.is_json() {
        show(policy, changes, base, &target, is_there, output)?;
        for warning in &warnings {
            output.note(&format!("warning: {} ({})", warning.sentence, warning.code));
            output.note(&format!("  {}", warning.fix));
        }
    }
    if !options.dry_run {
        let question = format!("Make this policy for {name}?");
        if !prompt::wants(options.yes, prompt::POLICY, &question, output).await? {
            return Ok(Exit::Ok);
        }
        if !is_there {
            make_parking_queue(&management_client, &target).await?;
        }
        // Somebody may have changed a policy while we asked.
        if decide(&management_client, &options, &target).await? != decided {
            return Err(CliError::failed(format!(
                "the policies of `{name}` have changed in this moment, and nothing was done: look at the difference again"
            )));
        }
        apply(&management_client, &decided, name).await?;
    }
    if output.is_json() {
        let mut document = as_json(name, policy, changes, &target, !options.dry_run);
        document["warnings"] = warnings.iter().map(doctor::finding_as_json).collect();
        output.json_document(&document)?;
    } else if !options.dry_run {
        output.line(&format!(
            "done: dead letters of {} go to {} from now on",
            terminal_escape::line(name),
            terminal_escape::line(&target)
        ))?;
    }
    Ok(Exit::Ok)
}

/// What would take the dead letters away again where they are parked.
async fn harm(queue: &str, management_client: &ManagementClient) -> Vec<Finding> {
    doctor::findings_of(&doctor::HARM_TO_RETRIES, queue, management_client)
        .await
        .unwrap_or_else(|why| {
            tracing::warn!(
                "whether the parking queue keeps what it is given was not looked at: {}",
                why.sentence()
            );
            Vec::new()
        })
}

/// Refuses to send dead letters where nobody takes them: the broker drops them in silence.
async fn check_service(management_client: &ManagementClient) -> Result<(), CliError> {
    let at = shell_words::quote(&management_client.vhost);
    if !management_client
        .api
        .exchanges(&management_client.vhost)
        .await?
        .contains_key(SERVICE)
    {
        return Err(CliError::not_found(format!(
            "there is no exchange `{SERVICE}` in virtual host {at}: start the service there first, with `retryrmq serve`, which declares it"
        )));
    }
    if management_client
        .api
        .bindings(&management_client.vhost, SERVICE)
        .await?
        .is_empty()
    {
        return Err(CliError::not_found(format!(
            "no queue is bound to the exchange `{SERVICE}` in virtual host {at}, so that what goes there is dropped: start the service there, \
             with `retryrmq serve`, which binds it"
        )));
    }
    Ok(())
}

/// What is to be done, from what is there now.
async fn decide(
    management_client: &ManagementClient,
    options: &Options,
    target: &str,
) -> Result<PolicyPlan, CliError> {
    let queue = management_client.queue(&options.queue).await?;
    if queue.exclusive {
        return Err(CliError::refused(format!(
            "`{}` belongs to one connection and goes with it: nothing is kept there anyway",
            queue.name
        )));
    }
    let policies = management_client
        .api
        .policies(&management_client.vhost, Scope::Users)
        .await?;
    let route = if options.service {
        DeadLetterRoute::Exchange(target)
    } else {
        DeadLetterRoute::Queue(target)
    };
    let target = DeadLetterTarget {
        route,
        replaces: options.replace,
    };
    plan(&queue, &policies, &target)
        .map_err(|obstacle| refused(&obstacle, &queue, management_client))
}

fn refused(obstacle: &Obstacle, queue: &Queue, management_client: &ManagementClient) -> CliError {
    let name = &queue.name;
    let at = shell_words::quote(&management_client.vhost);
    CliError::refused(match obstacle {
        Obstacle::NotAQueue => {
            format!("`{name}` is a stream or of another type that has no dead letters")
        }
        Obstacle::Argument(exchange) => format!(
            "`{name}` was declared with `x-dead-letter-exchange` `{exchange}`, which wins over every policy: nothing was changed. Its dead letters go to that exchange; to send them elsewhere, delete the queue and declare it again without that argument"
        ),
        Obstacle::OtherRoute(policy, exchange) => format!(
            "policy `{policy}` already dead-letters `{name}` to exchange `{exchange}`: pass --replace to send its dead letters here instead, or leave it"
        ),
        Obstacle::Changed(policy) => format!(
            "somebody has changed `{policy}`, which was made for `{name}`: see it with `rabbitmqctl list_policies -p {at}`, and take it away with \
             `retryrmq disable {} --force`",
            shell_words::quote(name)
        ),
        Obstacle::Unreadable(policy) => format!(
            "nobody but the broker can read the pattern of policy `{policy}`, so what is in force on `{name}` without our policy is not known: \
             `retryrmq disable {}` first",
            shell_words::quote(name)
        ),
    })
}

/// The parking queue that would be created.
fn show_queue(name: &str, output: &Output) -> Result<(), CliError> {
    output.line(&format!(
        "{} queue {} (quorum, delivery limit 1000000000)",
        output.paint("+", console::Style::new().green()),
        terminal_escape::line(name)
    ))
}

async fn make_parking_queue(
    management_client: &ManagementClient,
    name: &str,
) -> Result<(), CliError> {
    let parking = json!({"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000});
    management_client
        .api
        .put_queue(&management_client.vhost, name, &parking)
        .await?;
    tokio::time::sleep(SAFE_AGE).await;
    Ok(())
}

/// Creates a parking queue that somebody deleted while dead letters still go there. Whether it did.
async fn make_again(
    management_client: &ManagementClient,
    target: &str,
    options: &Options,
    output: &Output,
) -> Result<bool, CliError> {
    let shown = terminal_escape::line(target);
    if !output.is_json() {
        output.line(&format!(
            "dead letters of {} go to {shown} already, but that queue does not exist, so they never arrive",
            terminal_escape::line(&options.queue)
        ))?;
    }
    if options.dry_run {
        if !output.is_json() {
            show_queue(target, output)?;
        }
        return Ok(false);
    }
    let question = format!("Create {shown}?");
    let wanted = prompt::wants(options.yes, "creates a queue", &question, output).await?;
    if wanted {
        make_parking_queue(management_client, target).await?;
    }
    Ok(wanted)
}

/// Says that there is no policy to make. `(is_there, made)`: whether the target was there, and whether it was created.
fn already(
    policy: Option<&Policy>,
    target: &str,
    options: &Options,
    (is_there, made): (bool, bool),
    output: &Output,
) -> Result<Exit, CliError> {
    let shown = terminal_escape::line(target);
    if output.is_json() {
        output.json_document(&json!({
            "queue": options.queue,
            "to": target,
            "enabled": is_there || made,
            "changed": made,
            "policy": policy.map(|policy| &policy.name),
            "changes": [],
        }))?;
    } else if is_there {
        let how = match policy {
            Some(policy) => format!(" (policy {})", terminal_escape::line(&policy.name)),
            None => String::new(),
        };
        output.line(&format!(
            "nothing to do: dead letters of {} go to {shown} already{how}",
            terminal_escape::line(&options.queue)
        ))?;
    } else if made {
        output.line(&format!("done: {shown} was created"))?;
    }
    Ok(Exit::Ok)
}

/// Makes the policy, waits until it is in force, and takes away what it takes the place of.
async fn apply(
    management_client: &ManagementClient,
    decided: &PolicyPlan,
    queue: &str,
) -> Result<(), CliError> {
    let PolicyPlan::Make {
        policy, obsolete, ..
    } = decided
    else {
        return Ok(());
    };
    management_client
        .api
        .put_policy(&management_client.vhost, policy)
        .await?;
    for name in obsolete {
        management_client
            .api
            .delete_policy(&management_client.vhost, name)
            .await?;
    }
    let until = Instant::now() + TIME_LIMIT;
    loop {
        let seen = management_client.queue(queue).await?.policy;
        if seen.as_ref() == Some(&policy.name) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(CliError::failed(format!(
                "the policy `{}` was made, but `{queue}` is still under {}: is there one of a higher priority? `rabbitmqctl list_policies -p {}` shows it",
                policy.name,
                seen.map_or_else(|| "none".to_owned(), |seen| format!("`{seen}`")),
                shell_words::quote(&management_client.vhost)
            )));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn show(
    policy: &Policy,
    changes: &[PolicyChange],
    base: Option<&Policy>,
    target: &str,
    is_there: bool,
    output: &Output,
) -> Result<(), CliError> {
    let from = match base {
        Some(base) => format!(
            "all of policy {} (priority {})",
            terminal_escape::line(&base.name),
            base.priority
        ),
        None => "no policy was in force".to_owned(),
    };
    if !is_there {
        show_queue(target, output)?;
    }
    output.line(&format!(
        "{} policy {}",
        output.paint("+", console::Style::new().green()),
        output.bold(terminal_escape::line(&policy.name))
    ))?;
    output.line(&format!(
        "    for {}, priority {}; {from}",
        terminal_escape::line(&policy.pattern),
        policy.priority
    ))?;
    for PolicyChange { key, before, after } in changes {
        let said = |value: &Value| terminal_escape::line(&value.to_string()).into_owned();
        let mark = |sign: &str, style: console::Style| output.paint(sign, style);
        let line = match before {
            Some(before) if before == after => format!("    {key} {}", said(after)),
            Some(before) => format!(
                "  {} {key} {} (was {})",
                mark("~", console::Style::new().yellow()),
                said(after),
                said(before)
            ),
            None => format!(
                "  {} {key} {}",
                mark("+", console::Style::new().green()),
                said(after)
            ),
        };
        output.line(&line)?;
    }
    Ok(())
}

fn as_json(
    queue: &str,
    policy: &Policy,
    changes: &[PolicyChange],
    target: &str,
    done: bool,
) -> Value {
    let changes: Vec<Value> = changes
        .iter()
        .map(|change| json!({"key": change.key, "before": change.before, "after": change.after}))
        .collect();
    json!({
        "queue": queue,
        "to": target,
        "enabled": done,
        "changed": done,
        "policy": policy.name,
        "pattern": policy.pattern,
        "priority": policy.priority,
        "definition": policy.definition,
        "changes": changes,
    })
}
