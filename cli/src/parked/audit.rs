//! `--audit FILE` and `--audit-stream NAME`: who did what with which message, a JSON object for each, written down for good before
//! the message leaves its queue.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use clap::Args;
use futures_util::future::join_all;
use retryrmq::{BasicProperties, Client, DAY, Publish, Record};
use serde_json::{Value, json};

use crate::{error::CliError, json, shutdown::Shutdown, time_format};
use retryrmq::terminal_escape;

/// Where what happens is written down.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct AuditLog {
    /// Append a JSON line for each message to this file, on the disk before the message leaves the parking queue: when, who, what
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,

    /// Publish the same to this stream, confirmed before the message leaves; a missing stream is made, and keeps 5 GB and 365 days.
    /// The page of `retryrmq serve` shows what is in retryrmq.serve.history
    #[arg(long, value_name = "NAME")]
    audit_stream: Option<String>,
}

/// What a stream keeps that is made here: who replayed what is asked within a year, and 5 GB are about ten million messages.
const KEPT: Duration = DAY.saturating_mul(365);
const KEPT_BYTES: u64 = 5_000_000_000;
/// The property `type` of what stands in a stream.
const KIND: &str = "retryrmq.audit";
const NOTHING: &str = "nothing was done";

/// What is written to.
#[derive(Debug)]
pub(super) struct Audit {
    file: Option<(File, PathBuf)>,
    stream: Option<(Client, String)>,
    /// Somebody wants us to end, and does not wait for a broker with an alarm.
    shutdown: Option<Shutdown>,
    command: &'static str,
    queue: String,
    who: String,
}

impl Audit {
    /// Opens file and stream, and writes that something begins: what takes nothing stops it before anything happens.
    pub(super) async fn open(
        log: Option<&AuditLog>,
        (client, shutdown): (&Client, &Shutdown),
        command: &'static str,
        queue: &str,
    ) -> Result<Option<Self>, CliError> {
        let Some(log) = log else {
            return Ok(None);
        };
        let stream = match &log.audit_stream {
            Some(name) if name.is_empty() => {
                return Err(CliError::usage("--audit-stream names no stream"));
            }
            Some(name) => {
                let made = shutdown
                    .unless_cut(client.stream(name, KEPT, KEPT_BYTES))
                    .await;
                let made = made.unwrap_or_else(|| Ok(()));
                made.map_err(|why| CliError::from(why).after(NOTHING))?;
                Some((client.clone(), name.clone()))
            }
            None => None,
        };
        let Some(mut audit) = Self::to_file(log.audit.as_deref(), command, queue)?
            .or_else(|| stream.is_some().then(|| Self::new(command, queue)))
        else {
            return Ok(None);
        };
        audit.stream = stream;
        audit.shutdown = Some(shutdown.clone());
        let begun = audit.line("begun");
        audit.append(&[begun], NOTHING).await?;
        Ok(Some(audit))
    }

    fn new(command: &'static str, queue: &str) -> Self {
        Self {
            file: None,
            stream: None,
            shutdown: None,
            command,
            queue: queue.to_owned(),
            who: who(),
        }
    }

