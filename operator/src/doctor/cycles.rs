//! Messages that go round, and the broker that drops them in silence.

use std::collections::BTreeSet;

use super::{
    Code, Finding, QueueRole, Snapshot,
    policies::PolicySource,
    routes::{Route, graveyards, is_work_queue, route},
};
use crate::management::{Queue, QueueKind};

fn targets<'a>(all: &'a Snapshot, queue: &'a Queue) -> BTreeSet<&'a str> {
    match route(all, queue) {
        Route::To(queues) => queues,
        _ => BTreeSet::new(),
    }
}

fn has_time(all: &Snapshot, queue: &Queue) -> bool {
    all.number(queue, "message-ttl").is_some()
}

/// RQ104.
pub(super) fn by_time_alone(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all.queues.values().filter(|queue| has_time(all, queue)) {
        // Once for each circle: at its first queue by name.
        let (mut seen, mut next) = (BTreeSet::new(), targets(all, queue));
        let mut is_closed = false;
        while let Some(name) = next.pop_first() {
            is_closed |= name == queue.name;
            let Some(on) = all.queues.get(name).filter(|on| has_time(all, on)) else {
                continue;
            };
            if name > queue.name.as_str() && seen.insert(name) {
                next.extend(targets(all, on));
            }
        }
        if is_closed {
            let others: Vec<_> = seen.iter().map(|name| format!("`{name}`")).collect();
            let way = match others.as_slice() {
                [] => "itself".to_owned(),
                others => others.join(", "),
            };
            let mut finding = Finding::of_queue(
                Code::TtlCycle,
                &queue.name,
                format!(
                    "messages go from `{}` through {way} and back by their time to live alone: RabbitMQ drops them silently when they come back",
                    queue.name
                ),
                take_the_time_off(all, queue, &seen),
            );
            finding
                .queues
                .extend(seen.iter().map(|name| (*name).to_owned()));
            found.push(finding);
        }
    }
    found
}

/// How to break the circle: at the queue that is worked on, if that can be told.
fn take_the_time_off(all: &Snapshot, first: &Queue, others: &BTreeSet<&str>) -> String {
    let is_consumed = |queue: &&Queue| {
        let consumers = all.consumers.as_ref();
        consumers.is_some_and(|consumers| consumers.contains_key(&queue.name))
    };
    let others = others.iter().filter_map(|name| all.queues.get(*name));
    let worked_on = [first].into_iter().chain(others).find(is_consumed);
    let vhost = all.in_vhost();
    if let Some(worked_on) = worked_on {
        let by_hand = format!(
            "rabbitmqctl list_queues {vhost} name messages arguments   # x-message-ttl is an argument: make the queue that is worked on anew without it, when it is empty"
        );
        return all.mend(worked_on, &["message-ttl"], &[], by_hand);
    }
    match all.source(first, "message-ttl") {
        Some(PolicySource::Argument) | None => format!(
            "rabbitmqctl list_queues {vhost} name messages arguments   # make the one that is worked on anew without x-message-ttl, when it is empty"
        ),
        Some(PolicySource::Policy) => format!(
            "rabbitmqctl list_policies {vhost}   # take `message-ttl` off the policy of the one that is worked on"
        ),
        Some(PolicySource::Operator) => format!(
            "rabbitmqctl list_operator_policies {vhost}   # take `message-ttl` off the one that is in force where work is done"
        ),
    }
}

