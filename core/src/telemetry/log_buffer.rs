//! The core's log lines for a program that is not written in Rust. They are kept until they are fetched.
//!
//! It is for bindings, with the cargo feature `log-lines`. A Rust program installs its own `tracing` subscriber instead. Only lines of this
//! crate are kept: the AMQP client below it logs bodies, and at TRACE level passwords.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    sync::{
        LazyLock, Mutex, MutexGuard, OnceLock, TryLockError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    subscriber::Interest,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::Registry,
};

pub use tracing::Level;

use super::ATTEMPT;

/// How many lines are kept, as for events. Beyond that the oldest are dropped, and a line says how many.
const ROOM: usize = 10_000;

/// How often to try a lock before a line is dropped.
const TRIES: usize = 1_000;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLine {
    /// The module of this crate: `consumer`, `client`, …; empty at the root.
    pub module: &'static str,
    /// Its level.
    pub level: Level,
    /// What happened.
    pub message: String,
    /// The names and values that belong to it.
    pub fields: Vec<(&'static str, String)>,
}

/// The message, then the fields: `pausing (queue=orders pause=30s)`. The sentence about an attempt says what its fields say.
impl fmt::Display for LogLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)?;
        if self.message.starts_with("attempt ") {
            return Ok(());
        }
        for (index, (name, value)) in self.fields.iter().enumerate() {
            write!(out, "{}{name}={value}", if index == 0 { " (" } else { " " })?;
        }
        out.write_str(if self.fields.is_empty() { "" } else { ")" })
    }
}

const LEVELS: [Level; 3] = [Level::WARN, Level::INFO, Level::DEBUG];

static WAITING: Mutex<VecDeque<LogLine>> = Mutex::new(VecDeque::new());
/// Of the lines about attempts that nobody wants, one in this time is kept all the same.
const SAMPLE: Duration = Duration::from_millis(100);

/// As the place in [`LEVELS`].
static WANTED: AtomicUsize = AtomicUsize::new(1);
/// When such a line was kept last, in ms since [`BEGAN`].
static SAMPLED: AtomicU64 = AtomicU64::new(0);
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// How many lines were dropped since the last [`take`].
static DROPPED: AtomicU64 = AtomicU64::new(0);
static NUDGE: OnceLock<fn()> = OnceLock::new();

/// Keeps the log lines of this process from now on. `nudge` is called after each line, on the thread that logged it, and must be quick.
/// Does nothing if lines are kept already, or if a `tracing` subscriber is installed.
pub fn capture(nudge: fn()) {
    LazyLock::force(&BEGAN); // not in the middle of a fork
    if NUDGE.set(nudge).is_ok() {
        // Fails only if this process already has a subscriber.
        let _ = tracing::subscriber::set_global_default(Registry::default().with(CapturingLayer));
    }
}

