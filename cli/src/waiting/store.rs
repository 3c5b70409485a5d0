//! What waits in the service's store, asked through the service's own program: the command itself knows no store.

use std::{path::PathBuf, process::Stdio};

use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use crate::{error::CliError, exit::Exit, global::Global, serve};
use retryrmq::terminal_escape;

/// The store that the policy file of `retryrmq serve` names.
#[derive(Clone, Debug)]
pub(super) struct PolicyStore {
    pub(super) file: PathBuf,
    pub(super) queue: String,
}

/// A message in it, as the program lists it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct StoredMessage {
    pub(super) id: String,
    mark: String,
    message_id: Option<String>,
    pub(super) exchange: Option<String>,
    pub(super) routing_key: String,
    pub(super) delayed_from: Option<String>,
    pub(super) retries: u32,
    pub(super) error: String,
    pub(super) error_type: String,
    pub(super) delay_ms: u64,
    pub(super) due: Option<String>,
    pub(super) remaining_ms: u64,
    pub(super) bytes: u64,
    pub(super) body: Option<String>,
}

/// What became of one.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct StoreAnswer {
    pub(super) id: String,
    pub(super) outcome: String,
    pub(super) error: Option<String>,
}

impl StoredMessage {
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// The name that it goes by, as one that waits in the broker: its id, or its mark.
    pub(super) fn name(&self) -> String {
        match &self.message_id {
            Some(id) => id.clone(),
            None => format!("#{}", self.mark),
        }
    }

    pub(super) fn is(&self, id: &str) -> bool {
        self.message_id.as_deref() == Some(id)
            || self.id == id
            || id.strip_prefix('#') == Some(&self.mark)
    }
}

impl PolicyStore {
    /// The place, as people read it.
    pub(super) fn place(&self) -> String {
        let file = self.file.display().to_string();
        format!("the store of {}", terminal_escape::line(&file))
    }

    /// What waits for the queue, by due time.
    pub(super) async fn list(&self, global: &Global) -> Result<Vec<StoredMessage>, CliError> {
        self.ask(global, &["--waiting", "--queue", &self.queue], None)
            .await
    }

    /// One message, with its body.
    pub(super) async fn show(&self, id: &str, global: &Global) -> Result<Vec<Value>, CliError> {
        self.ask(global, &["--show", id], None).await
    }

    /// Makes messages due now.
    pub(super) async fn flush(
        &self,
        ids: &[&str],
        global: &Global,
    ) -> Result<Vec<StoreAnswer>, CliError> {
        self.ask(global, &["--flush", "-"], Some(ids)).await
    }

    /// Parks messages.
    pub(super) async fn park(
        &self,
        ids: &[&str],
        global: &Global,
    ) -> Result<Vec<StoreAnswer>, CliError> {
        self.ask(global, &["--park", "-"], Some(ids)).await
    }

    /// Runs the program, gives it `ids`, and reads its lines. With ids, what it answered by then counts more than that it failed.
    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        global: &Global,
        arguments: &[&str],
        ids: Option<&[&str]>,
    ) -> Result<Vec<T>, CliError> {
        let program = serve::program()?;
        let cannot = |why: std::io::Error| {
            CliError::failed(format!("cannot run {}: {why}", program.display()))
        };
        let mut child = Command::new(&program)
            // Not as an argument: other users of the machine can see those.
            .env("RETRYRMQ_URL", global.broker_url())
            .args(["--quiet", "--config"])
            .arg(&self.file)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(cannot)?;
        let text: String = ids
            .unwrap_or_default()
            .iter()
            .map(|id| format!("{id}\n"))
            .collect();
        let stdin = child.stdin.take();
        let give = async move {
            if let Some(mut stdin) = stdin {
                // A program that ends early says why.
                let _ = stdin.write_all(text.as_bytes()).await;
            }
        };
        let stderr = child.stderr.take();
        let complain = async move {
            let mut said = String::new();
            if let Some(mut stderr) = stderr {
                let _ = stderr.read_to_string(&mut said).await;
            }
            said
        };
        let stdout = child.stdout.take();
        let read = async move {
            let mut answers = Vec::new();
            if let Some(stdout) = stdout {
                let mut lines = BufReader::new(stdout).lines();
                while let Some(line) = lines.next_line().await? {
                    answers.push(serde_json::from_str(&line)?);
                }
            }
            Ok::<_, std::io::Error>(answers)
        };
        let ((), said, answers) = tokio::join!(give, complain, read);
        let answers: Vec<T> = answers.map_err(cannot)?;
        let status = child.wait().await.map_err(cannot)?;
        if status.success() || ids.is_some_and(|ids| ids.len() == answers.len()) {
            return Ok(answers);
        }
        let why = said.trim();
        let why = why.strip_prefix("error: ").unwrap_or(why);
        let done = match answers.len() {
            0 => String::new(),
            count => format!("; {count} of them were answered before"),
        };
        Err(CliError::of_program(
            Exit::of_service(status.code()),
            format!("{}: {why}{done}", self.place()),
        ))
    }
}
