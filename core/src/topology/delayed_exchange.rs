//! `delayed-exchange`: a copy through an exchange of the delayed-message plugin, which holds it for `x-delay` ms.
//! The plugin was archived in January 2026 and cannot run on RabbitMQ 4.3 or later.

use std::time::Duration;

use super::{
    Item, Plan,
    plan::{self, named, text},
    scheme::{Route, Scheme, Target, Wait, detour_delay, refused},
};
use crate::{
    BasicProperties, Result,
    connection::Server,
    retry::{Counting, headers},
};

const NAME: &str = "delayed-exchange";

pub(super) struct DelayedExchange;

/// What was sent to the plugin for less long is gone when its broker is killed, although that has confirmed it (fact 59).
const YOUNG: Duration = Duration::from_secs(3);

/// How long after its confirm a copy that waits in the plugin is not safe; one that waits for less is in its queue by then.
pub(crate) fn hardens(copy: &BasicProperties) -> Duration {
    let delay = copy
        .headers()
        .as_ref()
        .and_then(|table| table.inner().get(headers::DELAY))
        .and_then(headers::integer)
        .and_then(|ms| u64::try_from(ms).ok());
    delay.map_or(YOUNG, |ms| YOUNG.min(Duration::from_millis(ms) + A_MOMENT))
}

/// From the end of a delay until the queue has the message.
const A_MOMENT: Duration = Duration::from_millis(200);

fn exchange(queue: &str) -> String {
    format!("{queue}.delayed")
}

impl Scheme for DelayedExchange {
    fn counting(&self, _: &Server) -> Counting {
        Counting::Header
    }

    fn check_rules(&self, _: &Target<'_>) -> Result<()> {
        Ok(())
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
        let queue = target.queue.to_owned();
        let detour = plan::detour(
            target.queue,
            detour_delay(target.shortest()),
            target.queue_type,
        );
        Plan {
            items: vec![
                plan::parking(target.queue, target.queue_type),
                plan::work(target.queue),
                Item::Exchange {
                    name: exchange(target.queue),
                    kind: "x-delayed-message",
                    arguments: named([("x-delayed-type", text("direct"))]),
                    purpose: "messages wait in here",
                },
                Item::Binding {
                    exchange: exchange(target.queue),
                    routing_key: queue.clone(),
                    queue,
                },
                detour,
            ],
        }
    }

    fn route(&self, queue: &str, wait: Wait) -> Route {
        let (Wait::Policy(delay) | Wait::Ladder(delay)) = wait;
        Route::Copy {
            exchange: exchange(queue),
            routing_key: queue.to_owned(),
            expiration: None,
            delay_header: Some(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)),
            // The plugin takes the message out of routing, so the broker would return every one of them.
            mandatory: false,
        }
    }
}
