//! Handlers in Rust: a function from a message to a future.

use std::{
    any::Any,
    error::Error as StdError,
    fmt, io,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;

use super::{Delivery, Message, Subscription};
use crate::{
    retry::{Failure, Outcome, ParkReason, format_duration},
    telemetry::Stats,
};

type Cause = Box<dyn StdError + Send + Sync>;

/// What a handler can say besides success and failure. It travels as an error: return it, or have it anywhere in the
/// chain of causes of the error that you return.
#[derive(Debug)]
pub struct Signal {
    kind: Kind,
    cause: Option<Cause>,
}

#[derive(Debug)]
enum Kind {
    RetryAfter(Duration),
    Park(String),
    Defer(Duration),
    Fatal,
}

/// A failure after which the message is to come back in `delay`, whatever the policy says; it counts as a retry.
#[must_use]
pub fn retry_after(delay: Duration, cause: impl Into<Cause>) -> Signal {
    Signal {
        kind: Kind::RetryAfter(delay),
        cause: Some(cause.into()),
    }
}

/// Parks the message now, with this reason for people to read.
#[must_use]
pub fn park(why: impl Into<String>) -> Signal {
    Signal {
        kind: Kind::Park(why.into()),
        cause: None,
    }
}

/// Puts the message off: it comes back in `delay` and no attempt is spent. Without `dlx` there are no waiting queues: the
/// message is held, for at most a minute, and then given back to its queue.
#[must_use]
pub fn defer(delay: Duration) -> Signal {
    Signal {
        kind: Kind::Defer(delay),
        cause: None,
    }
}

/// A failure that no retry can mend: the message is parked now.
#[must_use]
pub fn fatal(cause: impl Into<Cause>) -> Signal {
    Signal {
        kind: Kind::Fatal,
        cause: Some(cause.into()),
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.cause) {
            (_, Some(cause)) => fmt::Display::fmt(cause, f),
            (Kind::Park(why), None) => f.write_str(why),
            (Kind::RetryAfter(delay), None) => write!(f, "retry after {}", format_duration(*delay)),
            (Kind::Defer(delay), None) => write!(f, "deferred for {}", format_duration(*delay)),
            (Kind::Fatal, None) => f.write_str("fatal"),
        }
    }
}

impl StdError for Signal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

/// What a handler may return: a result, or an [`Outcome`] that says everything, error types included.
pub trait IntoOutcome {
    /// The outcome of the attempt.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl<E: Into<Cause>> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(()) => Outcome::Ack,
            Err(error) => outcome(&*error.into(), std::any::type_name::<E>()),
        }
    }
}

/// The outcome behind an error: that of the first signal in its chain of causes, otherwise a retry.
fn outcome(error: &(dyn StdError + 'static), type_name: &str) -> Outcome {
    let mut failure = Failure::new(error.to_string()).of_type(short_type(type_name));
    let mut chain: Vec<String> = Vec::new();
    let (mut signal, mut named) = (None, None::<&Failure>);
    let mut next = Some(error);
    // A chain of causes can be a circle.
    for _ in 0..64 {
        let Some(error) = next else { break };
        signal = signal.or_else(|| error.downcast_ref::<Signal>());
        named = named.or_else(|| error.downcast_ref::<Failure>());
        let text = error.to_string();
        if chain.last() != Some(&text) {
            chain.push(text);
        }
        // An io::Error speaks for the error within it, and leaves it out of the chain.
        let within = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        next = match within {
            Some(within) => Some(within),
            None => error.source(),
        };
    }
    if chain.len() > 1 {
        failure = failure.with_stack(chain.join("\ncaused by: "));
    }
    if let Some(named) = named {
        failure.error_type.clone_from(&named.error_type);
        failure.stack = named.stack.clone().or(failure.stack);
    }
    match signal.map(|signal| &signal.kind) {
        None => Outcome::retry(failure),
        Some(Kind::RetryAfter(delay)) => Outcome::Retry {
            failure,
            delay: Some(*delay),
        },
        Some(Kind::Defer(delay)) => Outcome::Defer { delay: *delay },
        Some(Kind::Fatal) => Outcome::Park {
            reason: ParkReason::Fatal,
            failure,
        },
        Some(Kind::Park(why)) => Outcome::Park {
            reason: ParkReason::Requested,
            failure: Failure {
                error: why.clone(),
                ..failure
            },
        },
    }
}

/// `alloc::string::String` → `String`; what says nothing about the error is left out.
fn short_type(name: &str) -> String {
    if name.contains("dyn ") {
        return String::new();
    }
    let base = name.split('<').next().unwrap_or(name);
    match base.rsplit("::").next().unwrap_or(base) {
        "str" | "&str" | "String" | "Error"
            if name.contains("anyhow") || !base.contains("Error") =>
        {
            String::new()
        }
        short => short.trim_start_matches('&').to_owned(),
    }
}

/// A consumer that runs in the background.
#[derive(Clone, Debug)]
pub struct Running {
    subscription: Arc<Subscription>,
}

impl Running {
    /// Drains: takes no more messages, lets handlers finish, settles, gives the rest back, and returns when done.
    pub async fn close(&self) {
        self.subscription.close();
        self.subscription.wait_closed().await;
    }

    /// Waits for the end, without asking for it.
    pub async fn closed(&self) {
        self.subscription.wait_closed().await;
    }

    /// The numbers of this queue since the client was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.subscription.stats()
    }
}

