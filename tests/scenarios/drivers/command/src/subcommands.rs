//! The other subcommands: one thing each, and an end.

use std::{
    io::BufRead,
    process::{ExitStatus, Stdio},
};

use retryrmq_scenarios::script::{Outgoing, now_ms, say};
use serde_json::{Map, Value, json};
use tokio::process::Command;

use crate::Failed;
use crate::command::{ms, retryrmq};

pub(crate) async fn replay(url: &str, queue: &str) -> Result<(), Failed> {
    let mut command = retryrmq(url);
    command.args(["parked", "replay", queue, "--all"]);
    let output = command.stdin(Stdio::null()).output().await?;
    for line in output.stdout.lines() {
        let record: Map<String, Value> = serde_json::from_str(&line?)?;
        let mut said = json!({"line": "parked", "id": record["message_id"].as_str().unwrap_or("")});
        for name in [
            "reason",
            "by_broker",
            "home",
            "error",
            "error_type",
            "attempts",
        ] {
            said[name] = record.get(name).cloned().unwrap_or_default();
        }
        say(&said);
    }
    ended(output.status)
}

pub(crate) async fn publish(url: &str, messages: Vec<Outgoing>) -> Result<(), Failed> {
    for message in messages {
        let mut command = retryrmq(url);
        command.arg("publish");
        if message.exchange.is_empty() {
            command.arg(format!("--queue={}", message.routing_key));
        } else {
            command
                .arg(format!("--exchange={}", message.exchange))
                .arg(format!("--routing-key={}", message.routing_key));
        }
        for (key, value) in &message.headers {
            let header = match value {
                Value::String(text) => format!("--header={key}={text}"),
                other => format!("--header={key}:={other}"),
            };
            command.arg(header);
        }
        if let Some(delay) = message.delay_ms {
            command.arg(format!("--delay={}", ms(delay)));
        }
        command.arg("--").arg(&message.body);
        let at_ms = now_ms();
        succeed(command).await?;
        say(&json!({"line": "published", "id": message.id, "at_ms": at_ms}));
    }
    Ok(())
}

async fn succeed(mut command: Command) -> Result<(), Failed> {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .await?;
    ended(status)
}

fn ended(status: ExitStatus) -> Result<(), Failed> {
    if status.success() {
        Ok(())
    } else {
        Err(format!("retryrmq ended with {status}").into())
    }
}
