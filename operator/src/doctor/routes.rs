//! Where the dead letters of a queue go.

use std::collections::BTreeSet;

use super::{Code, Finding, QueueRole, Snapshot};
use crate::{
    dlx_policy::policy_for,
    management::{Queue, QueueKind},
};

/// Where the broker takes a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route<'a> {
    /// It has no dead-letter exchange: they are dropped.
    None,
    /// The exchange does not exist: they are dropped.
    MissingExchange(&'a str),
    /// No queue is bound for them: they are dropped, or held at least once.
    Nowhere(&'a str),
    /// To these queues, as far as it can be told from the routing key.
    To(BTreeSet<&'a str>),
    /// Through the default exchange with the key that each was published with.
    ByOwnKey,
}

impl Route<'_> {
    pub(super) fn reaches(&self, queue: &str) -> bool {
        matches!(self, Self::To(queues) if queues.contains(queue))
    }
}

/// The route of a queue's dead letters.
pub(super) fn route<'a>(all: &'a Snapshot, queue: &'a Queue) -> Route<'a> {
    let Some(exchange) = all.text(queue, "dead-letter-exchange") else {
        return Route::None;
    };
    let key = all.text(queue, "dead-letter-routing-key");
    if exchange.is_empty() {
        return match key {
            None => Route::ByOwnKey,
            Some(key) => match all.queues.get_key_value(key) {
                Some((name, _)) => Route::To(BTreeSet::from([name.as_str()])),
                None => Route::Nowhere(exchange),
            },
        };
    }
    if !all.exchanges.contains_key(exchange) {
        return Route::MissingExchange(exchange);
    }
    let (mut queues, mut seen, mut next) = (BTreeSet::new(), BTreeSet::new(), vec![exchange]);
    while let Some(exchange) = next.pop() {
        if !seen.insert(exchange) {
            continue;
        }
        let kind = all
            .exchanges
            .get(exchange)
            .map_or("", |exchange| &exchange.kind);
        let bindings = all.bindings.get(exchange).map_or(&[][..], Vec::as_slice);
        let matching = bindings.iter().filter(|binding| match (kind, key) {
            ("direct", Some(key)) => binding.key == key,
            ("topic", Some(key)) => matches(&binding.key, key),
            _ => true,
        });
        for binding in matching {
            if binding.is_to_queue {
                queues.insert(binding.destination.as_str());
            } else {
                next.push(&binding.destination);
            }
        }
        next.extend(all.alternate(exchange));
    }
    if queues.is_empty() {
        Route::Nowhere(exchange)
    } else {
        Route::To(queues)
    }
}

/// Whether a topic pattern matches: `*` is one word, `#` any number.
fn matches(pattern: &str, key: &str) -> bool {
    fn rest(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&"#", pattern)), None) => rest(pattern, key),
            (Some((&"#", after)), Some((_, tail))) => rest(after, key) || rest(pattern, tail),
            (Some((word, pattern)), Some((first, key))) if *word == "*" || word == first => {
                rest(pattern, key)
            }
            _ => false,
        }
    }
    let words = |text: &'_ str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (pattern, key) = (words(pattern), words(key));
    let (pattern, key): (Vec<&str>, Vec<&str>) = (
        pattern.iter().map(String::as_str).collect(),
        key.iter().map(String::as_str).collect(),
    );
    // Two `#` side by side mean what one does, and would take exponential time.
    let mut short = pattern;
    short.dedup_by(|one, other| *one == "#" && *other == "#");
    rest(&short, &key)
}

/// Whether it is a queue that somebody works on, and that outlives its connections.
pub(super) fn is_work_queue(all: &Snapshot, queue: &Queue) -> bool {
    queue.durable
        && !queue.exclusive
        && !queue.auto_delete
        && matches!(queue.kind, QueueKind::Classic | QueueKind::Quorum)
        && all.role(&queue.name).is_none()
}

