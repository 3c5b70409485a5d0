//! Events: what happened to which message, as typed values.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::retry::ParkReason;

/// What happened to a message or a consumer, for operators and tests. [`Consumer::on_event`](crate::Consumer::on_event) gets them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A failed message waits for its next attempt, and is safely stored.
    #[non_exhaustive]
    Retried {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
        /// The attempt that failed; 1 is the first delivery.
        attempt: u32,
        /// How long it waits.
        delay: Duration,
        /// The error of this attempt, at most 1024 bytes.
        error: String,
        /// The type of that error, if the handler said it: `KeyError`, at most 255 bytes.
        error_type: Option<String>,
    },
    /// A handler deferred a message.
    #[non_exhaustive]
    Deferred {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
        /// How long it waits.
        delay: Duration,
    },
    /// A message was parked.
    #[non_exhaustive]
    Parked {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
        /// The number of the last attempt.
        attempt: u32,
        /// Why it was parked.
        reason: ParkReason,
        /// The error of the last failure, at most 1024 bytes.
        error: String,
        /// The type of that error, if the handler said it: `KeyError`, at most 255 bytes.
        error_type: Option<String>,
    },
    /// With the strategy `service`: a failed message was handed over to the service, whose policy decides. Its original is acknowledged.
    #[non_exhaustive]
    HandedOver {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
        /// The attempt that failed; 1 is the first delivery.
        attempt: u32,
        /// The error of this attempt, at most 1024 bytes.
        error: String,
        /// The type of that error, if the handler said it: `KeyError`, at most 255 bytes.
        error_type: Option<String>,
    },
    /// With `dlx` off: a failed message was rejected without requeue. The queue's own dead-lettering decides.
    #[non_exhaustive]
    Rejected {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
        /// The error of this attempt, at most 1024 bytes.
        error: String,
        /// The type of that error, if the handler said it: `KeyError`, at most 255 bytes.
        error_type: Option<String>,
    },
    /// A message was redelivered because its consumer never settled it, or, with `native`, before its delay was over. A copy waits before the next attempt.
    #[non_exhaustive]
    Detoured {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
        /// Its crashes so far.
        crashes: u32,
    },
    /// A message that was handled before the connection was lost was redelivered. It was acknowledged, not handled again.
    #[non_exhaustive]
    AlreadyHandled {
        /// The work queue.
        queue: String,
        /// The message's id.
        message_id: Option<String>,
    },
    /// A message that was replayed from the parking queue arrived, and will be handled again.
    #[non_exhaustive]
    Replayed {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
    },
    /// A copy could not be stored. It is tried again; the original is still unacknowledged.
    #[non_exhaustive]
    PublishFailed {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
        /// Why it could not be stored.
        error: String,
    },
    /// A message that did not run, or whose copy could not be stored for ten minutes, went back to the tail of its queue as a copy. A
    /// requeue by AMQP `basic.nack` has no event.
    #[non_exhaustive]
    Requeued {
        /// The work queue.
        queue: String,
        /// The message's id, if its publisher gave it one.
        message_id: Option<String>,
    },
    /// The connection or the channel was lost. Unacknowledged messages are delivered again.
    #[non_exhaustive]
    Disconnected {
        /// The work queue.
        queue: String,
    },
    /// The connection was lost, and the broker now refuses the login or the virtual host. The client keeps trying. Fix the user, the
    /// password or the virtual host.
    #[non_exhaustive]
    LoginRefused {
        /// The work queue.
        queue: String,
        /// What the broker refused.
        error: String,
    },
    /// The consumer moved messages of its queue to `<queue>.unreadable`: RabbitMQ cannot deliver them over AMQP 0-9-1, and closed the
    /// connection instead. Their publishers should send other types. Sent once for each look at the queue that moved some.
    #[non_exhaustive]
    UnreadableMoved {
        /// The work queue.
        queue: String,
        /// The queue to which they were moved.
        to: String,
        /// How many were moved.
        count: u32,
        /// Why the first of them cannot be delivered.
        cause: String,
    },
    /// RabbitMQ closed one or more connections of the consumer with an error of its own, as it does for a message that it cannot deliver, and no
    /// such message could be moved. The consumer does not consume until the cause is gone. It looks a few times more, and may have to be started
    /// again. Sent once for each stop; `reconnected` follows when it consumes again.
    #[non_exhaustive]
    ConsumingStopped {
        /// The work queue.
        queue: String,
        /// Why it does not consume, and what to do.
        error: String,
    },
    /// The consumer is connected and consumes again.
    #[non_exhaustive]
    Reconnected {
        /// The work queue.
        queue: String,
    },
    /// Too many attempts failed, so the consumer takes no messages for a while.
    #[non_exhaustive]
    Paused {
        /// The work queue.
        queue: String,
        /// How long the pause lasts.
        delay: Duration,
    },
    /// After a pause, a single message succeeded, so the consumer takes messages again.
    #[non_exhaustive]
    Resumed {
        /// The work queue.
        queue: String,
    },
}

