//! The program `retryrmq-serve`, which `retryrmq serve` runs.

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    num::NonZeroU16,
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use bytesize::ByteSize;
use clap::{ArgAction, ArgGroup, Parser};
use retryrmq::{Client, ErrorKind};
use retryrmq_serve::{
    LogFormat, Moved, Service, ServiceConfig, ServiceOptions, StoreInspector, first,
    notify_stopping, notify_systemd, schema, start_logging, store,
};
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;

/// The AMQP client allocates messages in one thread, and they are freed in another. With musl's allocator both wait for one lock.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Retry and park what the consumers of a whole fleet reject
///
/// Queues dead-letter to the exchange `retryrmq.dead` (`retryrmq enable QUEUE --service`); this service retries each message by the
/// policy, straight back to the queue where it failed, and parks it in QUEUE.parked after the last retry. Run as many side by side
/// as you like. It serves the one virtual host of its URL.
///
/// A flag comes before its variable of the environment, that before the section [service] of the policy file, and this before the default.
#[derive(Parser)]
#[command(name = "retryrmq-serve", version, max_term_width = 100)]
#[command(group = ArgGroup::new("store").args(STORE_OPTIONS))]
struct Options {
    /// The broker: amqp://user:password@host:5672/vhost, or amqps:// for TLS [default: amqp://localhost]
    #[arg(long, env = "RETRYRMQ_URL", hide_env_values = true, value_name = "URL")]
    url: Option<String>,

    /// The policy file (TOML); without one, what was rejected is retried, and the rest is parked
    ///
    /// It is read again on SIGHUP, and when its content changes. A broken file is refused, and the previous policy stays in force.
    #[arg(long, short, env = "RETRYRMQ_SERVE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Only check the policy file: exit code 0, or 2 with the line, the column and what to change
    #[arg(long, requires = "config", conflicts_with_all = STORE_OPTIONS)]
    check: bool,

    /// Only print the JSON Schema of a policy file
    #[arg(long, conflicts_with = "check", conflicts_with_all = STORE_OPTIONS)]
    schema: bool,

    /// Only list what waits in the store of the policy file: a JSON object a line
    #[arg(long, requires = "config")]
    waiting: bool,

    /// With --waiting: only what comes back to this queue
    #[arg(
        long,
        requires = "waiting",
        value_name = "QUEUE",
        allow_hyphen_values = true
    )]
    queue: Option<String>,

    /// Only show the message with this id, which --waiting lists, with its body: a JSON object
    #[arg(
        long,
        requires = "config",
        value_name = "ID",
        allow_hyphen_values = true
    )]
    show: Option<String>,

    /// Only make messages in the store due now, for a running service to bring back; `-` reads ids from standard input, one a line
    #[arg(
        long,
        requires = "config",
        value_name = "ID",
        allow_hyphen_values = true
    )]
    flush: Option<String>,

    /// Only take messages out of the store, and park them as `requested`; `-` reads ids from standard input, one a line
    #[arg(
        long,
        requires = "config",
        value_name = "ID",
        allow_hyphen_values = true
    )]
    park: Option<String>,

    /// Only delete the message with this id, which --waiting lists, from the store, for good
    #[arg(
        long,
        requires = "config",
        value_name = "ID",
        allow_hyphen_values = true
    )]
    cancel: Option<String>,

    /// Where the page for people, /metrics, /healthz and /readyz are served [default: 127.0.0.1:9419]
    #[arg(long, env = "RETRYRMQ_SERVE_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Serve no page for people
    #[arg(long)]
    no_ui: bool,

    /// How many dead letters are held at a time; each takes the memory of its body [default: 100]
    #[arg(long, env = "RETRYRMQ_SERVE_PREFETCH", value_name = "COUNT")]
    prefetch: Option<NonZeroU16>,

    /// How much memory the decoded bodies of parked messages may take, such as 256MiB; 192MiB at least [default: a quarter of the memory of the
    /// container or the machine, 512MiB at most]
    ///
    /// Rules of [alerts] that look into bodies, and the page, decode them. A body for which there is no memory is left out, and counted.
    #[arg(long, env = "RETRYRMQ_SERVE_MEMORY", value_name = "SIZE")]
    memory: Option<ByteSize>,

    /// The management API, for [orphans] of the policy file: http://host:15672, or https://user:password@host:15671
    ///
    /// Unless given, it is asked where the broker is, as the same user: port 15672, or 15671 and TLS with amqps://. It is not asked where
    /// [orphans] names `prometheus` or `queues`.
    #[arg(
        long,
        env = "RETRYRMQ_MANAGEMENT_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    management: Option<String>,

    /// A file with the CA (PEM) of its certificate; unless given, `cacertfile` of the broker's URL
    #[arg(long, env = "RETRYRMQ_SERVE_MANAGEMENT_CA", value_name = "FILE")]
    management_ca: Option<PathBuf>,

    /// How the log on standard error looks [default: text]
    #[arg(long, env = "RETRYRMQ_SERVE_LOG", value_name = "FORM")]
    log: Option<LogFormat>,

    /// The same as --log json
    #[arg(long, hide = true)]
    json: bool,

    /// Say more on standard error
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,

    /// Say nothing on standard error but errors
    #[arg(short, long)]
    quiet: bool,
}