    fn to_file(
        path: Option<&Path>,
        command: &'static str,
        queue: &str,
    ) -> Result<Option<Self>, CliError> {
        let Some(path) = path else {
            return Ok(None);
        };
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).open(path);
        let file = file.map_err(|why| unwritable(path, &why, NOTHING))?;
        let mut audit = Self::new(command, queue);
        audit.file = Some((file, path.to_owned()));
        Ok(Some(audit))
    }

    /// A line about no message in particular.
    pub(super) fn line(&self, event: &str) -> Value {
        json!({
            "at": time_format::rfc3339(SystemTime::now()),
            "who": self.who,
            "command": self.command,
            "queue": self.queue,
            "event": event,
        })
    }

    /// A line about a message: what happens to it, and where it goes.
    pub(super) fn of(&self, event: &str, record: &Record, to: Option<&str>) -> Value {
        let mut line = self.line(event);
        line["message_id"] = json!(record.message().message_id());
        line["mark"] = json!(record.mark);
        line["fingerprint"] = json!(record.fingerprint);
        if let Some(to) = to {
            line["to"] = json!(to);
        }
        line
    }

    /// Appends lines, and returns when they are on the disk and confirmed.
    pub(super) async fn append(&mut self, lines: &[Value], done: &str) -> Result<(), CliError> {
        if lines.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = lines
            .iter()
            .map(|line| json::harmless(line.to_string()))
            .collect();
        if let Some((file, path)) = &mut self.file {
            write(file, &lines).map_err(|why| unwritable(path, &why, done))?;
        }
        let Some((client, name)) = &self.stream else {
            return Ok(());
        };
        let sent = join_all(lines.into_iter().map(|line| {
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_content_type("application/json".into())
                .with_type(KIND.into());
            client.publish(Publish::to_queue(name, line).properties(properties))
        }));
        let sent = match &self.shutdown {
            Some(shutdown) => shutdown.unless_cut(sent).await,
            None => Some(sent.await),
        };
        let stream = terminal_escape::line(name);
        let Some(sent) = sent else {
            return Err(CliError::failed(format!(
                "stopped before the broker took what is for the stream {stream} of --audit-stream, which may lack it; {done}"
            )));
        };
        match sent.into_iter().find_map(Result::err) {
            None => Ok(()),
            Some(why) => {
                let cli_error = CliError::from(why);
                Err(cli_error.after(&format!(
                    "the stream {stream} of --audit-stream may lack it; {done}"
                )))
            }
        }
    }
}

/// In one call, so that the lines of two commands do not mix.
fn write(file: &mut File, lines: &[String]) -> std::io::Result<()> {
    let mut text = String::new();
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    file.write_all(text.as_bytes())?;
    match file.sync_data() {
        // A pipe or a terminal has no disk to wait for.
        Err(why) if why.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

fn unwritable(path: &Path, why: &std::io::Error, done: &str) -> CliError {
    let path = path.to_string_lossy();
    CliError::failed(format!(
        "cannot write the --audit file {}: {why}; {done}",
        terminal_escape::line(&path)
    ))
}

/// The user of the operating system, and the machine: `ana@shop-1`, `root@shop-1 (ana)` by way of sudo.
pub(super) fn who() -> String {
    let host = gethostname::gethostname();
    let (user, host) = (user(), host.to_string_lossy());
    match std::env::var("SUDO_USER") {
        Ok(caller) if !caller.is_empty() && caller != user => format!("{user}@{host} ({caller})"),
        _ => format!("{user}@{host}"),
    }
}

/// Not from the environment, where anybody says who they are, unless nobody else knows.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let named = std::fs::read_to_string("/etc/passwd").ok();
    let named = named.as_deref().and_then(|all| name_of(all, &uid));
    named
        .or_else(|| {
            std::env::var("LOGNAME")
                .ok()
                .filter(|name| !name.is_empty())
        })
        .unwrap_or_else(|| format!("uid {uid}"))
}

fn name_of(passwd: &str, uid: &str) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_that_the_system_gives() {
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\n# comment\nana:x:1000:1000::/home/ana:/bin/sh\n";
        assert_eq!(name_of(passwd, "1000").as_deref(), Some("ana"));
        assert_eq!(name_of(passwd, "0").as_deref(), Some("root"));
        assert_eq!(name_of(passwd, "100"), None);
    }

    #[tokio::test]
    async fn lines_are_appended_and_a_file_that_takes_none_stops_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        for event in ["replayed", "dropped"] {
            let mut audit = Audit::to_file(Some(&path), "replay", "orders")
                .unwrap()
                .unwrap();
            let lines = [audit.line("begun"), audit.line(event)];
            audit.append(&lines, "").await.unwrap();
        }
        let lines: Vec<Value> = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let events: Vec<_> = lines.iter().map(|line| line["event"].clone()).collect();
        assert_eq!(events, ["begun", "replayed", "begun", "dropped"]);
        assert!(lines[0]["who"].as_str().unwrap().contains('@'));
        let refused = Audit::to_file(Some(folder.path()), "replay", "orders").unwrap_err();
        assert!(
            refused.sentence().ends_with("nothing was done"),
            "{refused:?}"
        );
        if Path::new("/dev/full").exists() {
            let mut audit = Audit::to_file(Some(Path::new("/dev/full")), "drop", "orders")
                .unwrap()
                .unwrap();
            let line = audit.line("begun");
            let refused = audit.append(&[line], NOTHING).await.unwrap_err();
            assert!(refused.sentence().ends_with(NOTHING), "{refused:?}");
        }
    }
}