impl Event {
    /// One event of each kind, for lists of all of them.
    #[doc(hidden)]
    #[must_use]
    pub fn one_of_each() -> Vec<Self> {
        let (queue, error) = (String::new, String::new);
        let (message_id, delay) = (Some(String::new()), Duration::ZERO);
        let id = || message_id.clone();
        let reason = ParkReason::Exhausted;
        vec![
            Self::Retried {
                queue: queue(),
                message_id: id(),
                attempt: 1,
                delay,
                error: error(),
                error_type: id(),
            },
            Self::Deferred {
                queue: queue(),
                message_id: id(),
                delay,
            },
            Self::Parked {
                queue: queue(),
                message_id: id(),
                attempt: 1,
                reason,
                error: error(),
                error_type: id(),
            },
            Self::HandedOver {
                queue: queue(),
                message_id: id(),
                attempt: 1,
                error: error(),
                error_type: id(),
            },
            Self::Rejected {
                queue: queue(),
                message_id: id(),
                error: error(),
                error_type: id(),
            },
            Self::Detoured {
                queue: queue(),
                message_id: id(),
                crashes: 1,
            },
            Self::AlreadyHandled {
                queue: queue(),
                message_id: id(),
            },
            Self::Replayed {
                queue: queue(),
                message_id: id(),
            },
            Self::PublishFailed {
                queue: queue(),
                message_id: id(),
                error: error(),
            },
            Self::Requeued {
                queue: queue(),
                message_id: id(),
            },
            Self::Disconnected { queue: queue() },
            Self::LoginRefused {
                queue: queue(),
                error: error(),
            },
            Self::UnreadableMoved {
                queue: queue(),
                to: String::new(),
                count: 1,
                cause: String::new(),
            },
            Self::ConsumingStopped {
                queue: queue(),
                error: error(),
            },
            Self::Reconnected { queue: queue() },
            Self::Paused {
                queue: queue(),
                delay,
            },
            Self::Resumed { queue: queue() },
        ]
    }

