//! Limits that drop messages.

use super::{
    Code, Finding, QueueRole, Severity, Snapshot, Subject,
    policies::PolicySource,
    routes::{Route, graveyards, is_work_queue, route},
    snapshot::STREAM_FLAG,
};
use crate::{
    dlx_policy::policy_for_waiting,
    management::{Queue, QueueKind},
};

/// Fewer deliveries than this are few for a queue that people look into.
const FEW_DELIVERIES: i64 = 1_000;

/// RQ107.
pub(super) fn delivery_limit_without_route(all: &Snapshot) -> Vec<Finding> {
    let graveyards = graveyards(all);
    all.queues
        .values()
        .filter(|queue| is_work_queue(all, queue) && !graveyards.contains(queue.name.as_str()))
        .filter(|queue| route(all, queue) == Route::None)
        .filter_map(|queue| Some((queue, all.delivery_limit(queue).filter(|limit| *limit < 1_000_000)?)))
        .map(|(queue, limit)| {
            let whose = match all.number(queue, "delivery-limit") {
                Some(_) => "its delivery limit",
                None => "the broker's default delivery limit",
            };
            Finding::of_queue(
                Code::LimitWithoutRoute,
                &queue.name,
                format!("`{}` drops what comes back more than {limit} times ({whose}), and all that is rejected: it has no dead-letter exchange", queue.name),
                format!("retryrmq enable {}", shell_words::quote(&queue.name)),
            )
        })
        .collect()
}

/// RQ125.
pub(super) fn work_queue_drops_the_oldest(all: &Snapshot) -> Vec<Finding> {
    let graveyards = graveyards(all);
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let is_refused = all
            .text(queue, "overflow")
            .is_some_and(|overflow| overflow.starts_with("reject-publish"));
        let is_worked_on = is_work_queue(all, queue) && !graveyards.contains(queue.name.as_str());
        if is_refused || !is_worked_on || route(all, queue) != Route::None {
            continue;
        }
        let limits = [("max-length", "messages"), ("max-length-bytes", "bytes")];
        let limits = limits.map(|(key, unit)| {
            let most = all.number(queue, key)?;
            Some(format!("{most} {unit} (`{key}`)"))
        });
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        if limits.is_empty() {
            continue;
        }
        let by_hand = format!(
            "rabbitmqctl list_queues {} name arguments   # x-overflow is an argument: make the queue anew, with `reject-publish`",
            all.in_vhost()
        );
        let overflow = [("overflow", "reject-publish".into())];
        found.push(Finding::of_queue(
            Code::DropsOldest,
            &queue.name,
            format!(
                "`{}` drops its oldest messages beyond {}: it has no dead-letter exchange, and neither a publisher nor a consumer is told",
                queue.name,
                limits.join(" or ")
            ),
            all.mend(queue, &["overflow"], &overflow, by_hand),
        ));
    }
    found
}

/// RQ108.
pub(super) fn at_least_once_that_is_not(all: &Snapshot) -> Vec<Finding> {
    let wanted = |queue: &&Queue| all.wants_at_least_once(queue);
    let mut found = Vec::new();
    for queue in all.queues.values().filter(wanted) {
        let name = &queue.name;
        let (why, fix) = if queue.kind != QueueKind::Quorum {
            let fix = format!(
                "rabbitmqctl list_queues {} name type messages   # a queue's type cannot be changed: make it anew as a quorum queue, when it is empty",
                all.in_vhost()
            );
            ("only quorum queues do it".to_owned(), fix)
        } else if !all.may_do_at_least_once(queue) {
            (all.overflow_of(queue), all.mend_overflow(queue))
        } else {
            continue;
        };
        let mut finding = Finding::of_queue(
            Code::NotAtLeastOnce,
            name,
            format!(
                "`{name}` asks for at-least-once dead-lettering and does not do it: {why}; dead letters are dropped where their queue is missing or full"
            ),
            fix,
        );
        if asks_in_vain(queue) {
            finding.severity = Severity::Error;
        }
        found.push(finding);
    }
    found.extend(at_least_once_without_the_flag(all));
    found
}

/// Whether it was declared with all that at-least-once dead-lettering takes.
fn asks_in_vain(queue: &Queue) -> bool {
    let says = |name: &str, value: &str| queue.arguments.get(name).is_some_and(|it| it == value);
    queue.kind == QueueKind::Quorum
        && says("x-overflow", "reject-publish")
        && says("x-dead-letter-strategy", "at-least-once")
}

impl Snapshot {
    /// Why its overflow does not do for at-least-once dead-lettering.
    fn overflow_of(&self, queue: &Queue) -> String {
        let takes = "it takes the overflow `reject-publish` as well";
        let Some(overflow) = self.text(queue, "overflow") else {
            return takes.to_owned();
        };
        let who = match self.source(queue, "overflow") {
            Some(PolicySource::Policy) => match self.base(queue) {
                Some(base) => format!("policy `{}`", base.name),
                None => "a policy".to_owned(),
            },
            Some(PolicySource::Operator) => "an operator policy".to_owned(),
            _ => return takes.to_owned(),
        };
        let over = if queue.arguments.contains_key("x-overflow") {
            ", which wins over the argument of a quorum queue"
        } else {
            ""
        };
        format!("{who} sets its overflow to `{overflow}`{over}, and {takes}")
    }

    fn mend_overflow(&self, queue: &Queue) -> String {
        let overflow = [("overflow", "reject-publish".into())];
        let by_hand = format!(
            "rabbitmqctl list_queues {} name arguments   # x-overflow is an argument: the queue has to be made anew",
            self.in_vhost()
        );
        match (self.role(&queue.name), self.source(queue, "overflow")) {
            // Queues for further delays may follow.
            (Some(QueueRole::Waiting(work)), Some(PolicySource::Policy)) => {
                policy_for_waiting(self.base(queue), work, &overflow).as_command(&self.vhost)
            }
            _ => self.mend(queue, &["overflow"], &overflow, by_hand),
        }
    }
}

