//! Plays scenarios with `retryrmq consume QUEUE … --http URL`: the driver contract of `tests/scenarios/README.md`.
//!
//! The endpoint is this program; `retryrmq` runs beside it, found as the other driver finds it. What is no consuming is the
//! command's own, as there.

mod command;
mod endpoint;
mod follow;
mod subcommands;

use std::{
    process::{ExitCode, Stdio},
    sync::Arc,
};

use nix::{sys::signal::Signal, sys::signal::kill, unistd::Pid};
use retryrmq_scenarios::script::{Order, Play, Script, say};
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What the command can do with an endpoint. Its errors' types are statuses, not exit statuses.
const CAN: [&str; 18] = [
    "error",
    "retry_after",
    "park",
    "defer",
    "panic",
    "exit",
    "rules",
    "handler_timeout",
    "pause",
    "declare",
    "queue_type",
    "prefetch_bytes",
    "crash_limit",
    "defer_limit",
    "replay",
    "records",
    "publish",
    "events",
];

fn main() -> ExitCode {
    match obey() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn obey() -> Result<(), Failed> {
    match Order::read()? {
        Order::Describe => {
            let can: Vec<&str> = CAN.into_iter().chain(["refused"]).collect();
            say(&json!({"line": "driver", "name": "http", "can": can}));
            Ok(())
        }
        Order::Consume(play) => consume(*play).await,
        Order::Replay { url, queue } => subcommands::replay(&url, &queue).await,
        Order::Publish { url, messages } => subcommands::publish(&url, messages).await,
    }
}

async fn consume(play: Play) -> Result<(), Failed> {
    let mut end = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let mut command = command::retryrmq(&play.url);
    command
        .arg("consume")
        .arg(&play.queue)
        .args(command::arguments(&play.consume))
        .args(["--http", &url])
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let id = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .map(Pid::from_raw)
        .ok_or("retryrmq ended at once")?;
    let script = Arc::new(Script::new(play.handler, play.runs));
    let serving = tokio::spawn(endpoint::serve(listener, script, id));
    let events = follow::events(child.stdout.take().ok_or("no standard output")?);
    let errors = follow::faults(child.stderr.take().ok_or("no standard error")?);
    let mut was_asked = false;
    let status = loop {
        tokio::select! {
            _ = end.recv() => {
                was_asked = true;
                kill(id, Signal::SIGTERM)?;
            }
            status = child.wait() => break status?,
        }
    };
    serving.abort();
    follow::conclude(status, was_asked, events, errors).await
}
