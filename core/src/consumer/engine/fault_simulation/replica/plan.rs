//! The options of a replica's consumer, and the queues that it needs.

use retryrmq_model::{Declare, QueueType};

use super::super::{QUEUE, Setting};
use crate::{Argument, Arguments, Consumer, Item, Missing, Pause, Strategy};

pub(in super::super) fn consumer(setting: &Setting) -> Consumer {
    let consumer = Consumer::new(QUEUE)
        .dlx(!setting.plain)
        .strategy(setting.strategy)
        .prefetch(setting.prefetch)
        .concurrency(setting.concurrency);
    let consumer = match setting.prefetch_bytes {
        Some(bytes) => consumer.prefetch_bytes(bytes),
        None => consumer,
    };
    let consumer = match setting.pause {
        Some(pause) => consumer.pause(Pause::default().window(4).failures(0.3).pause(pause)),
        None => consumer,
    };
    match setting.strategy {
        Strategy::Service => consumer, // the service has the policy
        _ => consumer.retry(setting.policy()),
    }
}

/// The queues of a consumer's plan, and those of the delay steps that its handlers may use.
pub(in super::super) fn declarations(setting: &Setting) -> Vec<Declare> {
    let mut all = planned(setting);
    if setting.strategy != Strategy::RetryQueues {
        let copies = Setting {
            strategy: Strategy::RetryQueues,
            ..*setting
        };
        for declare in planned(&copies) {
            if !all.iter().any(|known| known.queue == declare.queue) && &*declare.queue != QUEUE {
                all.push(declare);
            }
        }
    }
    all
}

fn planned(setting: &Setting) -> Vec<Declare> {
    let options = consumer(setting);
    let queue_type = match setting.waiting {
        QueueType::Classic => crate::QueueType::Classic,
        QueueType::Quorum => crate::QueueType::Quorum,
    };
    let plan = options
        .strategy
        .plan(QUEUE, &options.rules, queue_type, None);
    let items = plan.expect("the strategy serves the policy").items;
    items
        .into_iter()
        .filter_map(|item| match item {
            // The service's own queue.
            Item::Queue {
                missing: Missing::Refused,
                ..
            } => None,
            Item::Queue {
                name, arguments, ..
            } => Some(declared(&name, arguments)),
            Item::Exchange { .. } | Item::Binding { .. } => None,
        })
        .collect()
}

/// The declaration of a durable queue.
pub(super) fn declared(name: &str, arguments: Arguments) -> Declare {
    let mut declare = Declare::passive(name);
    (declare.passive, declare.durable) = (false, true);
    arguments
        .into_iter()
        .fold(declare, |declare, (name, value)| match value {
            Argument::Text(text) => declare.with(&name, &text),
            Argument::Flag(_) => unreachable!("no queue of a plan has a flag"),
            Argument::Number(number) => declare.with_number(&name, number),
        })
}
