//! Runs `retryrmq consume` and serves its handlers.

use std::process::Stdio;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use retryrmq_scenarios::script::{Act, Play, Script, now_ms, say};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failed;
use crate::command::{arguments, retryrmq};
use crate::follow;
use crate::handler_protocol::{SOCKET, Word};

pub(crate) async fn consume(play: Play) -> Result<(), Failed> {
    let mut end = signal(SignalKind::terminate())?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket)?;
    let mut command = retryrmq(&play.url);
    command
        .arg("consume")
        .arg(&play.queue)
        .args(arguments(&play.consume))
        .arg("--")
        .arg(std::env::current_exe()?);
    command.env(SOCKET, &socket).kill_on_drop(true);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let id = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .map(Pid::from_raw)
        .ok_or("retryrmq ended at once")?;
    let events = follow::events(child.stdout.take().ok_or("no standard output")?);
    let errors = follow::faults(child.stderr.take().ok_or("no standard error")?);
    let script = Arc::new(Script::new(play.handler, play.runs));
    let mut was_asked = false;
    let status = loop {
        tokio::select! {
            connection = listener.accept() => {
                let (script, handler) = (Arc::clone(&script), connection?.0);
                tokio::spawn(async move {
                    if let Err(error) = serve(handler, &script, id).await {
                        eprintln!("a handler was not served: {error}");
                    }
                });
            }
            _ = end.recv() => {
                was_asked = true;
                kill(id, Signal::SIGTERM)?;
            }
            status = child.wait() => break status?,
        }
    };
    follow::conclude(status, was_asked, events, errors).await
}

/// One handler, from its first word to its end.
async fn serve(handler: UnixStream, script: &Script, retryrmq: Pid) -> Result<(), Failed> {
    let (input, mut output) = handler.into_split();
    let mut lines = BufReader::new(input).lines();
    let Some(Word::Sees(mut fields)) = next(&mut lines).await? else {
        return Err("it did not say what it sees".into());
    };
    let id = fields
        .get("id")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let (run, step) = script.next(&id);
    fields.insert("line".into(), "attempt".into());
    fields.insert("run".into(), run.into());
    say(&Value::Object(fields));
    output
        .write_all(format!("{}\n", json!({ "step": step })).as_bytes())
        .await?;
    // one that is killed by the command, after its timeout, says no more
    if next(&mut lines).await?.is_some() {
        if step.act == Act::Exit {
            let _ = kill(retryrmq, Signal::SIGKILL);
            let _ = raise(Signal::SIGKILL);
        }
        say(&json!({"line": "settled", "id": id, "run": run, "at_ms": now_ms()}));
        output.write_all(b"\n").await?;
    }
    Ok(())
}

async fn next(
    lines: &mut tokio::io::Lines<BufReader<tokio::net::unix::OwnedReadHalf>>,
) -> Result<Option<Word>, Failed> {
    Ok(lines
        .next_line()
        .await?
        .map(|line| serde_json::from_str(&line))
        .transpose()?)
}
