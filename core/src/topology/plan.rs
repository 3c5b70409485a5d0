//! A plan: the queues, exchanges and bindings that a consumer needs, as data.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::{Finding, Status};
use crate::{
    Error, ErrorKind, MAX_DELAY, Result,
    connection::NameLimit,
    queue_names::{
        HANDOVER_QUEUE, UNROUTABLE_KEY, dropped_queue, parking_queue, unreadable_queue,
        waiting_queue,
    },
};

/// The type of the waiting and parking queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueType {
    /// Quorum queues: replicated, with at-least-once dead-lettering. The default, because nobody else watches over waiting messages.
    #[default]
    Quorum,
    /// Classic queues: faster on a single node. RabbitMQ drops a message that returns while its work queue is full or gone.
    Classic,
}

impl QueueType {
    /// The value of `x-queue-type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl FromStr for QueueType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "quorum" => Ok(Self::Quorum),
            "classic" => Ok(Self::Classic),
            other => Err(Error::new(
                ErrorKind::InvalidOption,
                format!(
                    "`{}` is not a queue type; use quorum or classic",
                    other.chars().take(40).collect::<String>()
                ),
            )),
        }
    }
}

/// The value of a queue's or exchange's argument.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument {
    /// A string.
    Text(String),
    /// A signed 64-bit integer.
    Number(i64),
    /// True or false.
    Flag(bool),
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// Names and values of arguments.
pub type Arguments = Vec<(Cow<'static, str>, Argument)>;

/// What is done if a queue does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// It is created; if creating is off, it is an error. A work queue that existed before its consumer and is deleted later is not created
    /// again: only its owner knows its arguments and bindings.
    Made,
    /// It is created, even if it existed before its consumer and is deleted later, because the user asked for that.
    Remade,
    /// It is created; if creating is off, the consumer does without it.
    DoneWithout,
    /// It is an error: its owner creates it, with its bindings.
    Refused,
    /// It is an error: it existed before its consumer, and somebody else created it.
    Gone,
}

/// One thing that must exist on the broker. All of them are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Item {
    /// A queue.
    #[non_exhaustive]
    Queue {
        /// Its name.
        name: String,
        /// Its arguments, always with `x-queue-type`.
        arguments: Arguments,
        /// Whether an existing queue is used as it is, unless it is a stream. Otherwise it must have exactly these arguments.
        any_arguments: bool,
        /// What is done if it does not exist.
        missing: Missing,
        /// What it is for, in a few words.
        purpose: &'static str,
    },
    /// An exchange.
    #[non_exhaustive]
    Exchange {
        /// Its name.
        name: String,
        /// Its type, such as `x-delayed-message`.
        kind: &'static str,
        /// Whether no client may publish to it: only bindings and dead-letter routes lead there.
        internal: bool,
        /// Its arguments.
        arguments: Arguments,
        /// What it is for, in a few words.
        purpose: &'static str,
    },
    /// A binding of a queue to an exchange.
    #[non_exhaustive]
    Binding {
        /// The queue.
        queue: String,
        /// The exchange.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
}

impl Item {
    /// A queue that must have exactly these arguments, and is created if it is missing. They should include `x-queue-type`.
    #[must_use]
    pub fn queue(name: impl Into<String>, arguments: Arguments, purpose: &'static str) -> Self {
        Self::Queue {
            name: name.into(),
            arguments,
            any_arguments: false,
            missing: Missing::Made,
            purpose,
        }
    }

    /// The parking queue of a work queue, as a consumer creates it. An existing one is used as it is.
    #[must_use]
    pub fn parking(queue: &str, queue_type: QueueType) -> Self {
        parking(queue, queue_type)
    }

    /// An internal exchange: no client may publish to it, whatever its permissions. Dead-letter routes lead there.
    #[must_use]
    pub fn internal_exchange(
        name: impl Into<String>,
        kind: &'static str,
        purpose: &'static str,
    ) -> Self {
        Self::Exchange {
            name: name.into(),
            kind,
            internal: true,
            arguments: Vec::new(),
            purpose,
        }
    }

    /// A durable exchange to which everyone with the permission may publish. An existing one must be of this type.
    #[must_use]
    pub fn exchange(name: impl Into<String>, kind: &'static str, purpose: &'static str) -> Self {
        Self::Exchange {
            name: name.into(),
            kind,
            internal: false,
            arguments: Vec::new(),
            purpose,
        }
    }

    /// A binding of a queue to an exchange.
    #[must_use]
    pub fn binding(
        queue: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        Self::Binding {
            queue: queue.into(),
            exchange: exchange.into(),
            routing_key: routing_key.into(),
        }
    }