/// Sets the least level of the lines that somebody wants, WARN, INFO or DEBUG; INFO until it is set. A binding whose logger drops INFO says
/// WARN, because a failed attempt that is retried is logged at INFO.
///
/// Other lines of level INFO are kept all the same, they are few; and ten lines about attempts a second. So a binding that looks at its
/// logger's level when it gets a line soon notices that it has changed.
pub fn set_level(least: Level) {
    let wanted = LEVELS.iter().rposition(|level| *level <= least);
    let wanted = wanted.unwrap_or(0);
    if WANTED.swap(wanted, Ordering::Relaxed) != wanted {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Whether a line about an attempt is due although nobody wants it.
fn is_sample() -> bool {
    let now = BEGAN.elapsed() + SAMPLE; // the first one is due
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let last = SAMPLED.load(Ordering::Relaxed);
    Duration::from_millis(now.saturating_sub(last)) >= SAMPLE
        && SAMPLED
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

/// The lines since the last call, oldest first. If lines were dropped, the first one is a WARN with their number.
pub fn take() -> Vec<LogLine> {
    let Some(mut lines) = waiting() else {
        return Vec::new();
    };
    let dropped = match DROPPED.swap(0, Ordering::Relaxed) {
        0 => None,
        dropped => Some(LogLine {
            module: "",
            level: Level::WARN,
            message: "log lines came faster than they were fetched: the oldest were dropped".into(),
            fields: vec![("dropped", dropped.to_string())],
        }),
    };
    dropped.into_iter().chain(lines.drain(..)).collect()
}

/// Tries the lock and never waits: a fork may have copied it locked. A lost line is better than a child process that hangs.
fn waiting() -> Option<MutexGuard<'static, VecDeque<LogLine>>> {
    for _ in 0..TRIES {
        match WAITING.try_lock() {
            Ok(lines) => return Some(lines),
            Err(TryLockError::Poisoned(lines)) => return Some(lines.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

struct CapturingLayer;

/// Whether a line is kept; `None` if that is to be asked for each.
fn is_kept(metadata: &Metadata<'_>) -> Option<bool> {
    let (level, wanted) = (*metadata.level(), LEVELS[WANTED.load(Ordering::Relaxed)]);
    if !metadata.target().starts_with("retryrmq") {
        return Some(false);
    }
    if metadata.target() == ATTEMPT && level == Level::INFO {
        return (wanted >= level).then_some(true);
    }
    Some(level <= wanted.max(Level::INFO))
}

impl<S: Subscriber> Layer<S> for CapturingLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match is_kept(metadata) {
            Some(true) => Interest::always(),
            Some(false) => Interest::never(),
            None => Interest::sometimes(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_kept(metadata).unwrap_or_else(is_sample)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut line = LogLine {
            module: metadata.target().split("::").nth(1).unwrap_or(""),
            level: *metadata.level(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut line);
        if let Some(mut lines) = waiting() {
            if lines.len() >= ROOM {
                lines.pop_front();
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
            lines.push_back(line);
        }
        if let Some(nudge) = NUDGE.get() {
            nudge();
        }
    }
}

impl LogLine {
    fn record(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = value;
        } else {
            self.fields.push((field.name(), value));
        }
    }
}

impl Visit for LogLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "{value:?}");
        self.record(field, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_its_message_and_then_its_fields() {
        let mut line = LogLine {
            module: "consumer",
            level: Level::WARN,
            message: "pausing".into(),
            fields: Vec::new(),
        };
        assert_eq!(line.to_string(), "pausing");
        line.fields.push(("queue", "orders".into()));
        line.fields.push(("pause", "30s".into()));
        assert_eq!(line.to_string(), "pausing (queue=orders pause=30s)");
    }

    /// One test, because a process has only one log.
    #[test]
    fn what_is_wanted_is_kept_up_to_a_bound() {
        let catching = Registry::default().with(CapturingLayer);
        tracing::subscriber::with_default(catching, || {
            tracing::info!(target: "lapin::channel", "not ours");
            tracing::debug!(target: "retryrmq::client", "too small");
            tracing::warn!(target: "retryrmq::consumer::engine", queue = "orders", attempt = 3, "failed");
            let line = LogLine {
                module: "consumer",
                level: Level::WARN,
                message: "failed".into(),
                fields: vec![("queue", "orders".into()), ("attempt", "3".into())],
            };
            assert_eq!(take(), [line]);
            assert_eq!(take(), []);

            set_level(Level::DEBUG);
            tracing::debug!(target: "retryrmq", "at the root");
            assert_eq!(take()[0].module, "");

            set_level(Level::ERROR);
            for number in 0..1000 {
                tracing::info!(target: "retryrmq::attempt", "{number}");
                tracing::debug!(target: "retryrmq::attempt", "{number}");
            }
            tracing::warn!(target: "retryrmq::attempt", "parked");
            tracing::info!(target: "retryrmq::client", "connected");
            let said: Vec<_> = take().into_iter().map(|line| line.message).collect();
            assert_eq!(said[0], "0", "the first one");
            assert_eq!(said[said.len() - 2..], ["parked", "connected"]);
            assert!(said.len() < 500, "{said:?}");

            set_level(Level::INFO);
            for number in 0..ROOM + 7 {
                tracing::info!(target: "retryrmq::client", "{number}");
            }
            let lines = take();
            assert_eq!(lines.len(), 1 + ROOM);
            assert_eq!(lines[0].fields, [("dropped", "7".to_owned())]);
            assert_eq!(lines[1].message, "7", "the oldest go first");
            assert_eq!(take(), []);

            set_level(Level::DEBUG);
            assert_eq!(of_attempts(), ATTEMPTS);
            set_level(Level::INFO);
        });
    }

    const ATTEMPTS: [&str; 5] = [
        "INFO attempt 1 of 2 of message it\\n's in orders failed: Timeout: no\\x1banswer; retry in 4s",
        "DEBUG attempt 2 of 2 of message it\\n's in orders is deferred; again in 1m",
        "WARN attempt 2 of 2 of message it\\n's in orders failed: Timeout: no\\x1banswer; parked as exhausted",
        "INFO attempt 1 of a message without id in orders failed: no; rejected",
        "WARN attempt 1 of 6 of a message without id in orders failed: no; given up as requested and dropped, because `park` is off",
    ];

    /// The log lines about the attempts of three consumers.
    fn of_attempts() -> Vec<String> {
        use crate::{Consumer, Failure, MINUTE, Outcome, ParkReason, Publish, Simulation};
        let policy = "fixed(4s, retries=1)".parse().unwrap();
        let no = || Outcome::retry(Failure::new("no\u{1b}answer").of_type("Timeout"));
        let plain = || Failure::new("no");
        let park = Outcome::Park {
            reason: ParkReason::Requested,
            failure: plain(),
        };
        let played: [(Consumer, &[Outcome]); 3] = [
            (
                Consumer::new("orders").dlx(true).retry(policy),
                &[no(), Outcome::Defer { delay: MINUTE }, no()],
            ),
            (Consumer::new("orders"), &[Outcome::retry(plain())]),
            (Consumer::new("orders").dlx(true).park(false), &[park]),
        ];
        for (index, (consumer, outcomes)) in played.into_iter().enumerate() {
            let mut simulation = Simulation::new(consumer).unwrap();
            let message = Publish::to_queue("orders", "7");
            let message = if index == 0 {
                message.message_id("it\n's")
            } else {
                message
            };
            simulation.publish(message).unwrap();
            for outcome in outcomes {
                let delivery = simulation.next().unwrap();
                simulation.settle(delivery.token, outcome.clone());
            }
        }
        let said = take().into_iter();
        said.filter(|line| line.message.starts_with("attempt"))
            .map(|line| {
                assert_fields(&line);
                format!("{} {line}", line.level)
            })
            .collect()
    }

    /// Whoever searches by field finds what the sentence says.
    fn assert_fields(line: &LogLine) {
        let field = |wanted| {
            let mut fields = line.fields.iter();
            let found = fields.find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(field("queue"), Some("orders"), "{line:?}");
        assert!(
            line.message
                .starts_with(&format!("attempt {} of ", field("attempt").unwrap()))
        );
        let id = field("message_id");
        assert_eq!(
            id.is_some(),
            line.message.contains("of message "),
            "{line:?}"
        );
        assert!(id.is_none_or(|id| id == "it\\n's"), "{line:?}");
        let is_deferred = field("next_step") == Some("deferred");
        assert_eq!(
            is_deferred,
            line.message.contains("is deferred"),
            "{line:?}"
        );
        if line.message.contains("Timeout") {
            assert_eq!(field("error_type"), Some("Timeout"), "{line:?}");
            assert_eq!(field("error"), Some("no\\x1banswer"), "{line:?}");
        }
    }
}