    /// The event's stable name: `retried`, `parked`, … It is the same in every language and metric.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Retried { .. } => "retried",
            Self::Deferred { .. } => "deferred",
            Self::Parked { .. } => "parked",
            Self::HandedOver { .. } => "handed_over",
            Self::Rejected { .. } => "rejected",
            Self::Detoured { .. } => "detoured",
            Self::AlreadyHandled { .. } => "already_handled",
            Self::Replayed { .. } => "replayed",
            Self::PublishFailed { .. } => "publish_failed",
            Self::Requeued { .. } => "requeued",
            Self::Disconnected { .. } => "disconnected",
            Self::LoginRefused { .. } => "login_refused",
            Self::UnreadableMoved { .. } => "unreadable_moved",
            Self::ConsumingStopped { .. } => "consuming_stopped",
            Self::Reconnected { .. } => "reconnected",
            Self::Paused { .. } => "paused",
            Self::Resumed { .. } => "resumed",
        }
    }

    /// All that it says, in one shape for every event: for logs, tables and other languages.
    #[must_use]
    pub fn fields(&self) -> EventFields<'_> {
        match self {
            Self::Retried {
                queue,
                message_id,
                attempt,
                delay,
                error,
                error_type,
            } => EventFields {
                queue,
                message_id: message_id.as_deref(),
                attempt: Some(*attempt),
                delay: Some(*delay),
                error: Some(error),
                error_type: error_type.as_deref(),
                ..EventFields::default()
            },
            Self::Deferred {
                queue,
                message_id,
                delay,
            } => EventFields {
                queue,
                message_id: message_id.as_deref(),
                delay: Some(*delay),
                ..EventFields::default()
            },
            Self::Parked {
                queue,
                message_id,
                attempt,
                reason,
                error,
                error_type,
            } => EventFields {
                queue,
                message_id: message_id.as_deref(),
                attempt: Some(*attempt),
                reason: Some(*reason),
                error: Some(error),
                error_type: error_type.as_deref(),
                ..EventFields::default()
            },
            Self::HandedOver {
                queue,
                message_id,
                attempt,
                error,
                error_type,
            } => EventFields {
                queue,
                message_id: message_id.as_deref(),
                attempt: Some(*attempt),
                error: Some(error),
                error_type: error_type.as_deref(),
                ..EventFields::default()
            },
            Self::Rejected {
                queue,
                message_id,
                error,
                error_type,
            } => EventFields {
                queue,
                message_id: message_id.as_deref(),
                error: Some(error),
                error_type: error_type.as_deref(),
                ..EventFields::default()
            },
            Self::PublishFailed {
                queue,
                message_id,
                error,
            } => EventFields {
                queue,
                message_id: message_id.as_deref(),
                error: Some(error),
                ..EventFields::default()
            },
            Self::Detoured {
                queue,
                message_id,
                crashes,
            } => EventFields {
                queue,
                message_id: message_id.as_deref(),
                crashes: Some(*crashes),
                ..EventFields::default()
            },
            Self::AlreadyHandled { queue, message_id }
            | Self::Replayed { queue, message_id }
            | Self::Requeued { queue, message_id } => EventFields {
                queue,
                message_id: message_id.as_deref(),
                ..EventFields::default()
            },
            Self::Paused { queue, delay } => EventFields {
                queue,
                delay: Some(*delay),
                ..EventFields::default()
            },
            Self::LoginRefused { queue, error } | Self::ConsumingStopped { queue, error } => {
                EventFields {
                    queue,
                    error: Some(error),
                    ..EventFields::default()
                }
            }
            Self::UnreadableMoved {
                queue,
                to,
                count,
                cause,
            } => EventFields {
                queue,
                to: Some(to),
                count: Some(*count),
                cause: Some(cause),
                ..EventFields::default()
            },
            Self::Disconnected { queue }
            | Self::Reconnected { queue }
            | Self::Resumed { queue } => EventFields {
                queue,
                ..EventFields::default()
            },
        }
    }
}

/// All that an [`Event`] says, in one shape for every event. A field is `None` if the event does not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventFields<'a> {
    /// The work queue.
    pub queue: &'a str,
    /// The message's id, if the event is about a message and its publisher gave it one.
    pub message_id: Option<&'a str>,
    /// The attempt that failed; 1 is the first delivery.
    pub attempt: Option<u32>,
    /// How long the message waits, or the consumer pauses.
    pub delay: Option<Duration>,
    /// Why it was parked.
    pub reason: Option<ParkReason>,
    /// What went wrong.
    pub error: Option<&'a str>,
    /// The type of the error of an attempt, if the handler said it.
    pub error_type: Option<&'a str>,
    /// The message's crashes so far.
    pub crashes: Option<u32>,
    /// The queue to which messages were moved.
    pub to: Option<&'a str>,
    /// How many messages were moved.
    pub count: Option<u32>,
    /// Why the first of them cannot be delivered.
    pub cause: Option<&'a str>,
}

type EventFn = dyn Fn(&Event) + Send + Sync;

/// The function that gets the events.
#[derive(Clone, Default)]
pub(crate) struct Listener(Option<Arc<EventFn>>);

impl Listener {
    pub(crate) fn new(listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    /// Calls the listener, if there is one. A panic in it does not end the consumer.
    pub(crate) fn notify(&self, event: impl FnOnce() -> Event) {
        if let Some(listener) = &self.0
            && catch_unwind(AssertUnwindSafe(|| listener(&event()))).is_err()
        {
            tracing::error!("an event listener panicked");
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Listener"
        } else {
            "no listener"
        })
    }
}
