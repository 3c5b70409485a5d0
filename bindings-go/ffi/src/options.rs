//! The options of a consumer, and the end of an attempt.

use std::{sync::Arc, time::Duration};

use retryrmq::{Consumer, Failure, Outcome};
use retryrmq_bindings::EndKind;
use retryrmq_bindings::nanoseconds;

use crate::{
    errors::FfiError,
    object_count::{LiveObject, ObjectKind},
};

/// What the Go half has to know of a consumer.
#[derive(Debug, uniffi::Record)]
pub struct OptionsSummary {
    /// How many handlers run at a time.
    pub concurrency: u32,
    /// How many messages a handler gets at most; none for single messages.
    pub batch: Option<u32>,
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
    _alive: LiveObject,
}

#[uniffi::export]
impl Options {
    /// Reads and checks what was said of them, one JSON object.
    #[uniffi::constructor]
    pub fn new(given: String) -> Result<Arc<Self>, FfiError> {
        let options = retryrmq_bindings::Options::read(&given).map_err(|refused| refused.why)?;
        Ok(Arc::new(Self {
            consumer: options.consumer,
            has_rules: options.has_rules,
            _alive: LiveObject::new(ObjectKind::Options),
        }))
    }

    /// What the Go half has to know of it.
    pub fn summary(&self) -> OptionsSummary {
        OptionsSummary {
            concurrency: u32::try_from(self.consumer.configured_concurrency()).unwrap_or(u32::MAX),
            batch: self
                .consumer
                .batch_size()
                .map(|size| u32::try_from(size).unwrap_or(u32::MAX)),
            handler_timeout: self.consumer.configured_handler_timeout().map(nanoseconds),
            drain_timeout: nanoseconds(self.consumer.configured_drain_timeout()),
            has_rules: self.has_rules,
        }
    }
}

/// What went wrong.
#[derive(Debug, uniffi::Record)]
pub struct AttemptFailure {
    /// The text of the error.
    pub error: String,
    /// Its type.
    pub error_type: String,
    /// What else it is.
    pub kinds: Vec<String>,
    /// Its stack or its chain of causes.
    pub stack: Option<String>,
}

impl From<AttemptFailure> for Failure {
    fn from(failed: AttemptFailure) -> Self {
        let mut failure = Self::new(failed.error)
            .of_type(failed.error_type)
            .also(failed.kinds);
        failure.stack = failed.stack;
        failure
    }
}

/// The end of an attempt. Delays are nanoseconds.
#[derive(Debug, uniffi::Enum)]
pub enum End {
    /// Handled.
    Ack,
    /// Failed: once more, later.
    Retry {
        /// What went wrong.
        failure: AttemptFailure,
        /// The delay that the handler chose.
        delay: Option<u64>,
    },
    /// Given up by the handler.
    Park {
        /// Why.
        failure: AttemptFailure,
    },
    /// Failed in a way that no retry can mend.
    Fatal {
        /// What went wrong.
        failure: AttemptFailure,
    },
    /// Put off.
    Defer {
        /// For how long.
        delay: u64,
    },
    /// Parked, because its body is not what the handler reads.
    Undecodable {
        /// What is wrong with it.
        failure: AttemptFailure,
    },
}

impl End {
    /// The outcome for the core.
    pub(crate) fn outcome(self) -> Outcome {
        let (ended, failure, delay) = match self {
            Self::Ack => return Outcome::Ack,
            Self::Retry { failure, delay } => (EndKind::Retry, failure.into(), delay),
            Self::Park { failure } => (EndKind::Park, failure.into(), None),
            Self::Fatal { failure } => (EndKind::Fatal, failure.into(), None),
            Self::Undecodable { failure } => (EndKind::Undecodable, failure.into(), None),
            Self::Defer { delay } => (EndKind::Defer, Failure::default(), Some(delay)),
        };
        // Only a deferral without a delay would be refused, and here each has one.
        ended
            .outcome(failure, delay.map(Duration::from_nanos))
            .unwrap_or_else(|refused| Outcome::Retry {
                failure: Failure::new(refused.message),
                delay: None,
            })
    }
}
