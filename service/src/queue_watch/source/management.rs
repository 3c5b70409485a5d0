//! The management API: every queue, what is bound, and where its statistics are on, who consumes.

use std::collections::{BTreeMap, BTreeSet};

use retryrmq_operator::management::{Management, QueueKind};

use crate::queue_watch::{QueueView, Snapshot};

/// Exchanges that are asked for their bindings, one request each. Of more it is not known what is bound.
const MOST_EXCHANGES: usize = 200;

/// Lists all queues. Where it is not known who consumes, [`QueueView::consumers`] is [`None`].
pub(in crate::queue_watch) async fn list(
    management: &Management,
    vhost: &str,
) -> Result<Snapshot, String> {
    let failed = |why: retryrmq_operator::management::Error| why.to_string();
    let queues = management.queues(vhost).await.map_err(failed)?;
    let consumers = consumers(management, vhost).await;
    let bound = bound(management, vhost).await;
    let views = queues.into_iter().map(|(name, queue)| {
        let count = consumers
            .as_ref()
            .map(|consumers| consumers.get(&name).copied().unwrap_or(0));
        let view = QueueView {
            ready: queue.totals.ready,
            unacknowledged: queue.totals.unacknowledged,
            consumers: count,
            acknowledged: None,
            bound: bound.as_ref().map(|bound| bound.contains(&name)),
            temporary: queue.exclusive || queue.auto_delete || queue.kind == QueueKind::Stream,
        };
        (name, view)
    });
    Ok(Snapshot {
        queues: views.collect(),
        complete: true,
        ..Snapshot::default()
    })
}

/// A user without these tags is shown its own consumers alone, which would make orphans of all others.
const SEES_ALL: [&str; 2] = ["monitoring", "administrator"];

async fn consumers(management: &Management, vhost: &str) -> Option<BTreeMap<String, u64>> {
    let tags = management.tags().await.ok()?;
    if !tags.iter().any(|tag| SEES_ALL.contains(&tag.as_str())) {
        return None;
    }
    let mut counts = BTreeMap::new();
    for consumer in management.consumers(vhost).await.ok()?? {
        *counts.entry(consumer.queue).or_default() += 1;
    }
    Some(counts)
}

async fn bound(management: &Management, vhost: &str) -> Option<BTreeSet<String>> {
    let exchanges = management.exchanges(vhost).await.ok()?;
    // Everything is bound to the default one.
    let names: Vec<&String> = exchanges.keys().filter(|name| !name.is_empty()).collect();
    if names.len() > MOST_EXCHANGES {
        return None;
    }
    let mut bound = BTreeSet::new();
    for name in names {
        for binding in management.bindings(vhost, name).await.ok()? {
            if binding.is_to_queue {
                bound.insert(binding.destination);
            }
        }
    }
    Some(bound)
}
