//! What waits in the service's store, asked through the service's own program: the command itself knows no store.

use std::{
    convert::Infallible,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use super::MoveAction;
use crate::{error::CliError, exit::Exit, global::Global, serve, shutdown::Shutdown};
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
    remaining_ms: u64,
    /// When we were told so.
    #[serde(skip, default = "SystemTime::now")]
    listed: SystemTime,
    pub(super) bytes: u64,
    pub(super) body: Option<String>,
    /// A body that is no text.
    pub(super) body_base64: Option<String>,
}

/// What became of one.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct StoreAnswer {
    pub(super) id: String,
    pub(super) outcome: String,
    pub(super) error: Option<String>,
}

/// What the program answered.
#[derive(Debug)]
pub(super) struct Asked<T> {
    /// Those that came, which may not be all.
    pub(super) answers: Vec<T>,
    /// Why they are not.
    pub(super) failure: Option<CliError>,
    /// It was still at a message a moment after somebody wanted us to end.
    pub(super) is_cut: bool,
}

impl StoredMessage {
    /// When it comes back. One that was brought back early is due now, whatever it was to be.
    pub(super) fn due(&self) -> Option<SystemTime> {
        self.listed
            .checked_add(Duration::from_millis(self.remaining_ms))
    }

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
        let queue = format!("--queue={}", self.queue);
        self.ask(global, &["--waiting", &queue], None).await?.all()
    }

    /// One message, with its body.
    pub(super) async fn show(
        &self,
        id: &str,
        global: &Global,
    ) -> Result<Vec<StoredMessage>, CliError> {
        let id = format!("--show={id}");
        self.ask(global, &[&id], None).await?.all()
    }

    /// Makes messages due now, or parks them.
    pub(super) async fn move_messages(
        &self,
        action: MoveAction,
        ids: &[&str],
        shutdown: &Shutdown,
        global: &Global,
    ) -> Result<Asked<StoreAnswer>, CliError> {
        let option = match action {
            MoveAction::Flush => "--flush",
            MoveAction::Cancel => "--park",
        };
        self.ask(global, &[option, "-"], Some((ids, shutdown)))
            .await
    }

    /// Runs the program, gives it ids to move if there are any, and reads its lines.
    ///
    /// # Errors
    /// It could not be run.
    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        global: &Global,
        arguments: &[&str],
        moves: Option<(&[&str], &Shutdown)>,
    ) -> Result<Asked<T>, CliError> {
        let program = serve::program()?;
        let cannot = |why: std::io::Error| {
            CliError::failed(format!("cannot run {}: {why}", program.display()))
        };
        let mut command = Command::new(&program);
        command
            // Not as an argument: other users of the machine can see those.
            .env("RETRYRMQ_URL", global.broker_url())
            .args(["--quiet", "--config"])
            .arg(&self.file)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What moves messages ends by itself, behind the one that it is at.
            .kill_on_drop(moves.is_none());
        if moves.is_some() {
            // Ctrl-C goes to the whole group of a terminal; we pass it on, once.
            command.process_group(0);
        }
        let mut child = command.spawn().map_err(cannot)?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let ids = moves.map(|(ids, _)| ids).unwrap_or_default();
        let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
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
        let mut answers = Vec::new();
        let read = async {
            if let Some(stdout) = stdout {
                let mut lines = BufReader::new(stdout).lines();
                while let Some(line) = lines.next_line().await? {
                    answers.push(serde_json::from_str(&line)?);
                }
            }
            Ok::<_, std::io::Error>(())
        };
        let work = async {
            let ((), said, read) = tokio::join!(give, complain, read);
            (said, read, child.wait().await)
        };
        let ended = match moves {
            None => Some(work.await),
            Some((_, shutdown)) => {
                tokio::select! {
                    ended = shutdown.unless_cut(work) => ended,
                    never = pass_on(shutdown, pid) => match never {},
                }
            }
        };
        let Some((said, read, status)) = ended else {
            return Ok(Asked {
                answers,
                failure: None,
                is_cut: true,
            });
        };
        let is_all = moves.is_some_and(|(ids, _)| ids.len() == answers.len());
        let is_asked = moves.is_some_and(|(_, shutdown)| shutdown.is_set());
        let failure = match (read, status) {
            (Err(why), _) | (_, Err(why)) => Some(cannot(why)),
            (Ok(()), Ok(status)) if status.success() || is_all => None,
            (Ok(()), Ok(status)) => match Exit::of_service(status.code()) {
                Exit::Interrupted if is_asked => None,
                exit => Some(self.failure(exit, &said, status)),
            },
        };
        Ok(Asked {
            answers,
            failure,
            is_cut: false,
        })
    }

    fn failure(&self, exit: Exit, said: &str, status: ExitStatus) -> CliError {
        let said = said.trim();
        let why = match said.strip_prefix("error: ").unwrap_or(said) {
            "" => format!("`retryrmq-serve` ended early ({status})"),
            why => why.to_owned(),
        };
        CliError::of_program(exit, format!("{}: {why}", self.place()))
    }
}

impl<T> Asked<T> {
    /// The answers, if these are all.
    fn all(self) -> Result<Vec<T>, CliError> {
        self.failure.map_or(Ok(self.answers), Err)
    }
}

/// Passes the wish to end on to the program, which finishes the message that it is at.
async fn pass_on(shutdown: &Shutdown, pid: Option<Pid>) -> Infallible {
    shutdown.clone().wait().await;
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM); // it may have ended by itself
    }
    std::future::pending().await
}
