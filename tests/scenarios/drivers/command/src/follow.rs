//! What `retryrmq consume --json` prints, passed on to the checker; and how it ended.

use std::process::ExitStatus;

use retryrmq_scenarios::script::say;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::task::JoinHandle;

use crate::Failed;

/// Reads lines to the end; in the end, the first that is of interest.
pub(crate) type Following = JoinHandle<Option<Value>>;

/// What the command prints are events, under their names. The one that says that consuming began is of interest.
pub(crate) fn events(output: impl AsyncRead + Unpin + Send + 'static) -> Following {
    follow(output, |line| {
        let event: Value = serde_json::from_str(line).ok()?;
        match event["event"].as_str()? {
            "consuming" => {
                say(&json!({"line": "ready"}));
                return Some(event);
            }
            name => {
                let mut line = json!({"line": "event", "kind": name});
                if let (Some(line), Some(said)) = (line.as_object_mut(), event.as_object()) {
                    line.extend(said.clone());
                }
                say(&line);
            }
        }
        None
    })
}

/// What the command says on standard error; a fault is of interest.
pub(crate) fn faults(output: impl AsyncRead + Unpin + Send + 'static) -> Following {
    follow(output, |line| {
        eprintln!("{line}");
        serde_json::from_str(line)
            .ok()
            .filter(|fault: &Value| fault["code"].is_string())
    })
}

fn follow(
    output: impl AsyncRead + Unpin + Send + 'static,
    take: impl Fn(&str) -> Option<Value> + Send + 'static,
) -> Following {
    tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        let mut first = None;
        while let Ok(Some(line)) = lines.next_line().await {
            let taken = take(&line);
            first = first.or(taken);
        }
        first
    })
}

/// The driver's last line, when `retryrmq` has ended.
///
/// # Errors
/// When it did not end as it was asked to.
pub(crate) async fn conclude(
    status: ExitStatus,
    was_asked: bool,
    events: Following,
    faults: Following,
) -> Result<(), Failed> {
    let (began, fault) = (events.await?.is_some(), faults.await?);
    match fault {
        Some(fault) if !began => {
            say(&json!({"line": "refused", "code": fault["code"], "message": fault["error"]}));
        }
        _ if status.success() && was_asked => say(&json!({"line": "done"})),
        _ => return Err(format!("retryrmq ended with {status}").into()),
    }
    Ok(())
}
