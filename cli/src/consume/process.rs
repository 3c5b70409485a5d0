//! One run of the command: its input, its end, and the end of everything it started.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::io::Errno;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    batch::{self, BatchInput},
    environment::{self, Environment},
    exit_outcome::{self, CommandEnd, OutcomeWords},
    orphan_reaper::OrphanReaper,
    outcome_pipe::OutcomePipe,
    process_group::{ProcessGroup, ProcessGroups},
    run::{RunEnd, RunVerdict, Urgency},
    stderr_tail::StderrForward,
    zombie_reaper::{self, AwaitedChild},
};

/// How long to try again when the machine has no process, memory or file to spare, although no command of ours runs
/// that will give some back.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Between two such tries.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two remarks on that.
const SILENCE: Duration = Duration::from_secs(60);
/// A service manager signals all processes one after the other: how much later than a command we may hear of it.
const LATER: Duration = Duration::from_millis(500);

/// How long the input of a batch may still be written after its command has ended.
const FEEDS: Duration = Duration::from_secs(1);

/// What to run, and for how long at most.
#[derive(Clone, Debug)]
pub(super) struct HandlerProgram {
    pub(super) path: std::path::PathBuf,
    pub(super) name: std::ffi::OsString,
    pub(super) arguments: Vec<std::ffi::OsString>,
    pub(super) timeout: Option<Duration>,
    pub(super) grace: Duration,
    /// The longest delay that it may choose.
    pub(super) longest: Duration,
    /// Whether our standard output is for JSON alone.
    pub(super) keep_stdout: bool,
    pub(super) orphan_reaper: OrphanReaper,
    pub(super) groups: ProcessGroups,
    pub(super) shortage: StartShortage,
}

/// When it was last said that commands wait to be started.
#[derive(Clone, Debug, Default)]
pub(super) struct StartShortage(Arc<Mutex<Option<Instant>>>);

impl StartShortage {
    fn warn(&self, error: &io::Error) {
        let mut last_warning = self.0.lock().unwrap_or_else(|poison| poison.into_inner());
        if last_warning.is_none_or(|last_warning| last_warning.elapsed() >= SILENCE) {
            *last_warning = Some(Instant::now());
            tracing::warn!(
                "commands wait until they can be started: {error}; lower --concurrency, or raise the limit (ulimit)"
            );
        }
    }
}

