//! The options of `consume`, read and checked before anything is connected.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::Args;
use retryrmq::{Consumer, DAY, Limits, MAX_DELAY, Pause, SECOND, parse_duration};

use super::{
    handler::Handler,
    help_text,
    http::{Endpoint, HttpOptions},
    orphan_reaper::OrphanReaper,
    process::{HandlerProgram, StartShortage},
    process_group::ProcessGroups,
};
use crate::{
    error::CliError,
    management::Management,
    retry_args::{RetryArgs, not_reserved},
};

/// Run a command or an HTTP request for every message of a queue, and retry the messages it fails on
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "retryrmq consume [OPTIONS] <QUEUE> -- <COMMAND>...\n       retryrmq consume [OPTIONS] <QUEUE> --http <URL>",
    after_long_help = help_text::text(),
    after_help = "The contracts with COMMAND and URL, and examples: `retryrmq help consume`."
)]
pub(crate) struct Options {
    /// The queue to consume
    pub(super) queue: String,

    /// The command and its arguments
    #[arg(last = true, required_unless_present = "http", value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,

    #[command(flatten)]
    pub(super) http: HttpOptions,

    /// Retry and park what fails. Without it a failure is rejected, the queue's own dead-lettering decides, and a warning says so;
    /// --dlx=false does the same without the warning
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) dlx: Option<bool>,

    #[command(flatten)]
    pub(super) retry_args: RetryArgs,

    /// How many commands or requests run at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Running")]
    pub(super) concurrency: u16,

    /// Give each run up to N messages: COMMAND gets a line of JSON for each, and may answer each with a line; an endpoint gets a
    /// JSON array. --concurrency counts runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000), help_heading = "Running")]
    pub(super) batch: Option<u16>,

    /// How long an incomplete batch waits for more messages, from its first one on; 0s takes what is there [default: 200ms]
    #[arg(
        long,
        value_name = "DURATION",
        requires = "batch",
        help_heading = "Running"
    )]
    batch_wait: Option<String>,

    /// How many messages may be taken from the queue unacknowledged [default: twice what runs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Running")]
    pub(super) prefetch: Option<u16>,

    /// How much memory the bodies of unacknowledged messages may take, about, such as 64MiB; a larger message is handled alone [default:
    /// no limit]
    #[arg(long, value_name = "SIZE", value_parser = at_least_a_byte, help_heading = "Running")]
    pub(super) prefetch_bytes: Option<ByteSize>,

    /// Which consumers of the queue get its messages first: those of the highest priority, while they may take more [default: 0]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help_heading = "Running"
    )]
    pub(super) priority: Option<i32>,

    /// How long COMMAND may take; then its process group is ended, and the attempt has failed. With --http: how long until
    /// the answer [default with --http: 30s]
    #[arg(long, value_name = "DURATION", help_heading = "Running")]
    timeout: Option<String>,

    /// How long a process group that was asked to end (SIGTERM) has until it is killed (SIGKILL) [default: 5s]
    #[arg(long, value_name = "DURATION", help_heading = "Running")]
    grace: Option<String>,

    /// Wait for an unreachable broker instead of failing; a refusal is still an error. A connection that is lost later is
    /// opened again in any case
    #[arg(long, help_heading = "Running")]
    pub(super) wait: bool,

    /// Answer /healthz (the process responds), /readyz (the queue is consumed over an open connection) and /metrics (OpenMetrics
    /// text) at this address, such as 0.0.0.0:9419
    #[arg(long, value_name = "ADDRESS", help_heading = "Running")]
    pub(super) listen: Option<SocketAddr>,

    /// End with an error if the broker refuses the login or the virtual host after a lost connection, instead of retrying
    /// forever. What runs then may finish as after a signal, see --drain
    #[arg(long, help_heading = "Ending")]
    pub(super) end_when_refused: bool,

    /// End after this many attempts: one run of COMMAND or one request each, whatever the outcome
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Ending")]
    pub(super) count: Option<u64>,

    /// End when nothing ran and no message came for this long
    #[arg(long, value_name = "DURATION", help_heading = "Ending")]
    idle: Option<String>,

    /// How long running commands or requests may take to finish after Ctrl-C, SIGTERM or SIGHUP; then they are ended, and their
    /// messages go back to the queue
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        help_heading = "Ending"
    )]
    drain: String,

    /// The longest delay that COMMAND or the endpoint may choose with `retry-after` or `defer`; more is cut to this [default: 1d]
    #[arg(long, value_name = "DURATION", help_heading = "Safety")]
    max_retry_after: Option<String>,

    /// Park a message after this many deferrals [default: 1000]
    #[arg(long, value_name = "N", help_heading = "Safety")]
    max_deferrals: Option<u32>,

    /// Park a message that crashed its consumer this many times [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Safety")]
    max_crashes: Option<u32>,

    /// Stop taking messages for a while when too many attempts fail, such as `share=0.5, window=20, for=30s` (which is
    /// what a bare `--pause` means); one message then decides when to go on
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "", help_heading = "Safety")]
    pause: Option<String>,

    /// Acknowledge and drop messages that are given up, instead of parking them
    #[arg(long, help_heading = "Safety")]
    pub(super) no_park: bool,

    /// Do not create queues; they must already exist (`retryrmq topology --apply`)
    #[arg(long, help_heading = "Safety")]
    pub(super) no_declare: bool,

    /// Consume QUEUE even if its name is reserved for the queues of another one: `*.parked`, `*.unreadable` or `*.retry.<number>`
    #[arg(long, help_heading = "Safety")]
    pub(super) reserved_name: bool,

    #[command(flatten)]
    pub(super) management: Management,
}

