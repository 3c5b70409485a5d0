//! A vhost to work in, and the command run in it.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use retryrmq_harness::{Amqp, Broker, QueueType, Vhost, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStderr, ChildStdout, Command},
    time::timeout,
};

pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
pub(crate) const QUEUE: &str = "orders";
pub(crate) const PARKED: &str = "orders.parked";

/// The command without any address.
pub(crate) fn retryrmq() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_retryrmq"));
    command
        .env_remove("RETRYRMQ_URL")
        .env_remove("RETRYRMQ_MANAGEMENT_URL")
        .env("TZ", "UTC")
        .kill_on_drop(true);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What a run of the command left behind.
pub(crate) struct CommandOutput {
    pub(crate) status: ExitStatus,
    pub(crate) bytes: Vec<u8>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl std::fmt::Debug for CommandOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\nout: {}\nerr: {}", self.status, self.out, self.err)
    }
}

impl CommandOutput {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }

    /// The one JSON document, or the one line.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|why| panic!("{why}: {self:#?}"))
    }

    /// Every line as JSON.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
            .collect()
    }

    /// The events of that name.
    pub(crate) fn events(&self, name: &str) -> Vec<Value> {
        self.lines()
            .into_iter()
            .filter(|line| line["event"] == name)
            .collect()
    }
}

/// Runs a command to its end, with this standard input.
pub(crate) async fn finish(mut command: Command, input: Option<&[u8]>) -> CommandOutput {
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().expect("the command starts");
    let stdin = child.stdin.take();
    let feeding = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            let _ = stdin.write_all(input).await; // it may end without reading all
        }
    };
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut bytes, mut err) = (Vec::new(), Vec::new());
    let all = async {
        let (_, out, errors) = tokio::join!(
            feeding,
            stdout.read_to_end(&mut bytes),
            stderr.read_to_end(&mut err)
        );
        out.and(errors).unwrap();
        child.wait().await.unwrap()
    };
    let status = timeout(DEADLINE * 2, all).await.expect("the command ends");
    CommandOutput {
        status,
        out: String::from_utf8_lossy(&bytes).into_owned(),
        bytes,
        err: String::from_utf8_lossy(&err).into_owned(),
    }
}

/// A vhost of its own, and a plain client in it.
pub(crate) struct Fixture {
    pub(crate) vhost: Vhost,
    pub(crate) amqp: Amqp,
}

impl Fixture {
    pub(crate) async fn of(broker: &Broker) -> Self {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        Self { vhost, amqp }
    }

    /// With a queue that has no dead-letter route, as a service has it that knows nothing of retries.
    pub(crate) async fn with_queue(broker: &Broker) -> Self {
        let fixture = Self::of(broker).await;
        fixture.amqp.declare(QUEUE, QueueType::Quorum).await;
        fixture
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = retryrmq();
        command
            .env("RETRYRMQ_URL", self.vhost.url())
            .args(arguments);
        command
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> CommandOutput {
        finish(self.command(arguments), None).await
    }

    pub(crate) async fn feed(&self, arguments: &[&str], input: &[u8]) -> CommandOutput {
        finish(self.command(arguments), Some(input)).await
    }

    /// Consumes `QUEUE` with JSON output and a shell script as its command, `count` attempts long.
    pub(crate) async fn consume(
        &self,
        count: usize,
        options: &[&str],
        script: &str,
    ) -> CommandOutput {
        let count = format!("--count={count}");
        let mut arguments = vec!["--json", "consume", QUEUE, "--dlx", &count];
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", script]);
        self.run(&arguments).await
    }

    /// Starts consuming, to be signalled.
    pub(crate) fn start(&self, options: &[&str], script: &str) -> Running {
        let mut arguments = vec!["consume", QUEUE, "--dlx"];
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", script]);
        Running::of(self.command(&arguments))
    }

    /// Starts the command with all of these arguments, to be signalled.
    pub(crate) fn start_with(&self, arguments: &[&str]) -> Running {
        Running::of(self.command(arguments))
    }

    /// As [`start`](Self::start), deaf to hangups as under `nohup`, which has its own ideas of where output goes.
    pub(crate) fn start_without_hangups(&self, script: &str) -> Running {
        let arguments = ["consume", QUEUE, "--dlx", "--", "sh", "-c", script];
        Running::of(self.below("trap '' HUP", &arguments))
    }

    /// The command, started by a shell that did something else first.
    pub(crate) fn below(&self, first: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("{first}; exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_retryrmq"))
            .args(arguments)
            .env("RETRYRMQ_URL", self.vhost.url())
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Waits until a queue holds so many messages that are ready.
    pub(crate) async fn holds(&self, queue: &str, count: u32) {
        eventually(DEADLINE, &format!("{queue} holds {count}"), || async {
            let depth = self.amqp.depth(queue).await;
            if depth == Some(count) {
                Ok(())
            } else {
                Err(format!("{depth:?}"))
            }
        })
        .await;
    }
}

/// A consumer that runs; its standard output is that of its commands.
pub(crate) struct Running {
    child: Child,
    lines: tokio::io::Lines<BufReader<ChildStdout>>,
    said: tokio::io::Lines<BufReader<ChildStderr>>,
}

impl Running {
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the command starts");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines, said }
    }

    pub(crate) async fn line(&mut self) -> String {
        let line = timeout(DEADLINE, self.lines.next_line())
            .await
            .expect("a line comes");
        line.unwrap().expect("the output goes on")
    }

    /// Signals it, and waits until it says that it drains.
    pub(crate) async fn drain(&mut self, signal: Signal) {
        self.signal(signal);
        self.drains().await;
    }

    /// Waits until it says that it drains.
    pub(crate) async fn drains(&mut self) {
        self.says("still runs").await;
    }

    /// Waits until it says this on its standard error.
    pub(crate) async fn says(&mut self, words: &str) {
        let said = async {
            while let Some(line) = self.said.next_line().await.unwrap() {
                if line.contains(words) {
                    return;
                }
            }
            panic!("it ended without a word");
        };
        timeout(DEADLINE, said).await.expect(words);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    pub(crate) fn pid(&self) -> Pid {
        self.child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).unwrap()))
            .expect("it runs")
    }

    /// Closes the pipe that its standard output goes to; then waits for the end.
    pub(crate) fn end_unread(self) -> impl Future<Output = ExitStatus> {
        let Self {
            mut child, lines, ..
        } = self;
        drop(lines);
        async move {
            let ended = timeout(DEADLINE, child.wait()).await;
            ended.expect("it ends").unwrap()
        }
    }

    pub(crate) async fn end(mut self) -> ExitStatus {
        timeout(DEADLINE, self.child.wait())
            .await
            .expect("it ends")
            .unwrap()
    }
}
