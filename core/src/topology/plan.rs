//! A plan: the queues, exchanges and bindings that a consumer needs, as data.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::{Finding, Status};
use crate::{Error, ErrorKind, Result};

/// The type of the queues in which messages wait and are parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueType {
    /// Replicated, and with at-least-once dead-lettering: what waits here has nobody else to look after it.
    #[default]
    Quorum,
    /// Faster on a single node; a message that returns while its work queue is full or gone is dropped by RabbitMQ.
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
                    "`{}` is no queue type; it is quorum or classic",
                    other.chars().take(40).collect::<String>()
                ),
            )),
        }
    }
}

/// The value of an argument of a queue or exchange.
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

/// Arguments by name.
pub type Arguments = Vec<(Cow<'static, str>, Argument)>;

/// What is done about a queue that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// It is made; where nothing may be made, its lack is an error. A work queue that was there before its consumer is not made
    /// again when it is gone: what was bound to it, and how it was declared, only its owner knows.
    Made,
    /// It is made, also when it was there before its consumer and is gone: so it was asked for.
    Remade,
    /// It is made; where nothing may be made, it is done without.
    DoneWithout,
    /// Its lack is an error: somebody else makes it, with whatever is bound to it.
    Refused,
    /// Its lack is an error: it was there before its consumer, and somebody else made it.
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
        /// Its arguments, `x-queue-type` always among them.
        arguments: Arguments,
        /// Whether one that exists is taken as it is, unless it is a stream. Otherwise it must have exactly these arguments.
        any_arguments: bool,
        /// What is done when it does not exist.
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
    /// A queue that must have exactly these arguments, and is made where it is missing. `x-queue-type` should be among them.
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

    /// The parking queue of a work queue, as a consumer makes it; one that exists is taken as it is.
    #[must_use]
    pub fn parking(queue: &str, queue_type: QueueType) -> Self {
        parking(queue, queue_type)
    }

    /// An internal exchange: no client may publish to it, whatever its permissions; dead-letter routes lead there.
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

    /// A durable exchange that anybody with the permission may publish to. One that exists must be of this type.
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

    /// The name of the queue or exchange that is made or bound.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Queue { name, .. }
            | Self::Exchange { name, .. }
            | Self::Binding { queue: name, .. } => name,
        }
    }

    /// Whether it is a queue that is consumed.
    pub(crate) fn is_work_queue(&self) -> bool {
        matches!(self, Self::Queue { purpose, .. } if purpose.starts_with(WORK_QUEUE))
    }

    /// Whether it is the queue of the service that failures are handed over to.
    pub(crate) fn is_handover_queue(&self) -> bool {
        matches!(self, Self::Queue { purpose, .. } if *purpose == HANDED_OVER)
    }

    /// Whether it is a queue in which messages are parked.
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

/// Everything a consumer needs, in the order in which it has to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The items.
    pub items: Vec<Item>,
}

impl Plan {
    /// A plan of these items, in the order in which they have to be made.
    #[must_use]
    pub fn new(items: impl IntoIterator<Item = Item>) -> Self {
        Self {
            items: items.into_iter().collect(),
        }
    }