/// The options that clap does not read, read.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) timeout: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) idle: Option<Duration>,
    pub(super) drain: Duration,
    pub(super) limits: Limits,
    pub(super) pause: Option<Pause>,
    pub(super) prefetch: u16,
    pub(super) batch: Option<usize>,
    batch_wait: Option<Duration>,
    pub(super) max_retry_after: Duration,
    is_counted: bool,
}

/// The default of the core.
const BATCH_WAIT: Duration = Duration::from_millis(200);
/// For an incomplete batch to begin to run, on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

impl Settings {
    /// How much longer than `idle` an incomplete batch may wait.
    pub(super) fn longer_than_idle(&self) -> Duration {
        let wait = self.batch_wait.unwrap_or(BATCH_WAIT) + SLACK;
        wait.saturating_sub(self.idle.unwrap_or_default())
    }
}

/// What is to be done with a message.
pub(super) enum Task {
    /// This program, as it was found.
    Command(PathBuf),
    Http(Box<Endpoint>),
}

impl Task {
    /// Makes the handler. For a command it starts the process that ends commands when we are killed.
    pub(super) fn handler(
        self,
        options: &Options,
        settings: &Settings,
        keep_stdout: bool,
    ) -> Handler {
        let path = match self {
            Self::Http(endpoint) => return Handler::Http(endpoint),
            Self::Command(path) => path,
        };
        Handler::Command(Box::new(HandlerProgram {
            path,
            name: options.command[0].clone(),
            arguments: options.command[1..].to_vec(),
            timeout: settings.timeout,
            grace: settings.grace,
            longest: settings.max_retry_after,
            keep_stdout,
            orphan_reaper: OrphanReaper::start(settings.grace),
            groups: ProcessGroups::default(),
            shortage: StartShortage::default(),
        }))
    }
}

impl Settings {
    /// How long the crate may wait for what runs. It is we who end it; the last of a count may take its time.
    pub(super) fn longest_end(&self) -> Duration {
        if self.is_counted {
            MAX_DELAY
        } else {
            self.drain + self.grace + SECOND * 5
        }
    }
}

impl Options {
    pub(super) fn has_dlx(&self) -> bool {
        self.dlx == Some(true)
    }

    /// An option that was given and means nothing where failures are rejected.
    fn needs_dlx(&self) -> Option<&'static str> {
        self.retry_args.any().or_else(|| {
            [
                ("--no-park", self.no_park),
                ("--max-crashes", self.max_crashes.is_some()),
                ("--max-deferrals", self.max_deferrals.is_some()),
                ("--max-retry-after", self.max_retry_after.is_some()),
            ]
            .into_iter()
            .find_map(|(option, is_given)| is_given.then_some(option))
        })
    }

    /// The consumer, without a client. Its policy, rules and strategy are read here.
    pub(super) fn consumer(&self, settings: &Settings) -> Result<Consumer, CliError> {
        let rules = self.retry_args.rules()?;
        let mut consumer = Consumer::new(&self.queue)
            .strategy(self.retry_args.strategy()?)
            .prefetch(settings.prefetch)
            .concurrency(self.concurrency.into())
            .drain_timeout(settings.longest_end())
            .park(!self.no_park)
            .declare(!self.no_declare)
            .reserved_name(self.reserved_name)
            .limits(settings.limits);
        if let Some(dlx) = self.dlx {
            consumer = consumer.dlx(dlx);
        }
        if self.has_dlx() {
            consumer = consumer.retry(rules.otherwise).rules(rules.rules);
        }
        if let Some(work_queue) = self.retry_args.work_queue()? {
            consumer = consumer.work_queue(work_queue);
        }
        if let Some(bytes) = self.prefetch_bytes {
            consumer = consumer.prefetch_bytes(bytes.as_u64());
        }
        if let Some(priority) = self.priority {
            consumer = consumer.priority(priority);
        }
        if let Some(batch) = settings.batch {
            consumer = consumer.batch(batch);
        }
        if let Some(wait) = settings.batch_wait {
            consumer = consumer.batch_wait(wait);
        }
        if let Some(pause) = settings.pause {
            consumer = consumer.pause(pause);
        }
        Ok(consumer)
    }

    /// Reads and checks everything else.
    pub(super) fn settings(&self) -> Result<(Settings, Task), CliError> {
        not_reserved(&self.queue, self.reserved_name)?;
        if let Some(option) = self.needs_dlx().filter(|_| !self.has_dlx()) {
            return Err(CliError::usage(format!(
                "{option} needs --dlx; without it a failure is rejected, and the message dropped if its queue has no dead-letter route"
            )));
        }
        let mut limits = Limits::default();
        limits.deferrals = self.max_deferrals.unwrap_or(limits.deferrals);
        limits.crashes = self.max_crashes.unwrap_or(limits.crashes);
        let wanted = self.prefetch.unwrap_or_else(|| {
            let runs = self.concurrency.saturating_mul(2);
            runs.saturating_mul(self.batch.unwrap_or(1))
        });
        // What is taken and not run goes back, and may lose its place by that: take no more than is to be run.
        let prefetch = self
            .count
            .and_then(|count| u16::try_from(count).ok())
            .map_or(wanted, |count| {
                wanted.min(count.max(self.batch.unwrap_or(1)))
            });
        let settings = Settings {
            timeout: positive("--timeout", self.timeout.as_deref())?,
            grace: duration("--grace", self.grace.as_deref().unwrap_or("5s"))?,
            idle: positive("--idle", self.idle.as_deref())?,
            drain: duration("--drain", &self.drain)?,
            limits,
            pause: self.pause.as_deref().map(pause).transpose()?,
            prefetch,
            batch: self.batch.map(usize::from),
            batch_wait: self
                .batch_wait
                .as_deref()
                .map(|text| duration("--batch-wait", text))
                .transpose()?,
            max_retry_after: positive("--max-retry-after", self.max_retry_after.as_deref())?
                .unwrap_or(DAY),
            is_counted: self.count.is_some(),
        };
        let task = self.task(&settings)?;
        Ok((settings, task))
    }

    fn task(&self, settings: &Settings) -> Result<Task, CliError> {
        let endpoint = self
            .http
            .endpoint(settings.timeout, settings.max_retry_after)?;
        match (endpoint, self.command.first()) {
            (Some(_), Some(_)) => Err(CliError::usage(
                "--http and a command after `--` cannot be combined: a message goes to one of them",
            )),
            (Some(_), None) if self.grace.is_some() => Err(CliError::usage(
                "--grace is for commands; a request ends at once when its --timeout or --drain is over",
            )),
            (Some(endpoint), None) => Ok(Task::Http(Box::new(endpoint))),
            (None, Some(command)) => Ok(Task::Command(program(command)?)),
            (None, None) => Err(CliError::usage(
                "no COMMAND: give one after `--`, or an endpoint with --http",
            )),
        }
    }
}

