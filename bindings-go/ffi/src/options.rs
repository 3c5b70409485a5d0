//! The options of a consumer, and the end of an attempt.

use std::{sync::Arc, time::Duration};

use retryrmq::{Consumer, Failure, Outcome, ParkReason};
use retryrmq_bindings::{Given, PauseGiven, RuleGiven, nanoseconds};

use crate::{
    errors::Refusal,
    live::{Alive, Kind},
};

/// When to stop taking messages for a while.
#[derive(Debug, uniffi::Record)]
pub struct Budget {
    /// The share of failures; the core's default when it is not given.
    pub failures: Option<f64>,
    /// Among how many attempts.
    pub window: Option<u32>,
    /// For how long, in nanoseconds.
    pub pause: Option<u64>,
}

/// A header and its value.
#[derive(Debug, uniffi::Record)]
pub struct Pair {
    /// The header.
    pub name: String,
    /// Its value as text.
    pub value: String,
}

/// A rule: its text, or its conditions and its policy.
#[derive(Debug, uniffi::Record)]
pub struct RuleParts {
    /// All of it as text; then nothing else counts.
    pub text: Option<String>,
    /// A pattern for the routing key.
    pub routing_key: Option<String>,
    /// Headers and their values.
    pub headers: Vec<Pair>,
    /// A pattern for the error's type.
    pub error: Option<String>,
    /// The policy.
    pub policy: String,
}

impl From<RuleParts> for RuleGiven {
    fn from(parts: RuleParts) -> Self {
        let headers = parts.headers.into_iter();
        Self {
            text: parts.text,
            routing_key: parts.routing_key,
            headers: headers.map(|pair| (pair.name, pair.value)).collect(),
            error: parts.error,
            policy: parts.policy,
        }
    }
}

/// What a consumer was told; the rest is the core's to decide. Durations are nanoseconds.
#[derive(Debug, uniffi::Record)]
pub struct Wanted {
    /// The work queue.
    pub queue: String,
    /// Whether failed messages are retried and parked.
    pub dlx: Option<bool>,
    /// The policy.
    pub retry: Option<String>,
    /// How failed messages wait.
    pub strategy: Option<String>,
    /// Rules.
    pub rules: Vec<RuleParts>,
    /// How many messages may be unacknowledged.
    pub prefetch: Option<u16>,
    /// Which consumers come first.
    pub priority: Option<i32>,
    /// How many handlers run at a time.
    pub concurrency: Option<u32>,
    /// How long a handler may take.
    pub handler_timeout: Option<u64>,
    /// Whether messages that are given up are parked.
    pub park: Option<bool>,
    /// The retry budget.
    pub pause: Option<Budget>,
    /// Whether missing queues are made.
    pub declare: Option<bool>,
    /// What a missing work queue is made with, as text.
    pub work_queue: Option<String>,
    /// Whether a queue is consumed whose name is reserved.
    pub reserved_name: Option<bool>,
    /// How long closing waits for handlers.
    pub drain_timeout: Option<u64>,
    /// Crashes that park a message.
    pub crash_limit: Option<u32>,
    /// Deferrals that park a message.
    pub defer_limit: Option<u32>,
    /// Whether there are errors that no retry can mend.
    pub fatal: bool,
}

/// What the Go half has to know of a consumer.
#[derive(Debug, uniffi::Record)]
pub struct Shape {
    /// How many handlers run at a time.
    pub concurrency: u32,
    /// How long one of them may take, in nanoseconds.
    pub handler_timeout: Option<u64>,
    /// How long the end waits for those that run, in nanoseconds.
    pub drain_timeout: u64,
    /// Whether anybody asks what an error is.
    pub has_rules: bool,
}

/// The options of a consumer, checked.
#[derive(Debug, uniffi::Object)]
pub struct Options {
    pub(crate) consumer: Consumer,
    has_rules: bool,
    _alive: Alive,
}

#[uniffi::export]
impl Options {
    /// Reads and checks them.
    #[uniffi::constructor]
    pub fn new(wanted: Wanted) -> Result<Arc<Self>, Refusal> {
        let given = Given {
            queue: wanted.queue,
            dlx: wanted.dlx,
            retry: wanted.retry,
            strategy: wanted.strategy,
            rules: wanted.rules.into_iter().map(Into::into).collect(),
            prefetch: wanted.prefetch,
            priority: wanted.priority,
            concurrency: wanted
                .concurrency
                .map(|concurrency| usize::try_from(concurrency).unwrap_or(usize::MAX)),
            handler_timeout: wanted.handler_timeout.map(Duration::from_nanos),
            park: wanted.park,
            pause: wanted.pause.map(Into::into),
            declare: wanted.declare,
            work_queue: wanted.work_queue,
            reserved_name: wanted.reserved_name,
            drain_timeout: wanted.drain_timeout.map(Duration::from_nanos),
            crash_limit: wanted.crash_limit,
            defer_limit: wanted.defer_limit,
            fatal: wanted.fatal,
        };
        let options = given.read().map_err(|refused| refused.error)?;
        Ok(Arc::new(Self {
            consumer: options.consumer,
            has_rules: options.has_rules,
            _alive: Alive::new(Kind::Options),
        }))
    }

    /// What the Go half has to know of it.
    pub fn shape(&self) -> Shape {
        Shape {
            concurrency: u32::try_from(self.consumer.handlers()).unwrap_or(u32::MAX),
            handler_timeout: self.consumer.limit().map(nanoseconds),
            drain_timeout: nanoseconds(self.consumer.last_call()),
            has_rules: self.has_rules,
        }
    }
}

impl From<Budget> for PauseGiven {
    fn from(budget: Budget) -> Self {
        Self {
            failures: budget.failures,
            window: budget
                .window
                .map(|window| usize::try_from(window).unwrap_or(0)),
            pause: budget.pause.map(Duration::from_nanos),
        }
    }
}

/// What went wrong.
#[derive(Debug, uniffi::Record)]
pub struct Failed {
    /// The text of the error.
    pub error: String,
    /// Its type.
    pub error_type: String,
    /// What else it is.
    pub kinds: Vec<String>,
    /// Its stack or its chain of causes.
    pub stack: Option<String>,
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        let mut failure = Self::new(failed.error)
            .of_type(failed.error_type)
            .also(failed.kinds);
        failure.stack = failed.stack;
        failure
    }
}

/// The end of an attempt. Delays are nanoseconds.
#[derive(Debug, uniffi::Enum)]
pub enum Ending {
    /// Handled.
    Ack,
    /// Failed: once more, later.
    Retry {
        /// What went wrong.
        failure: Failed,
        /// The delay that the handler chose.
        delay: Option<u64>,
    },
    /// Given up by the handler.
    Park {
        /// Why.
        failure: Failed,
    },
    /// Failed in a way that no retry can mend.
    Fatal {
        /// What went wrong.
        failure: Failed,
    },
    /// Put off.
    Defer {
        /// For how long.
        delay: u64,
    },
}

impl From<Ending> for Outcome {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Ack => Self::Ack,
            Ending::Retry { failure, delay } => Self::Retry {
                failure: failure.into(),
                delay: delay.map(Duration::from_nanos),
            },
            Ending::Park { failure } => Self::Park {
                reason: ParkReason::Requested,
                failure: failure.into(),
            },
            Ending::Fatal { failure } => Self::Park {
                reason: ParkReason::Fatal,
                failure: failure.into(),
            },
            Ending::Defer { delay } => Self::Defer {
                delay: Duration::from_nanos(delay),
            },
        }
    }
}
