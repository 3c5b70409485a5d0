//! The strategies, and the one trait behind them.

use std::{collections::BTreeSet, fmt, str::FromStr, time::Duration};

use super::{
    Plan, QueueType, dead_letter::DeadLetter, delayed_exchange::DelayedExchange, native::Native,
    plan, retry_queues::RetryQueues,
};
use crate::{
    Error, ErrorKind, Result,
    client::Server,
    retry::{Counting, Rules, rung},
};

/// How a failed message leaves the head of its queue and comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// A confirmed copy waits in a queue per delay; the original is acknowledged after the confirm. Works with every
    /// queue as it is, on every version.
    #[default]
    RetryQueues,
    /// The client rejects, the broker's dead-lettering does the rest: no publish by the client, one fixed delay. The
    /// work queue must have the dead-letter route.
    DeadLetter,
    /// The quorum queues' own delayed retry, RabbitMQ 4.3 and later: no further queues, linear delays, and the message
    /// comes back at the head.
    Native,
    /// A copy through an exchange of the delayed-message plugin, for brokers before 4.3 that have it.
    DelayedExchange,
}

impl Strategy {
    const ALL: [Self; 4] = [
        Self::RetryQueues,
        Self::DeadLetter,
        Self::Native,
        Self::DelayedExchange,
    ];

    /// The word for it in every language, flag and metric.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RetryQueues => "retry-queues",
            Self::DeadLetter => "dead-letter",
            Self::Native => "native",
            Self::DelayedExchange => "delayed-exchange",
        }
    }

    pub(crate) fn scheme(self) -> &'static dyn Scheme {
        match self {
            Self::RetryQueues => &RetryQueues,
            Self::DeadLetter => &DeadLetter,
            Self::Native => &Native,
            Self::DelayedExchange => &DelayedExchange,
        }
    }

    /// What a consumer of `queue` needs on the broker with this strategy: pure, nothing is asked or made.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`] when the policy asks for what the strategy cannot do, [`ErrorKind::InvalidPolicy`]
    /// and [`ErrorKind::TooLarge`] as their documentation says.
    pub fn plan(self, queue: &str, rules: &Rules, queue_type: QueueType) -> Result<Plan> {
        rules.validate()?;
        let target = Target {
            queue,
            rules,
            queue_type,
        };
        self.scheme().check_rules(&target)?;
        let plan = self.scheme().plan(&target);
        plan.validate()?;
        Ok(plan)
    }

    /// Whether `server` can serve this strategy safely: asked at subscribe, and before a plan is applied without one.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`], with the strategy to use instead.
    pub fn check(
        self,
        server: &Server,
        queue: &str,
        rules: &Rules,
        queue_type: QueueType,
    ) -> Result<()> {
        let target = Target {
            queue,
            rules,
            queue_type,
        };
        self.scheme().check_server(server, &target)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.as_str() == text).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOption,
                format!(
                    "`{}` is no strategy; it is retry-queues, dead-letter, native or delayed-exchange",
                    text.chars().take(40).collect::<String>()
                ),
            )
        })
    }
}

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

    /// The single delay of a strategy that has no more than one.
    pub(super) fn only_delay(&self, strategy: Strategy) -> Result<Duration> {
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

pub(super) fn refused(strategy: Strategy, why: impl fmt::Display, instead: &str) -> Error {
    Error::new(
        ErrorKind::StrategyRefused,
        format!("the strategy {strategy} {why}; use {instead}"),
    )
}

/// The way of a message whose queue does not count crashes: a copy through the shortest wait there is.
pub(crate) fn detour(queue: &str, shortest: Option<Duration>) -> Route {
    const SHORTEST: Duration = Duration::from_millis(100);
    match shortest {
        Some(delay) if delay <= Duration::from_secs(1) => {
            RetryQueues.route(queue, Wait::Policy(delay))
        }
        _ => Route::ladder(queue, SHORTEST),
    }
}
