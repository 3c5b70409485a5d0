//! How a missing work queue is created, or that it never is.

use std::{borrow::Cow, str::FromStr};

use serde_json::Value;

use super::{
    Argument, Item, Missing, Plan, QueueType, Strategy, conflicting_arguments,
    plan::{self, Arguments, name, text},
    strategy_plan::refused,
};
use crate::{Error, ErrorKind, Result};

/// What a consumer with `dlx` does if its work queue does not exist. An existing queue is used as it is, whatever is
/// said here. Only [`Strategy::DeadLetter`] and [`Strategy::Native`] need arguments on it: they refuse a queue that lacks these or the ones
/// given here ([`ErrorKind::Mismatch`]).
///
/// Everyone who declares the queue must use the same arguments. AMQP `queue.declare` with other arguments is refused with 406,
/// `PRECONDITION_FAILED - inequivalent arg`. So give here what your publishers declare, or [`Existing`](Self::Existing).
///
/// By default the queue is created durable and of type quorum. Messages that RabbitMQ itself gives up on go to the parking queue, or with
/// [`Strategy::Service`] to the service.
///
/// If a queue that existed before its consumer is deleted later, it is not created again by default, because only its owner knows what was
/// bound to it. With [`Type`](Self::Type) or [`Arguments`](Self::Arguments) it is created again, without those bindings.
/// ```
/// # use retryrmq::{Argument, Consumer, WorkQueue};
/// // As a publisher declares it: `x-max-priority=10`, and nothing else.
/// let orders = Consumer::new("orders")
///     .dlx(true)
///     .work_queue(WorkQueue::Arguments(vec![("x-max-priority".into(), Argument::Number(10))]));
/// // The same, as every language and the command write it.
/// let same = Consumer::new("orders").dlx(true).work_queue(r#"{"x-max-priority": 10}"#.parse()?);
/// # Ok::<(), retryrmq::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkQueue {
    /// Create it durable and of this type. Messages that RabbitMQ itself gives up on (delivery limit, expiry, rejection by other consumers)
    /// go to the parking queue. Text form: `quorum` or `classic`.
    Type(QueueType),
    /// Create it durable, with exactly these arguments plus those that the strategy needs. Without `x-queue-type` it has the default
    /// type of the virtual host. If that is `stream`, nothing is created ([`ErrorKind::Mismatch`]). Text form: a JSON object, `{}` for no arguments.
    Arguments(Vec<(String, Argument)>),
    /// Never create it. Until somebody else declares it, subscribing returns [`ErrorKind::QueueNotFound`]. Text form: `existing`.
    Existing,
}

impl WorkQueue {
    /// Changes the work queue of `plan` accordingly.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`] for arguments that the strategy cannot work with, [`ErrorKind::InvalidOption`] for a stream.
    pub(super) fn shape(&self, plan: &mut Plan, strategy: Strategy) -> Result<()> {
        if *self == Self::Existing {
            // It comes first: nothing is created for a queue that does not exist.
            plan.items.sort_by_key(|item| !item.is_work_queue());
        }
        for item in &mut plan.items {
            let is_work_queue = item.is_work_queue();
            let Item::Queue {
                arguments,
                any_arguments,
                missing,
                ..
            } = item
            else {
                continue;
            };
            if !is_work_queue {
                continue;
            }
            *missing = Missing::Remade;
            match self {
                Self::Existing => {
                    *missing = Missing::Refused;
                    if *any_arguments {
                        arguments.clear();
                    }
                }
                Self::Type(queue_type) => of_type(arguments, *queue_type, strategy)?,
                Self::Arguments(wanted) if *any_arguments => {
                    if strategy == Strategy::DelayedExchange {
                        refuse_what_refuses(wanted)?;
                    }
                    *arguments = wanted
                        .iter()
                        .map(|(name, value)| (Cow::Owned(name.clone()), value.clone()))
                        .collect();
                }
                Self::Arguments(wanted) => add(arguments, wanted, strategy)?,
            }
        }
        Ok(())
    }

