//! `native`: the delayed retry of RabbitMQ 4.3's quorum queues. A requeued message waits `min × delivery count`, at most `max`, and comes
//! back at the head.

use std::time::Duration;

use super::{
    Argument, Item, Missing, Plan, QueueType,
    plan::{self, at_least_once, named, text},
    strategy_plan::{Route, StrategyPlan, Target, Wait, refused},
};
use crate::{
    Result,
    connection::Server,
    queue_names::parking_queue,
    retry::{Backoff, Counting},
};

const NAME: &str = "native";

pub(super) struct Native;

/// The first and the longest delay in ms, if this strategy can serve the policy.
fn delays(target: &Target<'_>) -> Result<(i64, i64)> {
    let refuse = |why: &str| {
        Err(refused(
            NAME,
            why,
            "fixed(5s), linear(5s, step=5s), or the strategy retry-queues",
        ))
    };
    if !target.rules.rules.is_empty() {
        return refuse("has one policy for all messages and cannot follow rules");
    }
    let policy = &target.rules.otherwise;
    if policy.delays().len() > 1 && policy.delay(1, 0) != policy.delay(1, 2) {
        return refuse("cannot jitter");
    }
    let ms = |delay: std::time::Duration| i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    match policy.backoff() {
        Backoff::Fixed { delay } => Ok((ms(*delay), ms(*delay))),
        Backoff::Linear { initial, step, max } if initial == step => Ok((ms(*initial), ms(*max))),
        Backoff::Linear { .. } => refuse("is linear with a step equal to the first delay"),
        _ => refuse("delays linearly"),
    }
}

/// How long a work queue delays what a lost connection held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReturnDelays {
    min: Duration,
    max: Duration,
}

impl ReturnDelays {
    /// How long it delays a message that was lost so often.
    pub(crate) fn after(self, times: u32) -> Duration {
        self.min.saturating_mul(times.max(1)).min(self.max)
    }
}

impl Plan {
    /// Whether its work queue delays what a lost connection held.
    pub(crate) fn return_delays(&self) -> Option<ReturnDelays> {
        let arguments = self.items.iter().filter_map(|item| match item {
            Item::Queue { arguments, .. } => Some(arguments),
            _ => None,
        });
        let number = |key: &str| {
            let mut all = arguments.clone().flatten();
            all.find_map(|(name, value)| match value {
                Argument::Number(ms) if name == key => u64::try_from(*ms).ok(),
                _ => None,
            })
        };
        Some(ReturnDelays {
            min: Duration::from_millis(number("x-delayed-retry-min")?),
            max: Duration::from_millis(number("x-delayed-retry-max")?),
        })
    }
}

impl StrategyPlan for Native {
    fn counting(&self, _: &Server) -> Counting {
        Counting::Deliveries
    }

    fn check_rules(&self, target: &Target<'_>) -> Result<()> {
        if target.queue_type == QueueType::Classic {
            return Err(refused(
                NAME,
                "is a feature of quorum queues",
                "the strategy retry-queues",
            ));
        }
        delays(target).map(drop)
    }

    fn check_server(&self, server: &Server, _: &Target<'_>) -> Result<()> {
        if server.capabilities().delays_returns {
            return Ok(());
        }
        let why = format!(
            "needs RabbitMQ 4.3, and this is {server}, which would take the arguments and ignore them"
        );
        Err(refused(NAME, why, "the strategy retry-queues"))
    }

    fn plan(&self, target: &Target<'_>) -> Plan {
        let mut items = vec![plan::parking(target.queue, target.queue_type)];
        if let Ok((min, max)) = delays(target) {
            // We park at the last retry. The broker's own limit is higher, to leave room for crashes.
            let limit = i64::from(target.rules.otherwise.max_retries()) + 20;
            items.push(Item::Queue {
                name: target.queue.to_owned(),
                arguments: named([
                    ("x-queue-type", text("quorum")),
                    ("x-delayed-retry-type", text("failed")),
                    ("x-delayed-retry-min", Argument::Number(min)),
                    ("x-delayed-retry-max", Argument::Number(max)),
                    ("x-delivery-limit", Argument::Number(limit)),
                    ("x-dead-letter-exchange", text("")),
                    (
                        "x-dead-letter-routing-key",
                        text(parking_queue(target.queue)),
                    ),
                ])
                .into_iter()
                .chain(at_least_once())
                .collect(),
                any_arguments: false,
                missing: Missing::Made,
                purpose: "the work queue, delaying what is returned",
            });
        }
        Plan { items }
    }

    fn route(&self, queue: &str, wait: Wait) -> Route {
        match wait {
            Wait::Policy(_) => Route::Requeue,
            Wait::DelayStep(delay) => Route::delay_steps(queue, delay),
        }
    }
}