/// Where the pages are served, unless somebody says otherwise.
const LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9419));

/// The exit codes are those of the command: `retryrmq exit-codes`.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
const UNCONNECTED: u8 = 4;
const REFUSED: u8 = 5;
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.schema {
        return say(&format!("{:#}", schema().to_value()));
    }
    if options.check
        && let Some(file) = &options.config
    {
        return check(file);
    }
    let service_config = match read(options.config.as_deref()) {
        Ok(service_config) => service_config,
        Err(why) => return fault(&why, USAGE),
    };
    let form = match options.json {
        true => LogFormat::Json,
        false => options
            .log
            .or(service_config.settings().log)
            .unwrap_or_default(),
    };
    let level = match (options.quiet, options.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    start_logging(form, level);
    let runtime = match runtime_of_threads() {
        Ok(runtime) => runtime,
        Err(why) => return fault(&format!("cannot start threads: {why}"), FAILED),
    };
    let code = runtime.block_on(run(options, &service_config));
    // A file that does not answer is read by a thread for which nobody has to wait.
    runtime.shutdown_background();
    code
}

fn runtime_of_threads() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
}

fn check(file: &PathBuf) -> ExitCode {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(why) => return fault(&format!("cannot read {}: {why}", file.display()), USAGE),
    };
    match ServiceConfig::read(&text) {
        Ok(_) => say(&format!("{}: fine", file.display())),
        Err(why) => fault(&format!("{}:{why}", file.display()), USAGE),
    }
}

/// The policy file, of which some is about the program itself.
fn read(file: Option<&Path>) -> Result<ServiceConfig, String> {
    let Some(file) = file else {
        return Ok(ServiceConfig::default());
    };
    let text = std::fs::read_to_string(file)
        .map_err(|why| format!("cannot read {}: {why}", file.display()))?;
    ServiceConfig::read(&text).map_err(|why| format!("{}:{why}", file.display()))
}

/// The options that name a [`StoreAction`].
const STORE_OPTIONS: [&str; 5] = ["waiting", "show", "flush", "park", "cancel"];

