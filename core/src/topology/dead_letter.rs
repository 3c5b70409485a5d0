//! `dead-letter`: reject → dead-letter route → waiting queue → back. The broker does everything; the count is in `x-death`.

use super::{
    Item, Missing, Plan, QueueType,
    plan::{self, at_least_once, named, text},
    strategy_plan::{Route, StrategyPlan, Target, Wait, check_waiting, refused},
};
use crate::{
    Result,
    connection::Server,
    queue_names::{waiting_queue, waits_for},
    retry::Counting,
};

const NAME: &str = "dead-letter";

pub(super) struct DeadLetter;

/// In RabbitMQ 4.x, dead-letter rounds add to the delivery count of quorum queues, which has a limit of 20. If other consumers reject
/// messages of the same queue, their rounds count too. Five are left for crashes.
const MOST_RETRIES: u32 = 15;

/// The waiting queue to which the work queue of this plan dead-letters, if the broker itself moves what is rejected.
pub(crate) fn dead_lettered_to(plan: &Plan) -> Option<String> {
    let work = plan.items.iter().find(|item| item.is_work_queue())?;
    let to = work.text_argument("x-dead-letter-routing-key")?;
    waits_for(work.name(), to).map(|_| to.to_owned())
}

impl StrategyPlan for DeadLetter {
    fn counting(&self, server: &Server) -> Counting {
        Counting::Deaths {
            carried: server.capabilities().counts_hold_rounds,
            looks_redelivered: server.capabilities().loops_look_redelivered,
            continues_foreign: server.capabilities().continues_foreign_deaths,
        }
    }

    fn check_rules(&self, target: &Target<'_>) -> Result<()> {
        target.only_delay(NAME).map(drop)
    }

    fn check_server(&self, server: &Server, target: &Target<'_>) -> Result<()> {
        let retries = target
            .rules
            .policies()
            .map(|policy| policy.max_retries())
            .max()
            .unwrap_or(0);
        let capabilities = server.capabilities();
        if !capabilities.dead_letters_safely {
            return Err(refused(
                NAME,
                format!(
                    "leaves a failed message to the broker's dead-lettering, and that of {server} is not known to keep it"
                ),
                "the strategy retry-queues",
            ));
        }
        check_waiting(server, target.queue_type)?;
        if let Some(limit) = capabilities.delivery_limit
            && retries > MOST_RETRIES
        {
            return Err(refused(
                NAME,
                format!(
                    "cannot hold {retries} retries on {server}: quorum queues there count every round against their delivery limit of {limit}"
                ),
                "at most 15 retries, or the strategy retry-queues",
            ));
        }
        Ok(())
    }

    fn plan(&self, target: &Target<'_>) -> Plan {
        let mut items = vec![plan::parking(target.queue, target.queue_type)];
        if let Ok(delay) = target.only_delay(NAME) {
            items.push(plan::waiting(target.queue, delay, target.queue_type));
            items.push(Item::Queue {
                name: target.queue.to_owned(),
                arguments: named([
                    ("x-queue-type", text(target.queue_type.as_str())),
                    ("x-dead-letter-exchange", text("")),
                    (
                        "x-dead-letter-routing-key",
                        text(waiting_queue(target.queue, delay)),
                    ),
                ])
                .into_iter()
                // A rejected message has no confirmed copy, so its queue must not lose it on the way.
                .chain(match target.queue_type {
                    QueueType::Quorum => at_least_once(),
                    QueueType::Classic => Vec::new(),
                })
                .collect(),
                any_arguments: false,
                missing: Missing::Made,
                purpose: "the work queue, dead-lettering to where messages wait",
            });
            items.extend(target.detour());
        }
        Plan { items }
    }

    fn route(&self, queue: &str, wait: Wait) -> Route {
        match wait {
            Wait::Policy(_) => Route::DeadLetter,
            Wait::DelayStep(delay) => Route::delay_steps(queue, delay),
        }
    }
}