/// The queues where dead letters end: others' dead letters come, and not because their wait is over, there is no way on, and nobody consumes.
pub(super) fn graveyards(all: &Snapshot) -> BTreeSet<&str> {
    let mut found: BTreeSet<&str> = all
        .queues
        .values()
        .filter(|queue| all.number(queue, "message-ttl").is_none())
        .flat_map(|queue| match route(all, queue) {
            Route::To(queues) => queues
                .into_iter()
                .filter(|name| *name != queue.name)
                .collect(),
            _ => Vec::new(),
        })
        .collect();
    found.extend(
        all.queues
            .keys()
            .map(String::as_str)
            .filter(|name| is_named_so(name)),
    );
    found.retain(|name| {
        let consumed = all
            .consumers
            .as_ref()
            .is_some_and(|consumers| consumers.contains_key(*name));
        let queue = all.queues.get(*name);
        !consumed && queue.is_some_and(|queue| route(all, queue) == Route::None)
    });
    found
}

/// Whether other libraries name so where they put what failed.
fn is_named_so(name: &str) -> bool {
    let name = name.to_lowercase();
    const ENDS: [&str; 12] = [
        "_error",
        "_skipped",
        ".error",
        "-error",
        "error_queue",
        "dlq",
        "dead-letter",
        "dead_letter",
        "deadletter",
        ".dead",
        ".failed",
        "_failed",
    ];
    ["error", "audit", "failed"].contains(&name.as_str())
        || ENDS.iter().any(|end| name.ends_with(end))
}

fn enable(queue: &str) -> String {
    format!("retryrmq enable {}", shell_words::quote(queue))
}

/// RQ101.
pub(super) fn nowhere_to_go(all: &Snapshot) -> Vec<Finding> {
    let graveyards = graveyards(all);
    all.queues
        .values()
        .filter(|queue| is_work_queue(all, queue) && !graveyards.contains(queue.name.as_str()))
        .filter(|queue| route(all, queue) == Route::None && all.delivery_limit(queue).is_none())
        .map(|queue| {
            Finding::of_queue(
                Code::NoRoute,
                &queue.name,
                format!("what is rejected in `{}`, or expires there, is dropped: it has no dead-letter exchange", queue.name),
                enable(&queue.name),
            )
        })
        .collect()
}

/// RQ102.
pub(super) fn missing_exchange(all: &Snapshot) -> Vec<Finding> {
    let broken = all
        .queues
        .values()
        .filter_map(|queue| match route(all, queue) {
            Route::MissingExchange(exchange) => Some((queue, exchange)),
            _ => None,
        });
    broken
        .map(|(queue, exchange)| {
            let by_argument = queue.arguments.contains_key("x-dead-letter-exchange");
            Finding::of_queue(
                Code::MissingExchange,
                &queue.name,
                format!("dead letters of `{}` are dropped: its dead-letter exchange `{exchange}` does not exist", queue.name),
                if by_argument || all.role(&queue.name).is_some() {
                    format!(
                        "{} declare exchange --name {} --type fanout --durable true   # and bind a queue to it",
                        all.rabbitmqadmin(),
                        shell_words::quote(exchange)
                    )
                } else {
                    format!("{} --replace", enable(&queue.name))
                },
            )
        })
        .collect()
}

/// RQ103.
pub(super) fn nothing_bound(all: &Snapshot) -> Vec<Finding> {
    let broken = all
        .queues
        .values()
        .filter_map(|queue| match route(all, queue) {
            // A waiting queue of ours whose work queue is gone is RQ113.
            // What was dropped is deleted in the end.
            Route::Nowhere(_)
                if matches!(
                    all.role(&queue.name),
                    Some(QueueRole::Waiting(_) | QueueRole::Dropped(_))
                ) =>
            {
                None
            }
            Route::Nowhere(exchange) => Some((queue, exchange)),
            _ => None,
        });
    broken
        .map(|(queue, exchange)| {
            let key = all.text(queue, "dead-letter-routing-key");
            let (why, fix) = match (exchange, key) {
                ("", Some(key)) if (all.names.work_queue_of)(key).is_some() => (
                    format!("the queue `{key}` does not exist"),
                    format!("retryrmq topology {} --apply", shell_words::quote((all.names.work_queue_of)(key).unwrap_or(key))),
                ),
                ("", key) => {
                    let key = key.unwrap_or_default();
                    (
                        format!("the queue `{key}` does not exist"),
                        format!(
                            "{} declare queue --name {} --durable true --type quorum",
                            all.rabbitmqadmin(),
                            shell_words::quote(key)
                        ),
                    )
                }
                (exchange, key) => (
                    match key {
                        Some(key) => format!("no queue is bound to `{exchange}` for the routing key `{key}`"),
                        None => format!("no queue is bound to `{exchange}`"),
                    },
                    format!(
                        "{} declare binding --source {} --destination-type queue --destination QUEUE --routing-key {}",
                        all.rabbitmqadmin(),
                        shell_words::quote(exchange),
                        shell_words::quote(key.unwrap_or("#"))
                    ),
                ),
            };
            Finding::of_queue(Code::DeadEnd, &queue.name, format!("dead letters of `{}` reach no queue: {why}", queue.name), fix)
        })
        .collect()
}

