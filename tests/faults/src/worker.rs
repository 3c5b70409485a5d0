//! A consumer in a process of its own: what the test tells it, and what it tells the test.
//!
//! A line on its standard output each: `ready`, `begin ID ATTEMPT`, `done ID`, `event NAME`. A line is written in
//! one piece before what it tells of can be acknowledged, so that a kill loses none.

use crate::ledger::LoadLedger;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use retryrmq::{Client, RunningConsumer};
use std::io::Write;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Between two looks at whether a worker has ended.
const MOMENT: Duration = Duration::from_millis(100);

/// What a worker is to be like.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The broker's URL.
    pub url: String,
    /// The queue it consumes.
    pub queue: String,
    /// How many messages it prefetches.
    pub prefetch: u16,
    /// How many handlers it runs at a time.
    pub concurrency: usize,
    /// How long each attempt takes, in milliseconds; `None` leaves it to the load.
    pub milliseconds: Option<u64>,
    /// The body of the message whose handler ends the process.
    pub poison: Option<String>,
    /// What becomes of messages.
    pub handles: HandlerScript,
}

/// What a worker's handler makes of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandlerScript {
    /// What the load says.
    #[default]
    ByRule,
    /// Parks it.
    Parks,
    /// Fails, and the retry policy has it wait for a minute.
    Delays,
}

impl HandlerScript {
    const ALL: [(Self, &'static str); 3] = [
        (Self::ByRule, "by-rule"),
        (Self::Parks, "parks"),
        (Self::Delays, "delays"),
    ];

    fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(one, _)| *one == self);
        found.map_or("", |(_, name)| name)
    }

    fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(_, own)| *own == name);
        found.map(|(one, _)| one)
    }
}

/// Says a line, in one piece: a kill comes before or after it. For workers.
pub fn tell(line: std::fmt::Arguments<'_>) {
    let line = format!("{line}\n");
    // A reader that is gone has ended the test.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

/// Says that it is ready, and consumes until it is told to end. For workers.
pub async fn until_the_end(mut end: unix::Signal, running: RunningConsumer, client: Client) {
    tell(format_args!("ready"));
    end.recv().await;
    running.close().await;
    client.close().await;
}

impl WorkerOptions {
    /// A worker of the load.
    pub fn load(url: &str, queue: &str) -> Self {
        WorkerOptions {
            url: url.into(),
            queue: queue.into(),
            prefetch: 32,
            concurrency: 8,
            milliseconds: None,
            poison: None,
            handles: HandlerScript::ByRule,
        }
    }

    /// As a worker reads them: its arguments, and from the environment the URL, which holds a password, and what becomes of messages.
    pub fn read() -> Option<Self> {
        let mut arguments = std::env::args().skip(1);
        let mut next = || arguments.next();
        Some(WorkerOptions {
            url: std::env::var("FAULTS_WORKER_URL").ok()?,
            queue: next()?,
            prefetch: next()?.parse().ok()?,
            concurrency: next()?.parse().ok()?,
            milliseconds: next()?.parse().ok(),
            poison: next(),
            handles: HandlerScript::named(&std::env::var("FAULTS_WORKER_HANDLES").ok()?)?,
        })
    }

    fn arguments(&self) -> Vec<String> {
        let mut all = vec![
            self.queue.clone(),
            self.prefetch.to_string(),
            self.concurrency.to_string(),
            self.milliseconds
                .map_or_else(|| "load".into(), |ms| ms.to_string()),
        ];
        all.extend(self.poison.clone());
        all
    }
}

/// What workers have told so far. Clones share it, so that it goes on over restarts.
#[derive(Clone, Debug, Default)]
pub struct WorkerOutput(Arc<Mutex<Vec<(String, String)>>>);

impl WorkerOutput {
    /// How many lines of this kind there are, such as `ready`.
    pub fn count(&self, kind: &str) -> usize {
        self.lines().iter().filter(|(seen, _)| seen == kind).count()
    }

    /// How many lines of this kind are about this.
    pub fn count_of(&self, kind: &str, what: &str) -> usize {
        let about =
            |line: &&(String, String)| line.0 == kind && line.1.split(' ').next() == Some(what);
        self.lines().iter().filter(about).count()
    }

    fn lines(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running worker. It is killed when this is dropped.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    reader: JoinHandle<()>,
    ready: watch::Receiver<bool>,
}

impl Worker {
    /// Starts one. `program` is `env!("CARGO_BIN_EXE_faults-worker")`, which only a test can say.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(
        program: &str,
        orders: &WorkerOptions,
        worker_output: &WorkerOutput,
        load_ledger: &LoadLedger,
    ) -> Self {
        let mut command = Command::new(program);
        command
            .args(orders.arguments())
            .env("FAULTS_WORKER_URL", &orders.url)
            .env("FAULTS_WORKER_HANDLES", orders.handles.name());
        let (worker_output, load_ledger) = (worker_output.clone(), load_ledger.clone());
        Worker::run(command, move |kind, what| {
            if kind == "done" {
                load_ledger.handled(what);
            }
            worker_output
                .lines()
                .push((kind.to_owned(), what.to_owned()));
        })
    }

    /// Starts any program that tells what it does in such lines; `hears` gets each, taken apart.
    ///
    /// # Panics
    /// When it does not start.
    pub fn run(mut command: Command, hears: impl Fn(&str, &str) + Send + 'static) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the worker starts");
        let output = child.stdout.take().expect("its output is piped");
        let (is_ready, ready) = watch::channel(false);
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let (kind, what) = line.split_once(' ').unwrap_or((&line, ""));
                if kind == "ready" {
                    is_ready.send_replace(true);
                }
                hears(kind, what);
            }
        });
        Worker {
            child,
            reader,
            ready,
        }
    }

    /// Waits until it consumes, or has ended before.
    pub async fn ready(&mut self) {
        // An error means that it has ended, which the caller will see.
        let _ = self.ready.wait_for(|ready| *ready).await;
    }

    /// Whether it has ever consumed.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When that fails.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id() {
            let pid = Pid::from_raw(i32::try_from(pid).expect("a process id is an i32"));
            kill(pid, signal).expect("a process of ours can be signalled");
        }
    }

    /// Waits for its end, and for all that it told.
    ///
    /// # Panics
    /// When the wait fails.
    pub async fn ended(mut self) -> ExitStatus {
        let status = self.child.wait().await.expect("a child can be awaited");
        self.reader.await.expect("its output was read");
        status
    }

    /// Waits for its end. What it told last may not have been heard yet: [`Worker::ended`] waits for that.
    ///
    /// # Panics
    /// When the wait fails.
    pub async fn end(&mut self) {
        self.child.wait().await.expect("a child can be awaited");
    }

    /// The worker, or `None` when it has ended. Waits a moment for that.
    ///
    /// # Panics
    /// When the wait fails.
    pub async fn unless_ended(mut self) -> Option<Self> {
        match timeout(MOMENT, self.child.wait()).await {
            Err(_) => Some(self),
            Ok(status) => {
                status.expect("a child can be awaited");
                self.reader.await.expect("its output was read");
                None
            }
        }
    }

    /// Kills it outright.
    pub async fn kill(self) {
        self.signal(Signal::SIGKILL);
        self.ended().await;
    }
}