fn duration(option: &str, text: &str) -> Result<Duration, CliError> {
    parse_duration(text).map_err(|why| CliError::usage(format!("{option}: {why}")))
}

fn at_least_a_byte(text: &str) -> Result<ByteSize, String> {
    let size = text.parse::<ByteSize>()?;
    match size.as_u64() {
        0 => Err("it must be at least 1B; leave it out for no limit".to_owned()),
        _ => Ok(size),
    }
}

fn positive(option: &str, text: Option<&str>) -> Result<Option<Duration>, CliError> {
    let Some(text) = text else { return Ok(None) };
    match duration(option, text)? {
        Duration::ZERO => Err(CliError::usage(format!("{option} must be longer than 0"))),
        duration => Ok(Some(duration)),
    }
}

/// `share=0.5, window=20, for=30s`; what is left out is as in the crate's default.
fn pause(text: &str) -> Result<Pause, CliError> {
    let mut pause = Pause::default();
    let bad = |why: String| {
        CliError::usage(format!(
            "--pause: {why}; write it like `share=0.5, window=20, for=30s`"
        ))
    };
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| bad(format!("`{part}` has no `=`")))?;
        let (name, value) = (name.trim(), value.trim());
        match name {
            "share" => {
                pause.failures = value
                    .parse()
                    .map_err(|_| bad(format!("`{value}` is not a number")))?
            }
            "window" => {
                pause.window = value
                    .parse()
                    .map_err(|_| bad(format!("`{value}` is not a whole number")))?
            }
            "for" => pause.pause = duration("--pause", value)?,
            other => return Err(bad(format!("`{other}` is not known"))),
        }
    }
    let sound = (0.0..1.0).contains(&pause.failures)
        && (1..=10_000).contains(&pause.window)
        && pause.pause >= SECOND / 1000;
    sound.then_some(pause).ok_or_else(|| {
        bad("the share is at least 0 and below 1, the window 1 to 10000 attempts, the time longer than 0".to_owned())
    })
}

/// Finds the program now: one that cannot be started is a mistake in the command line, not a failed attempt of every
/// message in the queue.
fn program(name: &OsString) -> Result<PathBuf, CliError> {
    which::which(name).map_err(|why| {
        let path = PathBuf::from(name);
        let shown = path.display();
        CliError::usage(if path.components().count() < 2 {
            format!("cannot run `{shown}`: there is no such program in PATH")
        } else if path.is_dir() {
            format!("cannot run `{shown}`: it is a directory")
        } else if path.exists() {
            format!("cannot run `{shown}`: it is not executable; chmod +x, or name its interpreter")
        } else if matches!(why, which::Error::CannotGetCurrentDirAndPathListEmpty) {
            format!("cannot run `{shown}`: PATH is empty")
        } else {
            format!("cannot run `{shown}`: there is no such file")
        })
    })
}
