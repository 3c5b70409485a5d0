//! The strategies by name.

use std::{fmt, str::FromStr};

use super::{
    Plan, QueueType, WorkQueue,
    dead_letter::DeadLetter,
    delayed_exchange::DelayedExchange,
    native::Native,
    retry_queues::RetryQueues,
    service::Service,
    strategy_plan::{StrategyPlan, Target},
};
use crate::{Error, ErrorKind, Result, connection::Server, retry::Rules};

/// How a failed message leaves the head of its queue and comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// A confirmed copy waits in one queue per delay, and the original is acknowledged after the confirm. Works with every queue unchanged,
    /// on every supported version. The default.
    #[default]
    RetryQueues,
    /// The client rejects the message (AMQP `basic.nack` without requeue), and the broker dead-letters it into the waiting queue. A retry
    /// publishes nothing; parking and deferring still publish a copy. There is one fixed delay, and the work queue must have the
    /// dead-letter route.
    DeadLetter,
    /// The delayed retry of quorum queues, from RabbitMQ 4.3 on. It needs no waiting queues. Delays are linear, and a message returns to
    /// the head of its queue.
    Native,
    /// A copy waits in an exchange of the delayed-message plugin. For brokers before 4.3 that have the plugin.
    DelayedExchange,
    /// A confirmed copy, with its failure, goes to the service (`retryrmq serve`), and the original is acknowledged after the confirm. The
    /// service's policy decides when the message returns and when it is parked. The service must have been started once.
    Service,
}

impl Strategy {
    const ALL: [Self; 5] = [
        Self::RetryQueues,
        Self::DeadLetter,
        Self::Native,
        Self::DelayedExchange,
        Self::Service,
    ];

    /// The name that every language, flag and metric uses, such as `retry-queues`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RetryQueues => "retry-queues",
            Self::DeadLetter => "dead-letter",
            Self::Native => "native",
            Self::DelayedExchange => "delayed-exchange",
            Self::Service => "service",
        }
    }

    /// Whether failed messages are handed over to a service, which decides what follows.
    pub(crate) const fn hands_over(self) -> bool {
        matches!(self, Self::Service)
    }

    pub(crate) fn scheme(self) -> &'static dyn StrategyPlan {
        match self {
            Self::RetryQueues => &RetryQueues,
            Self::DeadLetter => &DeadLetter,
            Self::Native => &Native,
            Self::DelayedExchange => &DelayedExchange,
            Self::Service => &Service,
        }
    }

    /// What a consumer of `queue` needs on the broker with this strategy. Nothing is sent to the broker. `queue_type` is the type of the
    /// waiting and parking queues. `work_queue` says how the work queue is created; `None` is the default.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`] if the policy or the work queue needs something that the strategy cannot do.
    /// [`ErrorKind::InvalidPolicy`] for a policy that cannot work, [`ErrorKind::InvalidOption`] for arguments that cannot work, and
    /// [`ErrorKind::TooLarge`] for a name longer than 255 bytes.
    pub fn plan(
        self,
        queue: &str,
        rules: &Rules,
        queue_type: QueueType,
        work_queue: Option<&WorkQueue>,
    ) -> Result<Plan> {
        rules.validate()?;
        work_queue.map_or(Ok(()), WorkQueue::validate)?;
        let target = Target {
            queue,
            rules,
            queue_type,
        };
        self.scheme().check_rules(&target)?;
        let mut plan = self.scheme().plan(&target);
        if let Some(work_queue) = work_queue {
            work_queue.shape(&mut plan, self)?;
        }
        plan.validate()?;
        Ok(plan)
    }

    /// Checks that `server` can serve this strategy safely. It is called when a consumer subscribes. Call it before you apply a plan
    /// without a consumer.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`]. The error message names a strategy to use instead.
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
                    "`{}` is not a strategy; use retry-queues, dead-letter, native, delayed-exchange or service",
                    text.chars().take(40).collect::<String>()
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentence with which this broker is refused; `None` if it is not.
    fn refusal(
        strategy: Strategy,
        product: &str,
        version: &str,
        kind: QueueType,
    ) -> Option<String> {
        let rules = Rules {
            otherwise: "fixed(5s, retries=3)".parse().unwrap(),
            ..Rules::default()
        };
        let server = Server::for_tests(product, version);
        let refused = strategy.check(&server, "orders", &rules, kind).err()?;
        assert_eq!(refused.kind(), ErrorKind::StrategyRefused);
        Some(refused.to_string())
    }

    #[test]
    fn each_version_of_rabbitmq_serves_what_it_has() {
        use Strategy::{DeadLetter, DelayedExchange, Native, RetryQueues, Service};
        for (version, served) in [
            (
                "3.10.8",
                &[RetryQueues, DeadLetter, DelayedExchange, Service][..],
            ),
            (
                "4.0.5",
                &[RetryQueues, DeadLetter, DelayedExchange, Service],
            ),
            ("4.3.6", &[RetryQueues, DeadLetter, Native, Service]),
        ] {
            for strategy in Strategy::ALL {
                let refused = refusal(strategy, "RabbitMQ", version, QueueType::Quorum);
                assert_eq!(
                    refused.is_none(),
                    served.contains(&strategy),
                    "{version}: {refused:?}"
                );
            }
        }
    }

    #[test]
    fn other_brokers_serve_retry_queues_of_the_classic_type_alone() {
        for (product, version) in [("LavinMQ", "2.9.1"), ("AMQProxy", "4.3.0"), ("", "")] {
            for kind in [QueueType::Quorum, QueueType::Classic] {
                for strategy in Strategy::ALL {
                    let refused = refusal(strategy, product, version, kind);
                    let served = strategy == Strategy::RetryQueues && kind == QueueType::Classic;
                    assert_eq!(
                        refused.is_none(),
                        served,
                        "{product} {strategy}: {refused:?}"
                    );
                    let names_it = |why: &str| why.contains(product) && why.contains("use ");
                    assert!(refused.as_deref().is_none_or(names_it), "{refused:?}");
                }
            }
        }
    }

    #[test]
    fn what_waits_needs_rabbitmq_3_10_or_classic_queues() {
        let refused = refusal(
            Strategy::RetryQueues,
            "RabbitMQ",
            "3.9.29",
            QueueType::Quorum,
        );
        assert!(refused.unwrap().contains("`queue_type` as `classic`"));
        assert_eq!(
            refusal(
                Strategy::RetryQueues,
                "RabbitMQ",
                "3.9.29",
                QueueType::Classic
            ),
            None
        );
    }
}
