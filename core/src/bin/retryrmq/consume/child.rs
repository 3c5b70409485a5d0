//! One run of the command: its input, its end, and the end of everything it started.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use retryrmq::Message;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncWriteExt,
    process::Command,
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    environment::{self, Environment},
    tail::{Tail, pass_on},
    verdict::Ending,
    warden::Warden,
};

/// How long to try again when the machine has no process to spare.
const PATIENCE: Duration = Duration::from_secs(10);

/// How urgently running commands have to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// In their own time.
    #[default]
    None,
    /// SIGTERM, and SIGKILL after the grace period.
    Soon,
    /// SIGKILL.
    Now,
}

/// What to run, and for how long at most.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: std::path::PathBuf,
    pub(super) name: std::ffi::OsString,
    pub(super) arguments: Vec<std::ffi::OsString>,
    pub(super) timeout: Option<Duration>,
    pub(super) grace: Duration,
    /// Whether our standard output is for JSON alone.
    pub(super) keep_stdout: bool,
    pub(super) warden: Warden,
}

/// How a run ended.
pub(super) enum Run {
    /// By itself or by its timeout; with the end of its standard error.
    Ended(Ending, Vec<u8>),
    /// By us: no attempt, the message goes back to its queue.
    Stopped,
}

/// The process group of a command. Unless it was let go, all of it is killed when this is dropped.
struct Group {
    id: Option<Pid>,
    warden: Warden,
    let_go: bool,
}

impl Group {
    fn of(child: &tokio::process::Child, warden: &Warden) -> Self {
        let id = child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(id) = id {
            warden.began(id);
        }
        Self {
            id,
            warden: warden.clone(),
            let_go: false,
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.id {
            let _ = kill_process_group(group, signal); // it may be gone
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.let_go {
            self.signal(Signal::KILL);
        }
        if let Some(group) = self.id {
            self.warden.ended(group);
        }
    }
}

impl Program {
    /// Runs the command for `message`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) async fn run(
        &self,
        message: &Message,
        mut urgency: watch::Receiver<Urgency>,
    ) -> io::Result<Run> {
        let mut child = self.spawn(message).await?;
        let mut group = Group::of(&child, &self.warden);
        let tail = Tail::default();
        let mut passing = tokio::spawn(pass_on(
            child.stderr.take().ok_or_else(no_pipe)?,
            tail.clone(),
        ));
        let mut input = child.stdin.take().ok_or_else(no_pipe)?;
        let body = message.clone();
        let feeding = tokio::spawn(async move {
            // A command need not read its input: a closed pipe is no failure.
            let _ = input.write_all(body.body()).await;
            let _ = input.shutdown().await;
        });
        let too_late = async {
            match self.timeout {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let stopped = async {
            // The sender lives as long as the consumer.
            let _ = urgency.wait_for(|urgency| *urgency >= Urgency::Soon).await;
        };
        let result = tokio::select! {
            status = child.wait() => Ok(Run::Ended(ending(status?), Vec::new())),
            () = too_late => {
                self.end(&mut child, &group).await;
                Ok(Run::Ended(Ending::Timeout(self.timeout.unwrap_or_default()), Vec::new()))
            }
            () = stopped => {
                let now = async {
                    let _ = urgency.wait_for(|urgency| *urgency == Urgency::Now).await;
                };
                tokio::select! {
                    () = self.end(&mut child, &group) => {}
                    () = now => {
                        group.signal(Signal::KILL);
                        let _ = child.wait().await;
                    }
                }
                Ok(Run::Stopped)
            }
        };
        feeding.abort();
        if let Ok(Run::Ended(ending, _)) = result {
            if !matches!(ending, Ending::Timeout(_)) {
                group.let_go = true; // what it left behind on purpose may go on
            }
            tail.settle(&mut passing).await;
            return Ok(Run::Ended(ending, tail.bytes()));
        }
        result
    }

    async fn spawn(&self, message: &Message) -> io::Result<tokio::process::Child> {
        let began = tokio::time::Instant::now();
        let mut environment = environment::of(message);
        loop {
            match self.command(&environment).spawn() {
                Ok(child) => return Ok(child),
                Err(error)
                    if error.kind() == io::ErrorKind::ArgumentListTooLong
                        && environment["RETRYRMQ_HEADERS"] != "{}" =>
                {
                    environment = environment::without_headers(message);
                }
                // No process or memory to spare just now.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory
                    ) && began.elapsed() < PATIENCE =>
                {
                    sleep(Duration::from_millis(200)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn command(&self, environment: &Environment) -> Command {
        let mut command = std::process::Command::new(&self.path);
        std::os::unix::process::CommandExt::arg0(&mut command, &self.name);
        let mut command = Command::from(command);
        command.args(&self.arguments);
        for name in environment::NAMES {
            command.env_remove(name);
        }
        command.envs(environment);
        let stdout = if self.keep_stdout {
            Stdio::from(io::stderr())
        } else {
            Stdio::inherit()
        };
        command
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(Stdio::piped());
        // A group of its own: Ctrl-C at the terminal reaches us alone, and a timeout all that the command started.
        command.process_group(0).kill_on_drop(true);
        command
    }

    /// Asks the whole group to end, waits for the command, then makes sure of the rest.
    async fn end(&self, child: &mut tokio::process::Child, group: &Group) {
        group.signal(Signal::TERM);
        group.signal(Signal::CONT); // a stopped process takes no SIGTERM
        if timeout(self.grace, child.wait()).await.is_err() {
            group.signal(Signal::KILL);
            let _ = child.wait().await;
        }
        group.signal(Signal::KILL);
    }
}

fn no_pipe() -> io::Error {
    io::Error::other("a pipe to the command is missing")
}

fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exit(code),
        (None, signal) => Ending::Signal(signal.unwrap_or_default()),
    }
}