    /// This plan for whoever comes back to what it `found`: a work queue that was there before us is not made again when it
    /// is gone, unless that was asked for.
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
    /// [`ErrorKind::TooLarge`] for a name that AMQP cannot carry.
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

/// The name of the queue in which messages of `queue` wait for `delay`.
#[must_use]
pub fn waiting_queue(queue: &str, delay: Duration) -> String {
    format!("{queue}.retry.{}", delay.as_millis())
}

/// The name of the queue in which messages of `queue` are parked.
#[must_use]
pub fn parking_queue(queue: &str) -> String {
    format!("{queue}.parked")
}

/// The work queue of a queue whose name is one that waiting and parking queues have: `orders` of `orders.parked` and of
/// `orders.retry.1000`; `None` for any other name.
#[must_use]
pub fn work_queue_of(name: &str) -> Option<&str> {
    let work = name.strip_suffix(".parked").or_else(|| {
        name.rsplit_once(".retry.")
            .filter(|(_, ms)| !ms.is_empty() && ms.bytes().all(|digit| digit.is_ascii_digit()))
            .map(|(work, _)| work)
    });
    work.filter(|work| !work.is_empty())
}

/// How long messages of `queue` wait in the queue `name`; `None` if it is not one in which they wait.
pub(crate) fn waits_for(queue: &str, name: &str) -> Option<Duration> {
    let ms = name.strip_prefix(queue)?.strip_prefix(".retry.")?;
    ms.parse().ok().map(Duration::from_millis)
}

/// A name that AMQP can carry: at most 255 bytes.
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

/// Arguments as AMQP carries them.
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

/// What a quorum queue needs so that it loses nothing that it dead-letters. Both are needed: without reject-publish RabbitMQ falls
/// back to at-most-once without a word.
pub(super) fn at_least_once() -> Arguments {
    named([
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ])
}

pub(super) fn text(value: impl Into<String>) -> Argument {
    Argument::Text(value.into())
}

/// A queue in which messages of `queue` wait `delay` and from which they go back to its tail, and to no other queue:
/// the default exchange routes by queue name.
pub(super) fn waiting(queue: &str, delay: Duration, queue_type: QueueType) -> Item {
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

/// The queue of the detour that messages take whose own queue does not count crashes. A consumer of a quorum queue can do
/// without it.
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
    let mut arguments = named([("x-queue-type", text(queue_type.as_str()))]);
    if queue_type == QueueType::Quorum {
        // RabbitMQ 4.0 and later drop a message at its 21st look-and-put-back. A number, not -1 for "unlimited":
        // 3.10 takes -1 for "none" and loses the message at the first return.
        arguments.push(("x-delivery-limit".into(), Argument::Number(1_000_000_000)));
    }
    Item::Queue {
        name: parking.to_owned(),
        arguments,
        any_arguments: true,
        missing: Missing::Made,
        purpose: PARKED_HERE,
    }
}

/// The internal exchange of a service (`retryrmq serve`): queues send there what dies in them, and no client may publish to it.
pub const DEAD_EXCHANGE: &str = "retryrmq.dead";

/// The queue in which a service takes in what died. The service declares it.
pub const INTAKE_QUEUE: &str = "retryrmq.intake";

/// The queue in which a service takes over the failures that consumers with [`Strategy::Service`](crate::Strategy::Service) hand to it.
/// The service declares it.
pub const HANDOVER_QUEUE: &str = "retryrmq.handover";

/// The queue of the service, which must be there already.
pub(super) fn handover() -> Item {
    Item::Queue {
        name: HANDOVER_QUEUE.to_owned(),
        arguments: Vec::new(),
        any_arguments: true,
        missing: Missing::Refused,
        purpose: HANDED_OVER,
    }
}

/// The purpose of the queue of the service.
const HANDED_OVER: &str = "the service takes failures over from here";

/// The purpose of a parking queue.
pub(super) const PARKED_HERE: &str = "messages are parked here";

/// What the purpose of a work queue begins with.
pub(super) const WORK_QUEUE: &str = "the work queue";

/// The parking queue of this name with exactly the arguments that we give it, to see whether it is one of ours.
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

/// The work queue, for the case that it does not exist: durable, quorum, and what the broker itself gives up on
/// (delivery limit, expiry, rejection by others) goes to the parking queue.
pub(super) fn work(queue: &str) -> Item {
    work_that_dead_letters(
        queue,
        [
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(parking_queue(queue))),
        ],
    )
}

/// As [`work`], with what the broker itself gives up on going where these arguments say.
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

/// A queue that must be there already, whatever it is like.
pub(crate) fn existing(queue: &str) -> Item {
    Item::Queue {
        name: queue.to_owned(),
        arguments: Vec::new(),
        any_arguments: true,
        missing: Missing::Refused,
        purpose: "must exist",
    }
}
