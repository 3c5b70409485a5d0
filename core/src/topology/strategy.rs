//! The strategies by name.

use std::{fmt, str::FromStr};

use super::{
    Plan, QueueType, WorkQueue,
    dead_letter::DeadLetter,
    delayed_exchange::DelayedExchange,
    native::Native,
    retry_queues::RetryQueues,
    scheme::{Scheme, Target},
    service::Service,
};
use crate::{Error, ErrorKind, Result, connection::Server, retry::Rules};

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
    /// A confirmed copy with the failure goes to the service (`retryrmq serve`), and the original is acknowledged after the confirm:
    /// the service's policy decides when it comes back and when it is parked. The service must have been started once.
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

    /// Its name in every language, flag and metric.
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

    /// Whether what fails is handed over to a service, which decides what follows.
    pub(crate) const fn hands_over(self) -> bool {
        matches!(self, Self::Service)
    }

    pub(crate) fn scheme(self) -> &'static dyn Scheme {
        match self {
            Self::RetryQueues => &RetryQueues,
            Self::DeadLetter => &DeadLetter,
            Self::Native => &Native,
            Self::DelayedExchange => &DelayedExchange,
            Self::Service => &Service,
        }
    }

    /// What a consumer of `queue` needs on the broker with this strategy: pure, nothing is asked or made. `queue_type` is that of
    /// the queues in which messages wait and are parked; `work_queue` says what the queue itself is made with, if it was said.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`] when the policy or the work queue asks for what the strategy cannot do,
    /// [`ErrorKind::InvalidPolicy`], [`ErrorKind::InvalidOption`] and [`ErrorKind::TooLarge`] as their documentation says.
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
                    "`{}` is no strategy; it is retry-queues, dead-letter, native, delayed-exchange or service",
                    text.chars().take(40).collect::<String>()
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentence with which a broker is refused, if it is.
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
