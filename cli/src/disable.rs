//! `retryrmq disable`: takes back what `enable` did.

use std::time::{Duration, Instant};

use clap::Args;
use retryrmq::terminal_escape;
use retryrmq_operator::{
    dlx_policy::{PolicyName, base_of},
    management::{Policy, Scope},
};
use serde_json::json;

use crate::{
    error::CliError,
    exit::Exit,
    global::Global,
    management::{self, ManagementClient},
    output::Output,
    prompt,
};

/// How long a policy may take until it is gone everywhere.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Undo what `enable` did: the previous policy is in force again
///
/// The policy that was made goes; no queue does, and what is parked stays. A policy that somebody has changed since is not touched without --force.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq disable [OPTIONS] <QUEUE>")]
pub(crate) struct Options {
    /// The queue
    queue: String,

    /// Delete the policy even if somebody changed it
    #[arg(long)]
    force: bool,

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
    let management_client = options.management.open(global)?;
    let ours = ours(&management_client, &options).await?;
    if ours.is_empty() {
        if output.is_json() {
            output.json_document(&json!({"queue": name, "changed": false, "deleted": []}))?;
        } else {
            output.line(&format!(
                "nothing to do: there is no policy of `retryrmq enable` for {}",
                terminal_escape::line(name)
            ))?;
        }
        return Ok(Exit::Ok);
    }
    let after = after(&management_client, name).await?;
    let deleted: Vec<&str> = ours.iter().map(|policy| policy.name.as_str()).collect();
    if !output.is_json() {
        for name in &deleted {
            output.line(&format!(
                "{} policy {}",
                output.paint("-", console::Style::new().red()),
                output.bold(terminal_escape::line(name))
            ))?;
        }
        output.line(&format!("    {}", terminal_escape::line(&after)))?;
    }
    if !options.dry_run {
        let question = format!("Delete this policy of {name}?");
        if !prompt::wants(options.yes, prompt::POLICY, &question, output).await? {
            return Ok(Exit::Ok);
        }
        // Somebody may have changed it while we asked.
        if self::ours(&management_client, &options).await? != ours {
            return Err(CliError::failed(
                "the policy has changed in this moment, and nothing was done: look again",
            ));
        }
        for policy in &ours {
            management_client
                .api
                .delete_policy(&management_client.vhost, &policy.name)
                .await?;
        }
        until_gone(&management_client, name).await?;
    }
    if output.is_json() {
        output.json_document(&json!({
            "queue": name,
            "changed": !options.dry_run,
            "deleted": deleted,
        }))?;
    } else if !options.dry_run {
        output.line("done")?;
    }
    Ok(Exit::Ok)
}

/// The policies that `enable` made for the queue, as they were made.
async fn ours(
    management_client: &ManagementClient,
    options: &Options,
) -> Result<Vec<Policy>, CliError> {
    let mut ours = Vec::new();
    for policy in management_client
        .api
        .policies(&management_client.vhost, Scope::Users)
        .await?
    {
        let Some(mark) = PolicyName::of(&policy).filter(|mark| mark.queue == options.queue) else {
            continue;
        };
        if !mark.is_of(&policy) && !options.force {
            return Err(CliError::refused(format!(
                "somebody has changed `{}` since it was made: pattern `{}`, priority {}, {}. Nothing was done; pass --force to delete it as it is",
                policy.name,
                policy.pattern,
                policy.priority,
                serde_json::Value::Object(policy.definition.clone())
            )));
        }
        ours.push(policy);
    }
    Ok(ours)
}

/// What is in force then, in a sentence.
async fn after(management_client: &ManagementClient, name: &str) -> Result<String, CliError> {
    let Some(queue) = management_client
        .api
        .queue(&management_client.vhost, name)
        .await?
    else {
        return Ok("its queue is gone".to_owned());
    };
    let policies = management_client
        .api
        .policies(&management_client.vhost, Scope::Users)
        .await?;
    let dropped = "what it rejects is dropped from then on";
    Ok(match base_of(&queue, &policies) {
        Some(Some(base)) => {
            let routed = base.definition.contains_key("dead-letter-exchange");
            let consequence = if routed {
                "which has a dead-letter route"
            } else {
                dropped
            };
            format!("then policy {} is in force: {consequence}", base.name)
        }
        Some(None) => format!("then no policy is in force: {dropped}"),
        None => "then the policy is in force that the broker finds".to_owned(),
    })
}

async fn until_gone(management_client: &ManagementClient, name: &str) -> Result<(), CliError> {
    let until = Instant::now() + TIME_LIMIT;
    loop {
        let seen = management_client
            .api
            .queue(&management_client.vhost, name)
            .await?;
        let policies = management_client
            .api
            .policies(&management_client.vhost, Scope::Users)
            .await?;
        let seen = seen.and_then(|queue| queue.policy);
        let is_ours =
            |policy: &Policy| PolicyName::of(policy).is_some_and(|mark| mark.queue == name);
        let gone = !policies.iter().any(is_ours)
            && seen
                .as_ref()
                .is_none_or(|seen| policies.iter().any(|policy| policy.name == *seen));
        if gone {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(CliError::failed(format!(
                "the policy was deleted, and the broker still shows `{}` on `{name}`: look with `rabbitmqctl list_policies`",
                seen.unwrap_or_default()
            )));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