/// What the program does with the store, instead of serving.
#[derive(Clone, Copy)]
enum StoreAction<'a> {
    List { queue: Option<&'a str> },
    Show(&'a str),
    Flush(&'a str),
    Park(&'a str),
    Cancel(&'a str),
}

impl Options {
    fn store_action(&self) -> Option<StoreAction<'_>> {
        let queue = self.queue.as_deref();
        let list = self.waiting.then_some(StoreAction::List { queue });
        list.or(self.show.as_deref().map(StoreAction::Show))
            .or(self.flush.as_deref().map(StoreAction::Flush))
            .or(self.park.as_deref().map(StoreAction::Park))
            .or(self.cancel.as_deref().map(StoreAction::Cancel))
    }
}

/// Reads or changes the store, until `stop` is set.
async fn act_on_store(
    action: StoreAction<'_>,
    service_config: &ServiceConfig,
    url: &str,
    stop: &AtomicBool,
) -> ExitCode {
    let line = |line: String| _ = say(&line);
    let done = async {
        let waiting = StoreInspector::open(service_config, url)?;
        match action {
            StoreAction::List { queue } => waiting.list(queue, line).await,
            StoreAction::Show(id) => waiting.show(id, line).await,
            StoreAction::Cancel(id) => waiting.cancel(id).await,
            StoreAction::Flush(ids) => return waiting.flush(&read_ids(ids)?, stop, line).await,
            StoreAction::Park(ids) => {
                let ids = read_ids(ids)?;
                let client = Client::connect(url).await;
                let client = client.map_err(|error| store::Error::Away(error.to_string()))?;
                let parked = waiting.park(&ids, &client, stop, line).await;
                client.close().await;
                return parked;
            }
        }
        .map(|()| Moved::All)
    };
    match done.await {
        Ok(Moved::All) => ExitCode::SUCCESS,
        Ok(Moved::Twice) => ExitCode::from(FAILED),
        Ok(Moved::Partly) => ExitCode::from(REFUSED),
        Ok(Moved::Stopped) => ExitCode::from(INTERRUPTED),
        Err(why @ store::Error::Configuration(_)) => fault(&why.to_string(), USAGE),
        Err(why @ store::Error::Away(_)) => fault(&why.to_string(), UNCONNECTED),
        Err(why) => fault(&why.to_string(), REFUSED),
    }
}

/// One id, or those of standard input.
fn read_ids(id: &str) -> store::Result<Vec<String>> {
    if id != "-" {
        return Ok(vec![id.to_owned()]);
    }
    let ids = std::io::stdin().lines().collect::<std::io::Result<_>>();
    ids.map_err(|why| store::Error::Configuration(format!("cannot read the ids: {why}")))
}

async fn run(options: Options, service_config: &ServiceConfig) -> ExitCode {
    let mut asked = match Signals::listen() {
        Ok(asked) => asked,
        Err(why) => return fault(&format!("cannot listen for signals: {why}"), FAILED),
    };
    let settings = service_config.settings().clone();
    let url = first(options.url.clone(), settings.url);
    let url = url.as_deref().unwrap_or("amqp://localhost").trim();
    if let Some(action) = options.store_action() {
        let stop = AtomicBool::new(false);
        let mut acting = pin!(act_on_store(action, service_config, url, &stop));
        tokio::select! {
            code = &mut acting => return code,
            () = asked.end(|| ()) => stop.store(true, Ordering::Relaxed),
        }
        if !matches!(action, StoreAction::Flush(_) | StoreAction::Park(_)) {
            return ExitCode::from(INTERRUPTED);
        }
        // A message that is cut off in the middle would come back too early, or twice.
        return tokio::select! {
            code = acting => code,
            () = asked.end(|| ()) => ExitCode::from(INTERRUPTED),
        };
    }
    let mut service_options = ServiceOptions::new(url);
    service_options.policy = options.config;
    service_options.management = first(options.management, settings.management);
    service_options.management_ca = options.management_ca.or(settings.management_ca);
    service_options.listen = options.listen.or(settings.listen).or(Some(LISTEN));
    if let Some(prefetch) = options.prefetch.or(settings.prefetch) {
        service_options.prefetch = prefetch.get();
    }
    let memory = options.memory.or(settings.memory);
    service_options.memory = memory.map(|memory| memory.as_u64());
    service_options.page = !options.no_ui;
    let service = match Service::new(service_options).await {
        Ok(service) => service,
        Err(why) => return fault(&why, USAGE),
    };
    if let Some(address) = service.address() {
        tracing::info!(%address, "serving /metrics, /healthz and /readyz");
    }
    if let Err(why) = service.prove_store().await {
        let code = match why {
            store::Error::Configuration(_) => USAGE,
            _ => REFUSED,
        };
        return fault(&why.to_string(), code);
    }
    let systemd = tokio::spawn(notify_systemd(service.health().clone()));
    let reload = service.reloader();
    let end = async move {
        asked.end(reload).await;
        notify_stopping();
    };
    let served = service.run(end).await;
    systemd.abort();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fault(&error.to_string(), code(error.kind())),
    }
}

/// The signals that ask for the end, and the one that asks for a look at the policy file.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn end(&mut self, reload: impl Fn()) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.hangup.recv() => reload(),
            }
        }
    }
}

fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidUrl | ErrorKind::InvalidOption | ErrorKind::InvalidPolicy => USAGE,
        ErrorKind::QueueNotFound => NOT_FOUND,
        ErrorKind::Unreachable
        | ErrorKind::AuthenticationFailed
        | ErrorKind::TlsFailed
        | ErrorKind::VhostNotFound => UNCONNECTED,
        ErrorKind::Mismatch
        | ErrorKind::AccessRefused
        | ErrorKind::StrategyRefused
        | ErrorKind::Broker => REFUSED,
        _ => FAILED,
    }
}

/// Prints a line. Whoever has closed the pipe wants no more of it.
fn say(line: &str) -> ExitCode {
    let _ = writeln!(std::io::stdout(), "{line}");
    ExitCode::SUCCESS
}

fn fault(why: &str, code: u8) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_and_a_queue_may_begin_with_a_hyphen() {
        let id = "-Zm9vYmFyYmF6cXV1eHF1dQ.abcdefghijk";
        for option in ["--show", "--flush", "--park", "--cancel"] {
            let options = Options::try_parse_from(["x", "--config", "f", option, id]).unwrap();
            let read = match options.store_action() {
                Some(StoreAction::Show(id)) => ("--show", id),
                Some(StoreAction::Flush(id)) => ("--flush", id),
                Some(StoreAction::Park(id)) => ("--park", id),
                Some(StoreAction::Cancel(id)) => ("--cancel", id),
                Some(StoreAction::List { .. }) | None => ("", ""),
            };
            assert_eq!(read, (option, id));
        }
        let options = ["x", "--config", "f", "--waiting", "--queue", "-orders"];
        let options = Options::try_parse_from(options).unwrap();
        assert_eq!(options.queue.as_deref(), Some("-orders"));
    }
}