    /// Checks what can be checked without a plan.
    pub(super) fn validate(&self) -> Result<()> {
        let Self::Arguments(wanted) = self else {
            return Ok(());
        };
        for (argument, value) in wanted {
            name(argument)?;
            if argument == TYPE && *value == text("stream") {
                return Err(bad(
                    "a stream cannot be a work queue: acknowledged messages stay in it, and requeued ones reach every reader; use \
                     quorum or classic"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }
}

const TYPE: &str = "x-queue-type";

fn of_type(arguments: &mut Arguments, wanted: QueueType, strategy: Strategy) -> Result<()> {
    if strategy == Strategy::Native && wanted == QueueType::Classic {
        return Err(refused(
            strategy.as_str(),
            "is a feature of quorum queues, and `work_queue` is classic",
            "the strategy retry-queues",
        ));
    }
    let of_quorum = plan::at_least_once();
    arguments.retain(|(name, _)| name != TYPE && of_quorum.iter().all(|(other, _)| other != name));
    arguments.insert(0, (TYPE.into(), text(wanted.as_str())));
    if wanted == QueueType::Quorum {
        arguments.extend(of_quorum);
    }
    Ok(())
}

/// The delayed-message plugin waits for no confirm, so a message that a full classic queue rejects after its delay is lost (fact 69).
fn refuse_what_refuses(wanted: &[(String, Argument)]) -> Result<()> {
    let said = |name: &str| wanted.iter().find(|(other, _)| other == name);
    let is_quorum = said(TYPE).is_some_and(|(_, value)| *value == text("quorum"));
    let refuses = said("x-overflow").is_some_and(
        |(_, value)| matches!(value, Argument::Text(how) if how.starts_with("reject-publish")),
    );
    let is_bounded = said("x-max-length")
        .or(said("x-max-length-bytes"))
        .is_some();
    if is_quorum || !refuses || !is_bounded {
        return Ok(());
    }
    Err(refused(
        Strategy::DelayedExchange.as_str(),
        "loses what comes back to a full classic queue with x-overflow=\"reject-publish\", which `work_queue` says",
        "x-queue-type=\"quorum\" for the work queue, or the strategy retry-queues",
    ))
}

/// Adds the `wanted` arguments to those that the strategy needs.
fn add(arguments: &mut Arguments, wanted: &[(String, Argument)], strategy: Strategy) -> Result<()> {
    for (name, value) in wanted {
        match arguments.iter().find(|(needed, _)| needed == name) {
            Some((_, needed)) if needed == value => {}
            Some((_, needed)) => {
                return Err(refused(
                    strategy.as_str(),
                    format_args!(
                        "needs {name}={needed} of its work queue, and `work_queue` says {value}"
                    ),
                    "that value, or the strategy retry-queues",
                ));
            }
            None if conflicting_arguments::is_harmless(name) => {
                arguments.push((Cow::Owned(name.clone()), value.clone()));
            }
            None => {
                return Err(refused(
                    strategy.as_str(),
                    format_args!(
                        "cannot work with {name} on its work queue, which `work_queue` says"
                    ),
                    "the strategy retry-queues, which takes every work queue as it is",
                ));
            }
        }
    }
    Ok(())
}

fn bad(why: String) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("`work_queue`: {why}"))
}

impl FromStr for WorkQueue {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::InvalidOption`] for any other text. The error message says what to write instead.
    fn from_str(said: &str) -> Result<Self> {
        let said = said.trim();
        if said == "existing" {
            return Ok(Self::Existing);
        }
        if let Ok(queue_type) = said.parse() {
            return Ok(Self::Type(queue_type));
        }
        let head: String = said.chars().take(40).collect();
        if !said.starts_with('{') {
            return Err(bad(format!(
                "`{head}` is none of quorum, classic, existing, and no JSON object of arguments such as {{\"x-max-priority\": 10}}"
            )));
        }
        let Value::Object(object) = serde_json::from_str(said)
            .map_err(|why| bad(format!("`{head}` is not a JSON object: {why}")).with_source(why))?
        else {
            return Err(bad(format!("`{head}` is not a JSON object")));
        };
        let arguments = object
            .into_iter()
            .map(|(name, value)| {
                let value = match &value {
                    Value::String(text) => Some(Argument::Text(text.clone())),
                    Value::Bool(flag) => Some(Argument::Flag(*flag)),
                    Value::Number(number) => number.as_i64().map(Argument::Number),
                    _ => None,
                };
                value.map(|value| (name.clone(), value)).ok_or_else(|| {
                    bad(format!(
                        "the argument `{}` must be a string, a whole number, true or false",
                        name.chars().take(40).collect::<String>()
                    ))
                })
            })
            .collect::<Result<_>>()?;
        let read = Self::Arguments(arguments);
        read.validate()?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::{Backoff, Rules};

    fn work_item(strategy: Strategy, rules: &Rules, said: &str) -> Result<Item> {
        let said = said.parse()?;
        let plan = strategy.plan("orders", rules, QueueType::Quorum, Some(&said))?;
        Ok(plan.items.into_iter().find(Item::is_work_queue).unwrap())
    }

    fn shown(strategy: Strategy, said: &str) -> String {
        let rules = Rules {
            otherwise: Backoff::fixed(crate::SECOND),
            ..Rules::default()
        };
        match work_item(strategy, &rules, said) {
            Ok(item) => item.to_string(),
            Err(error) => format!("{:?}: {error}", error.kind()),
        }
    }

    #[test]
    fn a_type_keeps_what_the_broker_gives_up_on() {
        assert_eq!(
            shown(Strategy::RetryQueues, "classic"),
            "queue orders (x-queue-type=\"classic\", x-dead-letter-exchange=\"\", x-dead-letter-routing-key=\"orders.parked\")"
        );
        assert_eq!(
            shown(Strategy::RetryQueues, "quorum"),
            "queue orders (x-queue-type=\"quorum\", x-dead-letter-exchange=\"\", x-dead-letter-routing-key=\"orders.parked\", \
             x-dead-letter-strategy=\"at-least-once\", x-overflow=\"reject-publish\")"
        );
        assert_eq!(
            shown(Strategy::DeadLetter, "classic"),
            "queue orders (x-queue-type=\"classic\", x-dead-letter-exchange=\"\", x-dead-letter-routing-key=\"orders.retry.1000\")"
        );
    }

    #[test]
    fn arguments_are_exactly_those() {
        assert_eq!(shown(Strategy::RetryQueues, "{}"), "queue orders ()");
        assert_eq!(
            shown(
                Strategy::RetryQueues,
                r#"{"x-single-active-consumer": true, "x-max-length": 5, "x-queue-mode": "lazy"}"#
            ),
            "queue orders (x-max-length=5, x-queue-mode=\"lazy\", x-single-active-consumer=true)"
        );
    }

    #[test]
    fn a_strategy_that_needs_arguments_keeps_them() {
        for strategy in [Strategy::DeadLetter, Strategy::Native] {
            let plain = shown(strategy, "{}");
            assert!(plain.contains("x-dead-letter-routing-key"), "{plain}");
            let more = shown(strategy, r#"{"x-consumer-timeout": 60000}"#);
            assert!(more.contains("x-consumer-timeout=60000"), "{more}");
            let ttl = shown(strategy, r#"{"x-message-ttl": 60000}"#);
            assert!(
                ttl.contains("StrategyRefused") && ttl.contains("x-message-ttl"),
                "{ttl}"
            );
            let other = shown(strategy, r#"{"x-dead-letter-exchange": "mine"}"#);
            assert!(
                other.contains("StrategyRefused") && other.contains("\"mine\""),
                "{other}"
            );
        }
        assert!(shown(Strategy::Native, "classic").contains("StrategyRefused"));
        assert!(
            shown(Strategy::Native, "quorum").contains("x-delayed-retry"),
            "its delays stay"
        );
    }

    #[test]
    fn a_delayed_exchange_takes_no_classic_queue_that_refuses_when_it_is_full() {
        let refused = |said: &str| {
            let shown = shown(Strategy::DelayedExchange, said);
            shown.contains("StrategyRefused") && shown.contains("quorum")
        };
        for said in [
            r#"{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"}"#,
            r#"{"x-max-length-bytes": 1, "x-overflow": "reject-publish-dlx"}"#,
        ] {
            assert!(refused(said), "{said}");
            assert!(!shown(Strategy::RetryQueues, said).contains("StrategyRefused"));
        }
        for said in [
            "classic",
            r#"{"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}"#,
            r#"{"x-queue-type": "classic", "x-overflow": "reject-publish"}"#,
            r#"{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "drop-head"}"#,
        ] {
            assert!(!refused(said), "{said}");
        }
    }

    #[test]
    fn bad_ones_are_named() {
        for (said, named) in [
            ("", "quorum, classic, existing"),
            ("stream", "quorum, classic, existing"),
            ("{", "not a JSON object"),
            ("{\"a\": null}", "`a` must be"),
            ("{\"a\": 1.5}", "`a` must be"),
            ("{\"a\": [1]}", "`a` must be"),
            ("{\"a\": 18446744073709551615}", "`a` must be"),
            ("{\"x-queue-type\": \"stream\"}", "a stream cannot be"),
        ] {
            let error = said.parse::<WorkQueue>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{said}");
            assert!(error.to_string().contains(named), "{said}: {error}");
        }
        let long = format!("{{\"{}\": 1}}", "a".repeat(256));
        assert_eq!(
            long.parse::<WorkQueue>().unwrap_err().kind(),
            ErrorKind::TooLarge
        );
    }

    #[test]
    fn only_one_that_is_said_to_exist_is_never_made() {
        let rules = Rules::default();
        for (said, expected) in [
            ("existing", Missing::Refused),
            ("quorum", Missing::Remade),
            ("{}", Missing::Remade),
        ] {
            let Item::Queue { missing, .. } =
                work_item(Strategy::RetryQueues, &rules, said).unwrap()
            else {
                unreachable!("a work queue is a queue")
            };
            assert_eq!(missing, expected, "{said}");
        }
    }
}