    /// The name of the queue or exchange. For a binding, the name of the queue.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Queue { name, .. }
            | Self::Exchange { name, .. }
            | Self::Binding { queue: name, .. } => name,
        }
    }

    /// The text that a queue has as this argument.
    pub(super) fn text_argument(&self, key: &str) -> Option<&str> {
        let Self::Queue { arguments, .. } = self else {
            return None;
        };
        match arguments.iter().find(|(name, _)| name == key)? {
            (_, Argument::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether it is a work queue.
    pub(crate) fn is_work_queue(&self) -> bool {
        matches!(self, Self::Queue { purpose, .. } if purpose.starts_with(WORK_QUEUE))
    }

    /// Whether it is the service's queue for handed-over failures.
    pub(crate) fn is_handover_queue(&self) -> bool {
        matches!(self, Self::Queue { purpose, .. } if *purpose == HANDED_OVER)
    }

    /// Whether it is a parking queue.
    pub(crate) fn is_parking_queue(&self) -> bool {
        matches!(self, Self::Queue { purpose, .. } if *purpose == PARKED_HERE)
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |arguments: &Arguments| {
            arguments
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        match self {
            Self::Queue {
                name, arguments, ..
            } => write!(f, "queue {name} ({})", list(arguments)),
            Self::Exchange {
                name,
                kind,
                arguments,
                ..
            } => write!(f, "exchange {name} (type={kind}, {})", list(arguments)),
            Self::Binding {
                queue,
                exchange,
                routing_key,
            } => {
                write!(f, "binding of {queue} to {exchange} with {routing_key}")
            }
        }
    }
}

/// Everything that a consumer needs, in the order of creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The items.
    pub items: Vec<Item>,
}

impl Plan {
    /// A plan of these items, in the order of creation.
    #[must_use]
    pub fn new(items: impl IntoIterator<Item = Item>) -> Self {
        Self {
            items: items.into_iter().collect(),
        }
    }

    /// This plan for a consumer that subscribes again, after a first plan with these findings. A work queue that existed before us is not
    /// created again when it is gone, unless the user asked for that.
    #[must_use]
    pub(crate) fn again(&self, found: &[Finding]) -> Self {
        let is_anothers = |of: &Item| {
            of.is_work_queue()
                && found
                    .iter()
                    .any(|finding| finding.item == *of && finding.status == Status::Present)
        };
        let mut again = self.clone();
        for item in &mut again.items {
            let is_anothers = is_anothers(item);
            if let Item::Queue { missing, .. } = item
                && is_anothers
                && matches!(missing, Missing::Made | Missing::Refused)
            {
                *missing = Missing::Gone;
            }
        }
        again
    }

    /// Checks every name.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for a name longer than 255 bytes.
    pub(crate) fn validate(&self) -> Result<()> {
        self.items
            .iter()
            .try_for_each(|item| name(item.name()).map(drop))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.iter().try_for_each(|item| writeln!(f, "{item}"))
    }
}

/// Checks the name of a work queue together with all names that may be made from it.
///
/// # Errors
/// [`ErrorKind::TooLarge`].
pub(crate) fn check_family(queue: &str, names: NameLimit) -> Result<()> {
    let longest = waiting_queue("", MAX_DELAY).len();
    names.check_with(queue, longest)
}

/// A name for AMQP: at most 255 bytes.
pub(crate) fn name(text: &str) -> Result<ShortString> {
    ShortString::try_new(text).map_err(|why| {
        let head: String = text.chars().take(40).collect();
        Error::new(
            ErrorKind::TooLarge,
            format!(
                "the name `{head}…` has {} bytes and AMQP carries 255; shorten it, or the name of the queue that it is made from",
                text.len()
            ),
        )
        .with_source(why)
    })
}

/// The arguments as an AMQP table.
pub(super) fn field_table(arguments: &Arguments) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
            Argument::Number(number) => AMQPValue::LongLongInt(*number),
            Argument::Flag(flag) => AMQPValue::Boolean(*flag),
        };
        table.insert(ShortString::from(name.as_ref()), value);
    }
    table
}

pub(super) fn named<const N: usize>(arguments: [(&'static str, Argument); N]) -> Arguments {
    arguments
        .into_iter()
        .map(|(name, value)| (name.into(), value))
        .collect()
}

/// What a quorum queue needs to lose nothing when it dead-letters. It needs both: without reject-publish RabbitMQ silently uses
/// at-most-once.
pub(super) fn at_least_once() -> Arguments {
    named([
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ])
}

pub(super) fn text(value: impl Into<String>) -> Argument {
    Argument::Text(value.into())
}

/// A queue in which messages of `queue` wait for `delay`. From it they return to the tail of `queue` and to no other queue, because the
/// default exchange routes by queue name.
pub(crate) fn waiting(queue: &str, delay: Duration, queue_type: QueueType) -> Item {
    let mut arguments = named([
        ("x-queue-type", text(queue_type.as_str())),
        (
            "x-message-ttl",
            Argument::Number(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)),
        ),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(queue)),
    ]);
    if queue_type == QueueType::Quorum {
        arguments.extend(at_least_once());
    }
    Item::Queue {
        name: waiting_queue(queue, delay),
        arguments,
        any_arguments: false,
        missing: Missing::Made,
        purpose: "messages wait here",
    }
}

