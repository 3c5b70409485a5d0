//! The differences between strategies, as one trait.

use std::{collections::BTreeSet, fmt, time::Duration};

use super::{Item, Plan, QueueType, plan};
use crate::{
    Error, ErrorKind, Result,
    connection::Server,
    queue_names::waiting_queue,
    retry::{Counting, Rules, delay_step},
};

/// What a plan is made for.
pub(crate) struct Target<'a> {
    pub(crate) queue: &'a str,
    pub(crate) rules: &'a Rules,
    pub(crate) queue_type: QueueType,
}

impl Target<'_> {
    /// Every delay of all the policies.
    pub(super) fn delays(&self) -> BTreeSet<Duration> {
        self.rules
            .policies()
            .flat_map(|policy| policy.delays())
            .collect()
    }

    /// The shortest delay of the consumer's own policy.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.rules.otherwise.delays().first().copied()
    }

    /// The detour's queue, unless a policy already has one that serves.
    pub(super) fn detour(&self) -> Option<Item> {
        let delay = detour_delay(self.shortest());
        (!self.delays().contains(&delay)).then(|| plan::detour(self.queue, delay, self.queue_type))
    }

    /// The delay of a strategy that can have only one.
    pub(super) fn only_delay(&self, strategy: &str) -> Result<Duration> {
        let delays = self.delays();
        match delays.first() {
            Some(delay) if delays.len() == 1 => Ok(*delay),
            _ => Err(refused(
                strategy,
                format!(
                    "has one delay for all messages, and the policy asks for {}",
                    delays.len()
                ),
                "a policy such as fixed(5s) without rules, or the strategy retry-queues",
            )),
        }
    }
}

/// How long a message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For a delay of the policy.
    Policy(Duration),
    /// For a delay that was not known beforehand; in the queue of a delay step.
    DelayStep(Duration),
}

/// How a message is sent to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Publish a copy, wait for the confirm, acknowledge the original.
    Copy {
        exchange: String,
        routing_key: String,
        /// The copy's own time to live in ms, if the queue's is longer.
        expiration: Option<u64>,
        /// The plugin's `x-delay` in ms.
        delay_header: Option<i64>,
        /// Whether the broker must return the copy if no queue takes it.
        mandatory: bool,
    },
    /// `basic.nack` without requeue: the queue dead-letters the message. Not `basic.reject`, which RabbitMQ 4.3 adds to the delivery count
    /// that the message keeps.
    DeadLetter,
    /// `basic.reject` with requeue: the queue itself delays the message. Never `basic.nack`, which RabbitMQ 4.3 does not count.
    Requeue,
}

impl Route {
    /// Through the queue of one of the policy's delays.
    pub(super) fn policy(queue: &str, delay: Duration) -> Self {
        Self::Copy {
            exchange: String::new(),
            routing_key: waiting_queue(queue, delay),
            expiration: None,
            delay_header: None,
            mandatory: true,
        }
    }

    /// Through the queue of the next delay step, with the exact delay as the copy's own expiration.
    pub(crate) fn delay_steps(queue: &str, delay: Duration) -> Self {
        let step = delay_step(delay);
        Self::Copy {
            exchange: String::new(),
            routing_key: waiting_queue(queue, step),
            expiration: (step != delay)
                .then(|| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
            delay_header: None,
            mandatory: true,
        }
    }
}

/// The differences between strategies.
pub(crate) trait StrategyPlan: Send + Sync {
    /// Where the retries are counted on this broker.
    fn counting(&self, server: &Server) -> Counting;

    /// An error for policies that this strategy cannot serve.
    fn check_rules(&self, target: &Target<'_>) -> Result<()>;

    /// An error for brokers that cannot serve this strategy.
    fn check_server(&self, server: &Server, target: &Target<'_>) -> Result<()>;

    /// What must exist on the broker. Called after [`check_rules`](Self::check_rules).
    fn plan(&self, target: &Target<'_>) -> Plan;

    /// How a message of `queue` is sent to wait.
    fn route(&self, queue: &str, wait: Wait) -> Route;
}

pub(super) fn refused(strategy: &str, why: impl fmt::Display, instead: &str) -> Error {
    Error::new(
        ErrorKind::StrategyRefused,
        format!("the strategy {strategy} {why}; use {instead}"),
    )
}

/// An error if the broker has no real quorum queues. Such a broker accepts the arguments and creates an ordinary queue, which would
/// silently drop messages that return while their work queue is gone.
///
/// # Errors
/// [`ErrorKind::StrategyRefused`].
pub(crate) fn check_waiting(server: &Server, queue_type: QueueType) -> Result<()> {
    if queue_type == QueueType::Classic || server.capabilities().dead_letters_at_least_once {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::StrategyRefused,
        format!(
            "waiting messages need quorum queues with at-least-once dead-lettering, and {server} may not have them; use RabbitMQ 3.10 or later \
             (behind a proxy, connect to the broker itself), or connect with `queue_type` as `classic` (then messages that return to a full \
             or missing queue are dropped)"
        ),
    ))
}

/// How long a detour takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detour {
    /// The shortest wait.
    Shortest,
    /// A longer wait of the policy, if there is one: each round costs a publish.
    Longer,
}

/// The detour: a copy through a short wait. For a message whose queue does not count crashes, or that must wait until a suspect has run.
pub(crate) fn detour(queue: &str, delays: &BTreeSet<Duration>, how: Detour) -> Route {
    const LONGEST: Duration = Duration::from_secs(5);
    let shortest = detour_delay(delays.first().copied());
    let delay = match how {
        Detour::Shortest => shortest,
        Detour::Longer => delays
            .range(..=LONGEST)
            .next_back()
            .map_or(shortest, |longer| shortest.max(*longer)),
    };
    Route::policy(queue, delay)
}

/// The policy's shortest delay, unless that is long: nothing may be wrong with the message, so it should not wait for minutes.
pub(super) fn detour_delay(shortest: Option<Duration>) -> Duration {
    const LONGEST: Duration = Duration::from_secs(1);
    const WAITING_QUEUE: Duration = Duration::from_millis(100);
    shortest
        .filter(|delay| *delay <= LONGEST)
        .unwrap_or(WAITING_QUEUE)
}
