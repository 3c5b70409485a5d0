//! How many messages are parked, as the broker says.

use std::{collections::BTreeMap, time::Duration};

use retryrmq::{Client, QueueTotals, parking_queue};
use tokio::time::{Instant, timeout_at};

/// Queues that are asked for at a time. If one of them does not answer, nothing is known of these.
const SOME: usize = 50;

/// How many messages are parked for these work queues (AMQP `queue.declare`, passive). What is not known is left out: that of a queue which
/// cannot be asked for now, or whose messages somebody holds, because they do not count as ready. A quorum queue without a leader says 0.
pub(crate) async fn parked_depths(
    client: &Client,
    queues: &[String],
    time_limit: Duration,
) -> BTreeMap<String, u64> {
    let until = Instant::now() + time_limit;
    let mut depths = BTreeMap::new();
    for some in queues.chunks(SOME) {
        let parking: Vec<String> = some.iter().map(|queue| parking_queue(queue)).collect();
        let totals = client.queue_totals(parking.iter().map(String::as_str));
        match timeout_at(until, totals).await {
            Ok(Ok(totals)) => {
                let depth = |totals: Result<Option<QueueTotals>, _>| match totals {
                    Ok(Some(totals)) if totals.consumers == 0 => Some(u64::from(totals.ready)),
                    Ok(None) => Some(0),
                    Ok(Some(_)) | Err::<_, retryrmq::Error>(_) => None,
                };
                let known = some.iter().zip(totals);
                depths.extend(
                    known.filter_map(|(queue, totals)| Some((queue.clone(), depth(totals)?))),
                );
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "how many messages are parked is not known at this moment");
            }
            Err(_) => break,
        }
    }
    depths
}

/// The queues of these for which nothing is parked, which they have to prove.
pub(crate) async fn without_parked(
    client: &Client,
    queues: &[String],
    time_limit: Duration,
) -> Vec<String> {
    let until = Instant::now() + time_limit;
    let depths = parked_depths(client, queues, time_limit).await;
    let mut without = Vec::new();
    for (queue, _) in depths.into_iter().filter(|(_, depth)| *depth == 0) {
        let parking = parking_queue(&queue);
        match timeout_at(until, client.is_queue_empty(&parking)).await {
            Ok(Ok(true)) => without.push(queue),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::debug!(queue, %error, "whether something is parked is not known at this moment");
            }
            Err(_) => break,
        }
    }
    without
}