/// Before RabbitMQ 3.12 a cluster can lack the flag, if nobody enabled it after an upgrade.
fn at_least_once_without_the_flag(all: &Snapshot) -> Option<Finding> {
    let queues = all.queues.values();
    let affected: Vec<_> = queues
        .filter(|queue| all.may_do_at_least_once(queue))
        .map(|queue| queue.name.clone())
        .collect();
    let first = affected.first().filter(|_| all.lacks_the_flag())?;
    let which = match affected.len() {
        1 => format!("`{first}`"),
        count => format!("`{first}` and {} more", count - 1),
    };
    Some(Finding {
        code: Code::NotAtLeastOnce,
        severity: Severity::Error,
        subject: Subject::Feature(STREAM_FLAG.to_owned()),
        sentence: format!(
            "the feature flag `{STREAM_FLAG}` is disabled, and without it no queue dead-letters at least once: what {which} dead-letters is dropped where its queue is missing or full"
        ),
        fix: format!(
            "rabbitmqctl enable_feature_flag {STREAM_FLAG}   # and then set any policy on the queues that exist: until then they go on as before, also after a restart"
        ),
        queues: affected,
    })
}

/// RQ109.
pub(super) fn waiting_queue_expires(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let Some(expires) = all.number(queue, "expires") else {
            continue;
        };
        let ours = matches!(all.role(&queue.name), Some(QueueRole::Waiting(_)));
        let wait = all.number(queue, "message-ttl");
        let waits = wait.is_some() && all.setting(queue, "dead-letter-exchange").is_some();
        let is_quorum = queue.kind == QueueKind::Quorum;
        // A classic one lives on while it is declared anew; only one that is shorter than the wait loses by itself.
        let loses = ours || (waits && (is_quorum || wait.is_some_and(|wait| expires <= wait)));
        if !loses {
            continue;
        }
        let by_hand = format!(
            "rabbitmqctl list_queues {} name messages arguments   # x-expires is an argument: delete the queue when it is empty, and let it be made without",
            all.in_vhost()
        );
        let fix = all.mend(
            queue,
            &["expires"],
            &[("overflow", "reject-publish".into())],
            by_hand,
        );
        found.push(Finding::of_queue(
            Code::WaitingExpires,
            &queue.name,
            format!(
                "`{}` is deleted with all that waits in it when nobody has used it for {expires} ms{}",
                queue.name,
                if is_quorum { ", and neither declaring it nor publishing to it counts as use" } else { "" }
            ),
            fix,
        ));
    }
    found
}

/// RQ110.
pub(super) fn parking_queue_limited(all: &Snapshot) -> Vec<Finding> {
    let graveyards = graveyards(all);
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let role = all.role(&queue.name);
        let ours = matches!(role, Some(QueueRole::Parking(_) | QueueRole::Unreadable(_)));
        if (!ours && !graveyards.contains(queue.name.as_str())) || queue.kind == QueueKind::Stream {
            continue;
        }
        let mut why = Vec::new();
        let mut keys = Vec::new();
        let mut say = |key: &'static str, sentence: String| {
            keys.push(key);
            why.push(sentence);
        };
        if let Some(time) = all.number(queue, "message-ttl") {
            say("message-ttl", format!("drops them after {time} ms"));
        }
        if let Some(time) = all.number(queue, "expires") {
            say(
                "expires",
                format!("is deleted when nobody has used it for {time} ms"),
            );
        }
        let refuses = all
            .text(queue, "overflow")
            .is_some_and(|overflow| overflow.starts_with("reject-publish"));
        for key in ["max-length", "max-length-bytes"] {
            if let Some(most) = all.number(queue, key) {
                let unit = if key == "max-length" {
                    "messages"
                } else {
                    "bytes"
                };
                say(
                    key,
                    format!(
                        "{} beyond {most} {unit}",
                        if refuses {
                            "takes no more"
                        } else {
                            "drops the oldest"
                        }
                    ),
                );
            }
        }
        if let Some(limit) = all
            .delivery_limit(queue)
            .filter(|limit| *limit < FEW_DELIVERIES)
        {
            say(
                "delivery-limit",
                format!("drops what was looked at and put back more than {limit} times"),
            );
        }
        if queue.auto_delete {
            say("", "is deleted with its last consumer".to_owned());
        }
        if !queue.durable {
            say("", "does not outlive its broker".to_owned());
        }
        if why.is_empty() {
            continue;
        }
        let by_hand = format!(
            "rabbitmqctl list_queues {} name durable auto_delete arguments   # arguments stay: replay what is there, delete the queue, let it be made anew",
            all.in_vhost()
        );
        let fix = if keys.contains(&"") {
            by_hand
        } else {
            // A policy says something; without a length an overflow means nothing.
            let harmless = if queue.kind == QueueKind::Quorum {
                ("delivery-limit", 1_000_000_000.into())
            } else {
                ("overflow", "reject-publish".into())
            };
            all.mend(queue, &keys, &[harmless], by_hand)
        };
        let mut finding = Finding::of_queue(
            Code::ParkingLimited,
            &queue.name,
            format!(
                "`{}` is where {} end, and it {}",
                queue.name,
                match role {
                    Some(QueueRole::Unreadable(_)) =>
                        "messages that RabbitMQ cannot deliver over AMQP 0-9-1",
                    _ => "dead letters",
                },
                why.join(", and ")
            ),
            fix,
        );
        if !ours {
            finding.severity = Severity::Warning;
        }
        found.push(finding);
    }
    found
}
