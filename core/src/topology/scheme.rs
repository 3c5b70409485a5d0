//! What differs from strategy to strategy: the one trait behind them all.

use std::{collections::BTreeSet, fmt, time::Duration};

use super::{Item, Plan, QueueType, plan};
use crate::{
    Error, ErrorKind, Result,
    connection::Server,
    retry::{Counting, Rules, rung},
};

/// For whom a plan is made.
pub(crate) struct Target<'a> {
    pub(crate) queue: &'a str,
    pub(crate) rules: &'a Rules,
    pub(crate) queue_type: QueueType,
}

impl Target<'_> {
    /// Every delay that any of the policies can ask for.
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

    /// The queue of the detour, where no policy has one that serves.
    pub(super) fn detour(&self) -> Option<Item> {
        let delay = detour_delay(self.shortest());
        (!self.delays().contains(&delay)).then(|| plan::detour(self.queue, delay, self.queue_type))
    }

    /// The single delay of a strategy that has no more than one.
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

/// A message that is to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For a delay of the policy.
    Policy(Duration),
    /// For a delay that nobody knew beforehand: on the ladder.
    Ladder(Duration),
}

/// How a message that waits is sent on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Publish a copy, await the confirm, acknowledge the original.
    Copy {
        exchange: String,
        routing_key: String,
        /// The copy's own time to live in ms, where the queue's is longer.
        expiration: Option<u64>,
        /// The plugin's `x-delay` in ms.
        delay_header: Option<i64>,
        /// Whether the broker must say when no queue takes it.
        mandatory: bool,
    },
    /// `basic.nack` without requeue: the queue's dead-letter route is the way. Not `basic.reject`, which RabbitMQ 4.3
    /// counts into the delivery count that the message takes along.
    DeadLetter,
    /// `basic.reject` with requeue: the queue itself delays. Never `basic.nack`, which RabbitMQ 4.3 does not count.
    Requeue,
}

impl Route {
    /// Through the queue of one of the policy's delays.
    pub(super) fn policy(queue: &str, delay: Duration) -> Self {
        Self::Copy {
            exchange: String::new(),
            routing_key: plan::waiting_queue(queue, delay),
            expiration: None,
            delay_header: None,
            mandatory: true,
        }
    }

    /// Through the ladder: the next rung's queue, and the exact delay as the copy's own expiration.
    pub(super) fn ladder(queue: &str, delay: Duration) -> Self {
        let rung = rung(delay);
        Self::Copy {
            exchange: String::new(),
            routing_key: plan::waiting_queue(queue, rung),
            expiration: (rung != delay)
                .then(|| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
            delay_header: None,
            mandatory: true,
        }
    }
}

/// What differs from strategy to strategy.
pub(crate) trait Scheme: Send + Sync {
    /// Where the count of retries is kept on this broker.
    fn counting(&self, server: &Server) -> Counting;

    /// Refuses policies that this strategy cannot serve.
    fn check_rules(&self, target: &Target<'_>) -> Result<()>;

    /// Refuses brokers that cannot serve this strategy.
    fn check_server(&self, server: &Server, target: &Target<'_>) -> Result<()>;

    /// What must exist. Called after [`check_rules`](Self::check_rules).
    fn plan(&self, target: &Target<'_>) -> Plan;

    /// How a message of `queue` waits.
    fn route(&self, queue: &str, wait: Wait) -> Route;
}

pub(super) fn refused(strategy: &str, why: impl fmt::Display, instead: &str) -> Error {
    Error::new(
        ErrorKind::StrategyRefused,
        format!("the strategy {strategy} {why}; use {instead}"),
    )
}

/// Refuses to let messages wait in quorum queues that are none: a broker that takes the arguments and makes an ordinary queue
/// drops what returns while its work queue is gone, and nobody would know.
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
            "messages wait in quorum queues that dead-letter at least once, and {server} is not known to have them; connect with `queue_type` as `classic`, where what returns to a queue that is gone or full is dropped, or \
             use RabbitMQ 3.10 or later; if this is a proxy, connect to the broker behind it"
        ),
    ))
}

/// How long a message takes that may not run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detour {
    /// Through the shortest wait there is.
    Shortest,
    /// Through a longer one of the policy's, if there is one: every round costs a publish.
    Longer,
}

/// The way of a message whose queue does not count crashes, or that waits for a suspect: a copy through a short wait.
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

/// The policy's shortest delay, unless it is long: a message that nothing is wrong with should not wait for minutes.
pub(super) fn detour_delay(shortest: Option<Duration>) -> Duration {
    const LONGEST: Duration = Duration::from_secs(1);
    const RUNG: Duration = Duration::from_millis(100);
    shortest.filter(|delay| *delay <= LONGEST).unwrap_or(RUNG)
}