/// RQ121.
pub(super) fn default_exchange_without_key(all: &Snapshot) -> Vec<Finding> {
    let broken = all
        .queues
        .values()
        .filter(|queue| route(all, queue) == Route::ByOwnKey && all.role(&queue.name).is_none());
    broken
        .map(|queue| {
            let parked = (all.names.parking_queue)(&queue.name);
            let key = [("dead-letter-routing-key", parked.into())];
            Finding::of_queue(
                Code::RouteWithoutKey,
                &queue.name,
                format!(
                    "dead letters of `{}` go to the default exchange without a routing key, so each goes to the queue that its own key names: \
                     what was published to this queue by name comes back to it at once, or is dropped as a cycle",
                    queue.name
                ),
                format!("{}   # and then make that queue", policy_for(all.base(queue), &queue.name, &key, &[]).as_command(&all.vhost)),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::snapshot::tests::{queue, snapshot};
    use super::*;
    use crate::management::{Binding, Exchange};

    fn exchange(all: &mut Snapshot, name: &str, kind: &str, bindings: &[(&str, bool, &str)]) {
        all.exchanges.insert(
            name.to_owned(),
            Exchange {
                name: name.to_owned(),
                kind: kind.to_owned(),
                alternate: None,
                policy: None,
            },
        );
        let bindings = bindings
            .iter()
            .map(|(destination, is_to_queue, key)| Binding {
                destination: (*destination).to_owned(),
                is_to_queue: *is_to_queue,
                key: (*key).to_owned(),
            });
        all.bindings.insert(name.to_owned(), bindings.collect());
    }

    #[test]
    fn topic_patterns_match_as_the_broker_matches_them() {
        for (pattern, key, expected) in [
            ("#", "", true),
            ("#", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.#", "a", true),
            ("#.b", "a.c.b", true),
            ("#.#.#.b", "a.c.d", false),
            ("a.*.c", "a.b.d", false),
        ] {
            assert_eq!(matches(pattern, key), expected, "{pattern} {key}");
        }
    }

    #[test]
    fn what_was_dropped_leads_nowhere_on_purpose() {
        let nowhere = |name| {
            let nobody = json!({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retryrmq.nobody"});
            nothing_bound(&snapshot([queue(name, nobody)])).len()
        };
        assert_eq!(nowhere("orders.parked.dropped"), 0);
        assert_eq!(nowhere("orders"), 1);
    }

    #[test]
    fn a_route_follows_exchanges_alternates_and_keys() {
        let to = |key: &str| {
            queue(
                "q",
                json!({"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": key}),
            )
        };
        let mut all = snapshot([to("k")]);
        exchange(
            &mut all,
            "dlx",
            "direct",
            &[("other", true, "z"), ("next", false, "k")],
        );
        exchange(&mut all, "next", "fanout", &[]);
        assert_eq!(route(&all, &to("k")), Route::Nowhere("dlx"));
        assert_eq!(route(&all, &to("z")), Route::To(BTreeSet::from(["other"])));
        all.exchanges.get_mut("next").unwrap().alternate = Some("last".to_owned());
        exchange(
            &mut all,
            "last",
            "topic",
            &[("dead", true, "#"), ("dlx", false, "#")],
        );
        assert_eq!(
            route(&all, &to("k")),
            Route::To(BTreeSet::from(["dead"])),
            "and it ends"
        );
    }
}
