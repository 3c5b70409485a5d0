//! What the arguments of a queue and the policies that match it amount to.

use crate::{Name, Profile, Version};
use lapin::types::{AMQPValue, FieldTable};
use std::time::Duration;

/// The type of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueType {
    /// One copy on one node, no delivery count.
    Classic,
    /// Replicated, counts deliveries.
    Quorum,
}

impl QueueType {
    /// Both.
    pub const ALL: [QueueType; 2] = [QueueType::Classic, QueueType::Quorum];

    /// The value of `x-queue-type`.
    pub fn as_str(self) -> &'static str {
        match self {
            QueueType::Classic => "classic",
            QueueType::Quorum => "quorum",
        }
    }
}

/// A policy, set with [`Broker::set_policy`](crate::Broker::set_policy) or
/// [`Broker::set_operator_policy`](crate::Broker::set_operator_policy). Where a queue has an argument of the same meaning,
/// the argument wins. But of two limits the lower one counts, and on a quorum queue the policy wins for `overflow` and
/// `delayed-retry-type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// `delivery-limit`
    pub delivery_limit: Option<i64>,
    /// `max-length`
    pub max_length: Option<u64>,
    /// `overflow`: whether what does not fit is refused, instead of the oldest being dropped. On a quorum queue without it,
    /// dead letters go at most once
    pub reject_publish: Option<bool>,
    /// `message-ttl`
    pub message_ttl: Option<Duration>,
    /// `expires`
    pub expires: Option<Duration>,
    /// `dead-letter-exchange`
    pub dead_letter_exchange: Option<String>,
    /// `dead-letter-routing-key`
    pub dead_letter_routing_key: Option<String>,
    /// `delayed-retry-type`
    pub delayed_retry_type: Option<String>,
    /// `delayed-retry-min`
    pub delayed_retry_min: Option<Duration>,
    /// `delayed-retry-max`
    pub delayed_retry_max: Option<Duration>,
}

impl Policy {
    /// What a policy and an operator policy that match the same queue amount to: of two limits the lower one counts, and for
    /// `overflow` the operator wins.
    pub(crate) fn with_operator(mut self, operator: &Policy) -> Policy {
        fn least<T: Ord + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        self.delivery_limit = least(self.delivery_limit, operator.delivery_limit);
        self.max_length = least(self.max_length, operator.max_length);
        self.message_ttl = least(self.message_ttl, operator.message_ttl);
        self.expires = least(self.expires, operator.expires);
        self.reject_publish = operator.reject_publish.or(self.reject_publish);
        self
    }

    /// Why a broker of this version takes it for no operator policy.
    pub(crate) fn operators_refusal(&self, version: Version) -> Option<&'static str> {
        let routes = self.dead_letter_exchange.is_some() || self.dead_letter_routing_key.is_some();
        let delays = self.delayed_retry_type.is_some()
            || self.delayed_retry_min.is_some()
            || self.delayed_retry_max.is_some();
        match () {
            () if routes => Some("operators set no dead-letter route (12)"),
            () if delays => Some("delayed retry of operator policies is not modelled"),
            () if self.reject_publish.is_some() && version < Version::V4_0 => {
                Some("operators set `overflow` from 4.0 on (90)")
            }
            () => None,
        }
    }
}

/// Which returns a quorum queue of 4.3 delays, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DelayedRetry {
    pub(crate) failed: bool,
    pub(crate) returned: bool,
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

/// What counts for a queue.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) message_ttl: Option<Duration>,
    pub(crate) expires: Option<Duration>,
    pub(crate) max_length: Option<u64>,
    pub(crate) reject_publish: bool,
    pub(crate) delivery_limit: Option<i64>,
    pub(crate) dead_letter_exchange: Option<Name>,
    pub(crate) dead_letter_routing_key: Option<Name>,
    pub(crate) at_least_once: bool,
    pub(crate) single_active: bool,
    pub(crate) consumer_timeout: Option<Duration>,
    pub(crate) delayed_retry: Option<DelayedRetry>,
}