/// Starts the workers of a consumer.
pub(super) fn run_workers<F, R>(
    subscription: Arc<Subscription>,
    handler: F,
    concurrency: usize,
    timeout: Option<Duration>,
) -> Running
where
    F: Fn(Message) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    let handler = Arc::new(handler);
    for _ in 0..concurrency {
        tokio::spawn(work(
            Arc::clone(&subscription),
            Arc::clone(&handler),
            timeout,
        ));
    }
    Running { subscription }
}

/// A handler that keeps its thread longer than this is one that others should not wait behind.
const QUICK: Duration = Duration::from_micros(100);

/// Between two looks at the clock and the runtime, so that handlers that never wait do not starve other tasks.
const STRETCH: u32 = 64;

/// One of the consumer's workers: takes a message, handles it, settles it.
///
/// A worker that finds more messages wakes another one only when its own handler waits or takes its time. While handlers
/// are done at once, one worker does it all, and nobody pays for waking the rest.
async fn work<F, R>(subscription: Arc<Subscription>, handler: Arc<F>, timeout: Option<Duration>)
where
    F: Fn(Message) -> R,
    R: Future<Output: IntoOutcome>,
{
    let mut stretch = 0;
    loop {
        let (delivery, more) = subscription.take_one();
        let Some(delivery) = delivery else {
            if subscription.ready().await {
                continue;
            }
            return;
        };
        let Delivery { token, message } = delivery;
        let began = Instant::now();
        let mut attempt = pin!(attempt(&*handler, message, timeout));
        let outcome = match attempt.as_mut().now_or_never() {
            Some(outcome) => outcome,
            None => {
                if more {
                    subscription.wake_another();
                }
                attempt.await
            }
        };
        if more && began.elapsed() > QUICK {
            subscription.wake_another();
        }
        subscription.settle([(token, outcome)]);
        stretch += 1;
        if stretch % STRETCH == 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// One attempt, with everything that can go wrong in it.
async fn attempt<F, R>(handler: &F, message: Message, timeout: Option<Duration>) -> Outcome
where
    F: Fn(Message) -> R,
    R: Future<Output: IntoOutcome>,
{
    // A handler that panics before it returns its future must be caught as well.
    let handled = AssertUnwindSafe(async { handler(message).await.into_outcome() }).catch_unwind();
    let handled = match timeout {
        None => handled.await,
        Some(limit) => match tokio::time::timeout(limit, handled).await {
            Ok(handled) => handled,
            Err(_) => {
                let error = format!("the handler took longer than {}", format_duration(limit));
                return Outcome::retry(Failure::new(error).of_type("HandlerTimeout"));
            }
        },
    };
    handled
        .unwrap_or_else(|panic| Outcome::retry(Failure::new(panic_text(&*panic)).of_type("panic")))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", text.unwrap_or("(no text)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    fn of<E: Into<Cause>>(error: E) -> Outcome {
        outcome(&*error.into(), std::any::type_name::<E>())
    }

    #[test]
    fn an_error_retries_with_its_type() {
        let Outcome::Retry {
            failure,
            delay: None,
        } = of(io::Error::other("disk"))
        else {
            panic!("not a retry")
        };
        assert_eq!(
            (failure.error.as_str(), failure.error_type.as_str()),
            ("disk", "Error")
        );
        let Outcome::Retry { failure, .. } = of("just text") else {
            panic!("not a retry")
        };
        assert_eq!(
            (failure.error.as_str(), failure.error_type.as_str()),
            ("just text", "")
        );
    }

    #[test]
    fn a_failure_names_its_own_type() {
        let timeout = || Failure::new("late").of_type("ReadTimeout");
        assert_eq!(of(timeout()), Outcome::retry(timeout()));
        let Outcome::Retry {
            failure,
            delay: Some(SECOND),
        } = of(retry_after(SECOND, timeout()))
        else {
            panic!("not a retry")
        };
        assert_eq!(failure, timeout());
    }

    #[test]
    fn a_signal_is_found_anywhere_in_the_chain() {
        #[derive(Debug)]
        struct Wrapped(Signal);
        impl fmt::Display for Wrapped {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("wrapped")
            }
        }
        impl StdError for Wrapped {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }
        assert_eq!(of(Wrapped(defer(SECOND))), Outcome::Defer { delay: SECOND });
        let Outcome::Park {
            reason: ParkReason::Requested,
            failure,
        } = of(Wrapped(park("no such customer")))
        else {
            panic!("not parked")
        };
        assert_eq!(failure.error, "no such customer");
        assert!(
            matches!(of(io::Error::other(defer(SECOND))), Outcome::Defer { .. }),
            "an io::Error leaves what it wraps out of its chain"
        );
        assert!(matches!(
            of(fatal("bad")),
            Outcome::Park {
                reason: ParkReason::Fatal,
                ..
            }
        ));
        assert!(matches!(
            of(retry_after(SECOND, "busy")),
            Outcome::Retry {
                delay: Some(SECOND),
                ..
            }
        ));
    }
}