/// The queue of the detour, for messages whose work queue does not count crashes. A consumer of a quorum queue can do without it.
pub(super) fn detour(queue: &str, delay: Duration, queue_type: QueueType) -> Item {
    match waiting(queue, delay, queue_type) {
        Item::Queue {
            name,
            arguments,
            any_arguments,
            ..
        } => Item::Queue {
            name,
            arguments,
            any_arguments,
            missing: Missing::DoneWithout,
            purpose: "messages wait here whose consumer went away",
        },
        other => other,
    }
}

/// The queue in which messages of `queue` are parked.
pub(crate) fn parking(queue: &str, queue_type: QueueType) -> Item {
    parking_itself(&parking_queue(queue), queue_type)
}

/// The parking queue with this name.
pub(crate) fn parking_itself(parking: &str, queue_type: QueueType) -> Item {
    for_people(parking.to_owned(), queue_type, PARKED_HERE)
}

/// A queue in which messages stay until somebody decides.
fn for_people(name: String, queue_type: QueueType, purpose: &'static str) -> Item {
    let mut arguments = named([("x-queue-type", text(queue_type.as_str()))]);
    if queue_type == QueueType::Quorum {
        // RabbitMQ 4.0 and later drop a message when it is returned for the 21st time. A number and not -1 for "unlimited": 3.10 reads -1
        // as "none", and loses the message at the first return.
        arguments.push(("x-delivery-limit".into(), Argument::Number(1_000_000_000)));
    }
    Item::Queue {
        name,
        arguments,
        any_arguments: true,
        missing: Missing::Made,
        purpose,
    }
}

/// The queue for messages of `queue` that AMQP 0-9-1 cannot carry. It is like a parking queue.
pub(crate) fn unreadable(queue: &str, queue_type: QueueType) -> Item {
    let purpose = "messages are kept here that AMQP 0-9-1 cannot carry";
    for_people(unreadable_queue(queue), queue_type, purpose)
}

/// The queue in which dropped messages of `queue` are kept for `keep`.
pub(crate) fn dropped(queue: &str, keep: Duration) -> Item {
    let purpose = "dropped messages are kept here for a while";
    let Item::Queue {
        name,
        mut arguments,
        any_arguments,
        missing,
        purpose,
    } = for_people(dropped_queue(queue), QueueType::Quorum, purpose)
    else {
        unreachable!("a queue for people is a queue")
    };
    let ttl = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    arguments.extend(named([
        ("x-message-ttl", Argument::Number(ttl)),
        // A full queue refuses a message, which then stays parked.
        ("x-overflow", text("reject-publish")),
        // Otherwise a policy could have the broker send somewhere else what somebody dropped.
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(UNROUTABLE_KEY)),
        ("x-dead-letter-strategy", text("at-most-once")),
    ]));
    Item::Queue {
        name,
        arguments,
        any_arguments,
        missing,
        purpose,
    }
}

/// The service's queue, which must exist already.
pub(super) fn handover() -> Item {
    Item::Queue {
        name: HANDOVER_QUEUE.to_owned(),
        arguments: Vec::new(),
        any_arguments: true,
        missing: Missing::Refused,
        purpose: HANDED_OVER,
    }
}

/// The purpose of the service's queue.
const HANDED_OVER: &str = "the service takes failures over from here";

/// The purpose of a parking queue.
pub(super) const PARKED_HERE: &str = "messages are parked here";

/// How the purpose of a work queue begins.
pub(super) const WORK_QUEUE: &str = "the work queue";

/// The parking queue of this name with exactly our arguments, to see whether an existing one has them.
pub(crate) fn exact_parking(parking: &str, queue_type: QueueType) -> Item {
    match parking_itself(parking, queue_type) {
        Item::Queue {
            name,
            arguments,
            purpose,
            ..
        } => Item::Queue {
            name,
            arguments,
            any_arguments: false,
            missing: Missing::Made,
            purpose,
        },
        other => other,
    }
}

/// A missing work queue: durable, quorum. Messages that the broker itself gives up on (delivery limit, expiry, rejection by other
/// consumers) go to the parking queue.
pub(super) fn work(queue: &str) -> Item {
    work_that_dead_letters(
        queue,
        [
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(parking_queue(queue))),
        ],
    )
}

/// Like [`work`]; these arguments say where messages go that the broker itself gives up on.
pub(super) fn work_that_dead_letters<const N: usize>(
    queue: &str,
    arguments: [(&'static str, Argument); N],
) -> Item {
    Item::Queue {
        name: queue.to_owned(),
        arguments: named([("x-queue-type", text("quorum"))])
            .into_iter()
            .chain(named(arguments))
            .chain(at_least_once())
            .collect(),
        any_arguments: true,
        missing: Missing::Made,
        purpose: WORK_QUEUE,
    }
}

/// A queue that must exist already; its arguments do not matter.
pub(crate) fn existing(queue: &str) -> Item {
    Item::Queue {
        name: queue.to_owned(),
        arguments: Vec::new(),
        any_arguments: true,
        missing: Missing::Refused,
        purpose: "must exist",
    }
}