impl HandlerProgram {
    /// Runs the command for a message or a batch.
    ///
    /// # Errors
    /// When it began, and cannot be followed.
    pub(super) async fn run(
        &self,
        given: BatchInput,
        mut urgency: watch::Receiver<Urgency>,
    ) -> io::Result<RunEnd> {
        let (_awaited, mut child, channel) = match self.spawn(&given, &mut urgency).await {
            Ok(Some(started)) => started,
            Ok(None) => return Ok(RunEnd::Unstarted(None)),
            Err(why) => return Ok(RunEnd::Unstarted(Some(why))),
        };
        let mut group = ProcessGroup::of(&child, &self.groups, &self.orphan_reaper);
        let passing = StderrForward::of(child.stderr.take().ok_or_else(no_pipe)?);
        let mut input = child.stdin.take().ok_or_else(no_pipe)?;
        let count = given.messages().len();
        let is_batch = matches!(given, BatchInput::Batch(_));
        let whole = Arc::new(AtomicUsize::new(0));
        let fed = Arc::clone(&whole);
        let mut feeding = tokio::spawn(async move {
            // A command need not read the body of its message: a closed pipe is no failure.
            match &given {
                BatchInput::Message(message) => {
                    let _ = input.write_all(message.body()).await;
                }
                BatchInput::Batch(messages) => {
                    for message in messages {
                        if input.write_all(&batch::line(message)).await.is_err() {
                            break;
                        }
                        fed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            let _ = input.shutdown().await;
        });
        let ending = tokio::select! {
            ending = self.follow(&mut child, &mut group, &mut urgency) => ending,
            never = channel.listen() => match never {},
        };
        let Some(ending) = ending? else {
            feeding.abort();
            return Ok(RunEnd::Stopped);
        };
        if !matches!(ending, CommandEnd::Timeout(_)) {
            group.let_go(); // what it left behind on purpose may go on
        }
        // Before anything else is waited for: its number may soon be another's.
        drop(group);
        if is_batch && ending == CommandEnd::Exit(0) {
            // It ends at once: it has written all, or nobody can read any more, unless the command has left somebody behind who could.
            let _ = timeout(FEEDS, &mut feeding).await;
        }
        feeding.abort();
        if ending.is_by_a_signal_to_all() {
            let asked = urgency.wait_for(|urgency| *urgency >= Urgency::Drain);
            let _ = timeout(LATER, asked).await;
        }
        let said = channel.outcome_lines();
        let has_failed = ending != CommandEnd::Exit(0) || !said.is_empty();
        let tail = passing.settle(has_failed).await;
        let words = OutcomeWords {
            tail: &tail,
            said: b"",
            longest: self.longest,
        };
        if is_batch {
            let whole = whole.load(Ordering::Relaxed);
            let fed = batch::FedMessages { count, whole };
            return Ok(RunEnd::Ended(batch::verdicts(ending, words, &said, fed)));
        }
        let said = said.first().map_or(&b""[..], Vec::as_slice);
        let (outcome, remark) = exit_outcome::outcome(ending, OutcomeWords { said, ..words });
        Ok(RunEnd::Ended(vec![RunVerdict {
            outcome,
            remark,
            is_by_a_signal_to_all: ending.is_by_a_signal_to_all(),
        }]))
    }

    /// Waits for the end of a command, or brings it about; nothing when that was our wish.
    async fn follow(
        &self,
        child: &mut Child,
        group: &mut ProcessGroup,
        urgency: &mut watch::Receiver<Urgency>,
    ) -> io::Result<Option<CommandEnd>> {
        let too_late = async {
            match self.timeout {
                Some(limit) => {
                    sleep(limit).await;
                    limit
                }
                None => std::future::pending().await,
            }
        };
        let ending = tokio::select! {
            status = child.wait() => return Ok(Some(ending(status?))),
            limit = too_late => Some(CommandEnd::Timeout(limit)),
            // The sender lives as long as the consumer.
            _ = urgency.wait_for(|urgency| *urgency >= Urgency::Soon) => None,
        };
        let now = urgency.wait_for(|urgency| *urgency == Urgency::Now);
        group.end(child, self.grace, now).await;
        Ok(ending)
    }

    /// Starts the command; nothing when it was not to begin any more.
    async fn spawn(
        &self,
        given: &BatchInput,
        urgency: &mut watch::Receiver<Urgency>,
    ) -> io::Result<Option<(AwaitedChild, Child, OutcomePipe)>> {
        let mut alone = Instant::now();
        let mut environment = match given {
            BatchInput::Message(message) => environment::of(message),
            BatchInput::Batch(messages) => environment::of_batch(messages),
        };
        let answers = match given {
            BatchInput::Message(_) => None,
            BatchInput::Batch(messages) => Some(messages.len()),
        };
        loop {
            let error = match self.start(&environment, answers) {
                Ok(started) => return Ok(Some(started)),
                Err(error) => error,
            };
            let is_too_long = error.kind() == io::ErrorKind::ArgumentListTooLong;
            if let BatchInput::Message(message) = given
                && is_too_long
                && environment["RETRYRMQ_HEADERS"] != "{}"
            {
                environment = environment::without_headers(message);
                continue;
            }
            // Those that run give back what they have; where none does, nothing may ever change.
            if !self.groups.are_none() {
                alone = Instant::now();
            }
            if !is_shortage(&error) || alone.elapsed() >= TIME_LIMIT {
                return Err(error);
            }
            self.shortage.warn(&error);
            tokio::select! {
                () = sleep(PAUSE) => {}
                _ = urgency.wait_for(|urgency| *urgency >= Urgency::Drain) => return Ok(None),
            }
        }
    }

    /// `answers`: how many lines of the pipe count; `None` for the last one.
    fn start(
        &self,
        environment: &Environment,
        answers: Option<usize>,
    ) -> io::Result<(AwaitedChild, Child, OutcomePipe)> {
        let mut command = self.command(environment);
        let channel = OutcomePipe::to(&mut command, answers)?;
        let (awaited, child) = zombie_reaper::spawn(|| command.spawn(), Child::id)?;
        Ok((awaited, child, channel))
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
}

/// Whether it is the machine that has nothing to spare just now: no fault of the command, and none of the message.
fn is_shortage(error: &io::Error) -> bool {
    let short = [
        Errno::AGAIN,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::TXTBSY, // it is being written just now
    ];
    Errno::from_io_error(error).is_some_and(|errno| short.contains(&errno))
}

/// Makes sure that we are told how a command ended, for good: where SIGCHLD is ignored, as whoever started us may have left it,
/// the system forgets that, and a wait says that there is no such process. To listen undoes it.
///
/// # Errors
/// When nobody can listen.
pub(super) fn hear_of_ends() -> io::Result<Signal> {
    signal(SignalKind::child())
}

fn no_pipe() -> io::Error {
    io::Error::other("a pipe to the command is missing")
}

fn ending(status: ExitStatus) -> CommandEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => CommandEnd::Exit(code),
        (None, signal) => CommandEnd::Signal(signal.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_nothing_to_spare_is_no_mistake_of_the_command() {
        for errno in [
            Errno::AGAIN,
            Errno::NOMEM,
            Errno::MFILE,
            Errno::NFILE,
            Errno::TXTBSY,
        ] {
            assert!(is_shortage(&errno.into()), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::TOOBIG] {
            assert!(!is_shortage(&errno.into()), "{errno}");
        }
    }
}