/// Whether messages wait in it for times of their own.
pub(super) fn waits_by_message(all: &Snapshot, queue: &Queue, graveyards: &BTreeSet<&str>) -> bool {
    let consumed = match &all.consumers {
        Some(consumers) => consumers.contains_key(&queue.name),
        None => queue.totals.unacknowledged != Some(0),
    };
    if consumed || !is_work_queue(all, queue) || has_time(all, queue) {
        return false;
    }
    let targets = targets(all, queue);
    let name = queue.name.to_lowercase();
    let is_named_so = ["retry", "delay", "wait", "backoff"]
        .iter()
        .any(|word| name.contains(word));
    // Of two queues that pass messages to each other, the one that is worked on has a consumer.
    let comes_back = targets.iter().any(|target| {
        let is_worked_on = match &all.consumers {
            Some(consumers) => consumers.contains_key(*target),
            None => false,
        };
        let target = all.queues.get(*target);
        (is_named_so || is_worked_on)
            && target.is_some_and(|target| {
                target.name != queue.name && route(all, target).reaches(&queue.name)
            })
    });
    let ends = |target: &&str| {
        graveyards.contains(target) || matches!(all.role(target), Some(QueueRole::Parking(_)))
    };
    comes_back || (is_named_so && !targets.is_empty() && !targets.iter().any(ends))
}

/// RQ106.
pub(super) fn head_of_line(all: &Snapshot) -> Vec<Finding> {
    let graveyards = graveyards(all);
    all.queues
        .values()
        .filter(|queue| waits_by_message(all, queue, &graveyards))
        .map(|queue| {
            Finding::of_queue(
                Code::HeadOfLine,
                &queue.name,
                format!(
                    "`{}` has no time to live of its own, so messages wait in it for times of their own: RabbitMQ looks at the first alone, and a long wait \
                     holds up all shorter ones behind it",
                    queue.name
                ),
                format!(
                    "rabbitmqctl list_queues {} name messages   # let `retryrmq topology` make a queue for each delay, publish to those, and delete this one \
                     when it is empty",
                    all.in_vhost()
                ),
            )
        })
        .collect()
}

/// RQ118.
pub(super) fn limit_in_a_loop(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all
        .queues
        .values()
        // Where it has a time to live as well, nothing comes back at all: RQ104.
        .filter(|queue| is_work_queue(all, queue) && !has_time(all, queue))
    {
        let limit = all.delivery_limit(queue).filter(|limit| *limit < 1_000_000);
        let pushes_out = ["max-length", "max-length-bytes"]
            .iter()
            .any(|name| all.number(queue, name).is_some())
            && !all
                .text(queue, "overflow")
                .is_some_and(|overflow| overflow.starts_with("reject-publish"));
        if limit.is_none() && !pushes_out {
            continue;
        }
        let wait = targets(all, queue).into_iter().find(|target| {
            // Consumers of ours count for themselves, and stay below.
            all.role(target) != Some(QueueRole::Waiting(&queue.name))
                && *target != queue.name
                && all.queues.get(*target).is_some_and(|wait| {
                    has_time(all, wait) && route(all, wait).reaches(&queue.name)
                })
        });
        let Some(wait) = wait else { continue };
        let (mut why, mut keys, mut set) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(limit) = limit {
            why.push(format!("what passes its delivery limit of {limit}"));
            keys.push("delivery-limit");
            set.push(("delivery-limit", 1_000_000_000.into()));
        }
        if pushes_out {
            why.push("what its length limit pushes out".to_owned());
            keys.push("overflow");
            set.push(("overflow", "reject-publish".into()));
        }
        let by_hand = format!(
            "rabbitmqctl list_queues {} name arguments policy   # let its dead letters go to its parking queue, not into the loop",
            all.in_vhost()
        );
        // A full classic queue that refuses what is published drops what comes back to it from its waiting queue.
        let fix = if pushes_out && queue.kind == QueueKind::Classic {
            by_hand
        } else {
            all.mend(queue, &keys, &set, by_hand)
        };
        let mut finding = Finding::of_queue(
            Code::LimitInLoop,
            &queue.name,
            format!(
                "{} of `{}` waits in `{wait}` and is dropped when it comes back: RabbitMQ takes that for a circle",
                why.join(", or "),
                queue.name
            ),
            fix,
        );
        finding.queues.push(wait.to_owned());
        found.push(finding);
    }
    found
}
