//! Plays scenarios with `retryrmq consume QUEUE … -- HANDLER`: the driver contract of `tests/scenarios/README.md`.
//!
//! The handler is this same program, run once per message by `retryrmq`. It cannot know which run of a message it is, nor
//! print to the checker, so it asks and tells the driver over a socket:
//!
//! ```text
//! checker ⇄ driver ─→ retryrmq consume ─→ handler (one per message)
//!             ⇅ socket: what I see → which step; settled → go on ⇅
//! ```
//!
//! `retryrmq` is looked for in the environment variable `RETRYRMQ`, beside this program, and in PATH.

mod command;
mod consume;
mod follow;
mod handler;
mod handler_protocol;
mod subcommands;

use std::process::ExitCode;

use retryrmq_scenarios::script::{Order, say};
use serde_json::json;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What the command can do. It has no fatal errors: exit status 65 parks, whatever the reason.
const CAN: [&str; 20] = [
    "error",
    "exit_status",
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
    "whole_headers",
    "publish",
    "events",
];

fn main() -> ExitCode {
    if let Some(socket) = std::env::var_os(handler_protocol::SOCKET) {
        return handler::run(&socket);
    }
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
            say(&json!({"line": "driver", "name": "command", "can": can}));
            Ok(())
        }
        Order::Consume(play) => consume::consume(*play).await,
        Order::Replay { url, queue } => subcommands::replay(&url, &queue).await,
        Order::Publish { url, messages } => subcommands::publish(&url, messages).await,
    }
}
