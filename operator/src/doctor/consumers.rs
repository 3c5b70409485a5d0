//! Who consumes, and how.

use super::{
    Code, Finding, Snapshot,
    cycles::waits_by_message,
    routes::{graveyards, is_work_queue},
};
use crate::{
    management::{QueueKind, Version},
    plural,
};

/// RQ112.
pub(super) fn none_where_messages_are(all: &Snapshot) -> Vec<Finding> {
    let graveyards = graveyards(all);
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let ready = queue.totals.ready.unwrap_or(0);
        let is_consumed = match &all.consumers {
            Some(consumers) => consumers.contains_key(&queue.name),
            None => queue.totals.unacknowledged != Some(0),
        };
        // Where messages wait on purpose, or end, nobody consumes.
        let is_waiting = all.number(queue, "message-ttl").is_some()
            && all.setting(queue, "dead-letter-exchange").is_some();
        let exempt = is_waiting
            || graveyards.contains(queue.name.as_str())
            || waits_by_message(all, queue, &graveyards);
        if ready == 0 || is_consumed || exempt || !is_work_queue(all, queue) {
            continue;
        }
        let verb = if ready == 1 {
            "message waits"
        } else {
            "messages wait"
        };
        let sentence = match &all.consumers {
            Some(_) => format!("{ready} {verb} in `{}`, and nobody consumes it", queue.name),
            None => format!(
                "{ready} {verb} in `{}`, and nothing is taken from it",
                queue.name
            ),
        };
        found.push(Finding::of_queue(
            Code::NoConsumer,
            &queue.name,
            sentence,
            format!(
                "retryrmq consume {} --dlx -- ./your-handler",
                shell_words::quote(&queue.name)
            ),
        ));
    }
    found
}

/// RQ114.
pub(super) fn never_acknowledges(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, consumers) in all.consumers.iter().flatten() {
        let Some(queue) = all.queues.get(name) else {
            continue;
        };
        let stuck = consumers
            .iter()
            .filter(|consumer| consumer.acknowledges)
            .find_map(|consumer| {
                let channel = all.channels.get(&consumer.channel)?;
                let holds_all = channel.unacknowledged > 0
                    && (consumer.prefetch == 0 || channel.unacknowledged >= consumer.prefetch);
                let idle = all.now - seconds(channel.idle_since.as_deref()?)?;
                let is_long =
                    u64::try_from(idle).is_ok_and(|idle| idle >= all.stuck_after.as_secs());
                (holds_all && is_long).then_some((consumer, channel, idle))
            });
        if let Some((consumer, channel, idle)) = stuck {
            let ever = if channel.acknowledged == 0 {
                ", and never has"
            } else {
                ""
            };
            let who = match &consumer.user {
                Some(user) => format!("consumer `{}` of user `{user}`", consumer.tag),
                None => format!("consumer `{}`", consumer.tag),
            };
            found.push(Finding::of_queue(
                Code::NeverAcknowledges,
                &queue.name,
                format!(
                    "{who} ({}) holds {} of `{name}` and has acknowledged nothing for {idle} s{ever}: what it holds comes back when its connection ends",
                    consumer.channel,
                    plural::messages(channel.unacknowledged)
                ),
                format!(
                    "rabbitmqctl list_channels {} name user messages_unacknowledged   # no command of the broker mends it: restart the program that holds them",
                    all.in_vhost()
                ),
            ));
        }
    }
    found
}

/// A moment as the broker writes it: RFC 3339, or without a zone in UTC.
fn seconds(text: &str) -> Option<i64> {
    let zoned = text.parse::<jiff::Timestamp>();
    zoned
        .or_else(|_| format!("{}Z", text.replacen(' ', "T", 1)).parse::<jiff::Timestamp>())
        .ok()
        .map(jiff::Timestamp::as_second)
}

/// RQ115.
pub(super) fn timeout_too_short(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    // Queues have had a time of their own since 3.12; a classic one takes nothing back since 4.3.
    if all.version < Version(3, 12, 0) {
        return found;
    }
    for queue in all.queues.values() {
        if queue.kind == QueueKind::Classic && all.version >= Version(4, 3, 0) {
            continue;
        }
        let consumers = all
            .consumers
            .iter()
            .flat_map(|all| all.get(&queue.name))
            .flatten();
        let asked = consumers.filter_map(|consumer| consumer.timeout).min();
        let set = all
            .number(queue, "consumer-timeout")
            .and_then(|ms| u64::try_from(ms).ok())
            .map(std::time::Duration::from_millis);
        let Some(timeout) = asked.into_iter().chain(set).min() else {
            continue;
        };
        if timeout >= all.handler_timeout || timeout.is_zero() {
            continue;
        }
        let shorter = timeout.mul_f64(0.9).as_millis().max(1);
        let consume = format!(
            "retryrmq consume {} --dlx --timeout {shorter}ms -- ./your-handler   # handlers end in time then: `retryrmq doctor --handler-timeout {shorter}ms` knows it",
            shell_words::quote(&queue.name)
        );
        // A policy's time can be changed, a consumer's own cannot.
        let longer = all.handler_timeout.as_millis().saturating_mul(2);
        let longer = u64::try_from(longer).unwrap_or(u64::MAX);
        let fix = match asked {
            Some(asked) if asked < all.handler_timeout => consume,
            _ => {
                let set = [("consumer-timeout", longer.into())];
                all.mend(queue, &["consumer-timeout"], &set, consume)
            }
        };
        found.push(Finding::of_queue(
            Code::ShortTimeout,
            &queue.name,
            format!(
                "the broker takes messages of `{}` back after {} ms (consumer timeout), and handlers may take {} ms: a message is handled twice, by two at once",
                queue.name,
                timeout.as_millis(),
                all.handler_timeout.as_millis()
            ),
            fix,
        ));
    }
    found
}

/// RQ119.
pub(super) fn without_acknowledgement(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, consumers) in all.consumers.iter().flatten() {
        let Some(queue) = all
            .queues
            .get(name)
            .filter(|queue| is_work_queue(all, queue))
        else {
            continue;
        };
        let Some(consumer) = consumers.iter().find(|consumer| !consumer.acknowledges) else {
            continue;
        };
        found.push(Finding::of_queue(
            Code::NoAcknowledgement,
            &queue.name,
            format!(
                "consumer `{}` of `{name}` takes messages without acknowledging them: what it was sent is lost when it fails or ends",
                consumer.tag
            ),
            format!(
                "rabbitmqctl list_consumers {} queue_name consumer_tag ack_required   # and let that program acknowledge, as `retryrmq consume` does",
                all.in_vhost()
            ),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_every_version_writes_them() {
        let expected = Some(1_700_000_000);
        assert_eq!(seconds("2023-11-14 22:13:20"), expected);
        assert_eq!(seconds("2023-11-14T22:13:20.000+00:00"), expected);
        assert_eq!(seconds("yesterday"), None);
    }
}
