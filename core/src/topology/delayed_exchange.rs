//! `delayed-exchange`: a copy goes through an exchange of the delayed-message plugin, which keeps it for `x-delay` ms. The plugin was
//! archived in January 2026 and cannot run on RabbitMQ 4.3 or later.

use std::time::Duration;

use super::{
    Item, Plan,
    plan::{self, named, text},
    strategy_plan::{Route, StrategyPlan, Target, Wait, detour_delay, refused},
};
use crate::{
    BasicProperties, Result,
    connection::Server,
    retry::{Counting, format_duration, headers},
};

const NAME: &str = "delayed-exchange";

pub(super) struct DelayedExchange;

/// The plugin treats a longer delay as none, and delivers the message at once (fact 68).
const LONGEST: Duration = Duration::from_millis(u32::MAX as u64);

/// A younger message in the plugin may be lost when its broker is killed, although it was confirmed (fact 59). That takes two seconds, and
/// more on a busy machine.
const YOUNG: Duration = Duration::from_secs(5);

/// How long after its confirm a copy in the plugin is not safe. A copy with a shorter delay is in its queue by then.
pub(crate) fn hardens(copy: &BasicProperties) -> Duration {
    let delay = copy
        .headers()
        .as_ref()
        .and_then(|table| table.inner().get(headers::DELAY))
        .and_then(headers::integer)
        .and_then(|ms| u64::try_from(ms).ok());
    delay.map_or(YOUNG, |ms| YOUNG.min(Duration::from_millis(ms) + A_MOMENT))
}

/// The time from the end of a delay until the queue has the message.
const A_MOMENT: Duration = Duration::from_secs(1);

pub(super) fn exchange(queue: &str) -> String {
    format!("{queue}.delayed")
}

/// The exchange of a work queue, and the binding without which the plugin would drop what has waited.
pub(super) fn exchange_and_binding(queue: &str) -> [Item; 2] {
    [
        Item::Exchange {
            name: exchange(queue),
            kind: "x-delayed-message",
            internal: false,
            arguments: named([("x-delayed-type", text("direct"))]),
            purpose: "messages wait in here",
        },
        Item::Binding {
            exchange: exchange(queue),
            routing_key: queue.to_owned(),
            queue: queue.to_owned(),
        },
    ]
}

impl StrategyPlan for DelayedExchange {
    fn counting(&self, _: &Server) -> Counting {
        Counting::Header
    }

    fn check_rules(&self, target: &Target<'_>) -> Result<()> {
        match target.delays().last() {
            Some(longest) if *longest > LONGEST => Err(refused(
                NAME,
                format_args!(
                    "delays for at most 4294967295ms (49.7 days), and the policy asks for {}",
                    format_duration(*longest)
                ),
                "shorter delays, or the strategy retry-queues",
            )),
            _ => Ok(()),
        }
    }

    fn check_server(&self, server: &Server, _: &Target<'_>) -> Result<()> {
        if !server.capabilities().runs_delayed_exchange {
            let why = if server.is_rabbitmq() {
                format!("needs the delayed-message plugin, which cannot run on {server}")
            } else {
                format!(
                    "needs RabbitMQ's delayed-message plugin, and how {server} keeps what is delayed is not known"
                )
            };
            return Err(refused(NAME, why, "the strategy retry-queues"));
        }
        Ok(())
    }

    fn plan(&self, target: &Target<'_>) -> Plan {
        let [exchange, binding] = exchange_and_binding(target.queue);
        let detour = plan::detour(
            target.queue,
            detour_delay(target.shortest()),
            target.queue_type,
        );
        Plan {
            items: vec![
                plan::parking(target.queue, target.queue_type),
                plan::work(target.queue),
                exchange,
                binding,
                detour,
            ],
        }
    }

    fn route(&self, queue: &str, wait: Wait) -> Route {
        let (Wait::Policy(delay) | Wait::DelayStep(delay)) = wait;
        Route::Copy {
            exchange: exchange(queue),
            routing_key: queue.to_owned(),
            expiration: None,
            // A delay chosen by a handler may be longer.
            delay_header: Some(
                i64::try_from(delay.min(LONGEST).as_millis()).unwrap_or(i64::from(u32::MAX)),
            ),
            // The plugin removes the message from routing, so the broker would return every one.
            mandatory: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, MILLISECOND, QueueType, Strategy, retry::Rules};

    fn delay_of(wait: Wait) -> Option<i64> {
        match DelayedExchange.route("orders", wait) {
            Route::Copy { delay_header, .. } => delay_header,
            other => unreachable!("{other:?} is no copy"),
        }
    }

    #[test]
    fn each_copy_has_its_delay_and_none_a_longer_one_than_the_plugin_takes() {
        for (delay, sent) in [
            (MILLISECOND, 1),
            (Duration::from_millis(1_234), 1_234),
            (LONGEST, 4_294_967_295),
            (LONGEST + MILLISECOND, 4_294_967_295),
            (crate::MAX_DELAY, 4_294_967_295),
        ] {
            for wait in [Wait::Policy(delay), Wait::DelayStep(delay)] {
                assert_eq!(delay_of(wait), Some(sent), "{wait:?}");
            }
        }
    }

    #[test]
    fn policies_with_longer_delays_are_refused() {
        let plan = |text: &str| {
            let rules = Rules {
                otherwise: text.parse().unwrap(),
                ..Rules::default()
            };
            Strategy::DelayedExchange.plan("orders", &rules, QueueType::Quorum, None)
        };
        for text in [
            "fixed(60d, retries=3)",
            "list(1s, 4294967296ms)",
            "fixed(60d, jitter=0.5)",
        ] {
            let error = plan(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StrategyRefused, "{text}");
            let why = error.to_string();
            assert!(
                why.contains("49.7 days") && why.contains("retry-queues"),
                "{why}"
            );
        }
        for text in ["fixed(4294967295ms)", "fixed(49d)", "list(1s, 30d)"] {
            plan(text).unwrap();
        }
    }
}