impl Settings {
    pub(crate) fn of(
        profile: &Profile,
        kind: QueueType,
        arguments: &FieldTable,
        policy: Option<&Policy>,
    ) -> Self {
        let none = Policy::default();
        let policy = policy.unwrap_or(&none);
        let quorum = kind == QueueType::Quorum;
        let millis = |name| number(arguments, name).map(milliseconds);
        let exchange = text(arguments, "x-dead-letter-exchange")
            .or_else(|| policy.dead_letter_exchange.clone());
        let key = text(arguments, "x-dead-letter-routing-key")
            .or_else(|| policy.dead_letter_routing_key.clone());
        let reject_publish = reject_publish(kind, arguments, policy);
        let at_least_once = quorum
            && profile.has_at_least_once()
            && reject_publish
            && exchange.is_some()
            && text(arguments, "x-dead-letter-strategy").is_some_and(|way| way == "at-least-once");
        let least = |argument: Option<u64>, policy: Option<u64>| match (argument, policy) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let max_length = least(
            number(arguments, "x-max-length").and_then(|length| u64::try_from(length).ok()),
            policy.max_length,
        );
        let ttl = match (millis("x-message-ttl"), policy.message_ttl) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let expires = match (millis("x-expires"), policy.expires) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Settings {
            message_ttl: ttl,
            expires,
            max_length,
            reject_publish,
            delivery_limit: quorum
                .then(|| delivery_limit(profile, arguments, policy))
                .flatten(),
            dead_letter_exchange: exchange.map(Name::from),
            dead_letter_routing_key: key.map(Name::from),
            at_least_once,
            single_active: matches!(
                arguments.inner().get("x-single-active-consumer"),
                Some(AMQPValue::Boolean(true))
            ),
            consumer_timeout: millis("x-consumer-timeout"),
            delayed_retry: (quorum && profile.version >= Version::V4_3)
                .then(|| delayed_retry(arguments, policy))
                .flatten(),
        }
    }
}

/// Below zero is "no limit" since 4.0, and gives way to any other; 3.10 takes it at its word, and loses a message at its first
/// return.
fn delivery_limit(profile: &Profile, arguments: &FieldTable, policy: &Policy) -> Option<i64> {
    let argument = number(arguments, "x-delivery-limit");
    let gives_way = profile.version >= Version::V4_0;
    let limit = match (argument, policy.delivery_limit) {
        (Some(one), Some(other)) if gives_way && one.min(other) < 0 => Some(one.max(other)),
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other).or_else(|| profile.default_delivery_limit()),
    };
    limit.filter(|limit| *limit >= 0 || profile.version == Version::V3_10)
}

/// On a quorum queue a policy wins (90), and `reject-publish-dlx` means nothing there.
fn reject_publish(kind: QueueType, arguments: &FieldTable, policy: &Policy) -> bool {
    let argument = text(arguments, "x-overflow").map(|overflow| match kind {
        QueueType::Quorum => overflow == "reject-publish",
        QueueType::Classic => overflow.starts_with("reject-publish"),
    });
    let said = match kind {
        QueueType::Quorum => policy.reject_publish.or(argument),
        QueueType::Classic => argument.or(policy.reject_publish),
    };
    said.unwrap_or(false)
}

/// A policy wins for the type, and of two times the lower counts (93).
fn delayed_retry(arguments: &FieldTable, policy: &Policy) -> Option<DelayedRetry> {
    let time = |name: &str, policy: Option<Duration>| {
        let policy = policy.and_then(|time| i64::try_from(time.as_millis()).ok());
        match (number(arguments, name), policy) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    };
    let argument = || text(arguments, "x-delayed-retry-type");
    let kind = policy.delayed_retry_type.clone().or_else(argument)?;
    let least = time("x-delayed-retry-min", policy.delayed_retry_min).filter(|least| *least > 0)?;
    let most = time("x-delayed-retry-max", policy.delayed_retry_max).unwrap_or(least);
    let (failed, returned) = match kind.as_str() {
        "all" => (true, true),
        "failed" => (true, false),
        "returned" => (false, true),
        _ => return None,
    };
    Some(DelayedRetry {
        failed,
        returned,
        least: milliseconds(least),
        most: milliseconds(most),
    })
}

fn milliseconds(count: i64) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

/// An argument that is an integer of any width.
pub(crate) fn number(arguments: &FieldTable, name: &str) -> Option<i64> {
    match arguments.inner().get(name)? {
        AMQPValue::ShortShortInt(value) => Some(i64::from(*value)),
        AMQPValue::ShortShortUInt(value) => Some(i64::from(*value)),
        AMQPValue::ShortInt(value) => Some(i64::from(*value)),
        AMQPValue::ShortUInt(value) => Some(i64::from(*value)),
        AMQPValue::LongInt(value) => Some(i64::from(*value)),
        AMQPValue::LongUInt(value) => Some(i64::from(*value)),
        AMQPValue::LongLongInt(value) => Some(*value),
        _ => None,
    }
}

/// An argument that is text.
pub(crate) fn text(arguments: &FieldTable, name: &str) -> Option<String> {
    match arguments.inner().get(name)? {
        AMQPValue::LongString(value) => Some(String::from_utf8_lossy(value.as_bytes()).into()),
        AMQPValue::ShortString(value) => Some(value.as_str().to_owned()),
        _ => None,
    }
}
