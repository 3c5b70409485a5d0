//! AMQP: queues asked for by name. Needs no plugin.

use retryrmq::Client;

use crate::queue_watch::{QueueView, Snapshot};

/// Asks for these queues, passively. One that this user may not ask for, or that belongs to another connection, is left out.
pub(in crate::queue_watch) async fn ask(
    client: &Client,
    queues: &[String],
) -> Result<Snapshot, String> {
    let mut snapshot = Snapshot::default();
    if queues.is_empty() {
        return Ok(snapshot);
    }
    let names = queues.iter().map(String::as_str);
    let totals = client
        .queue_totals(names)
        .await
        .map_err(|why| why.to_string())?;
    for (queue, totals) in queues.iter().zip(totals) {
        match totals {
            Ok(Some(totals)) => {
                let view = QueueView {
                    ready: Some(totals.ready.into()),
                    consumers: Some(totals.consumers.into()),
                    ..QueueView::default()
                };
                snapshot.queues.insert(queue.clone(), view);
            }
            Ok(None) => {
                snapshot.gone.insert(queue.clone());
            }
            Err(why) => tracing::debug!(queue, %why, "nothing is known of this queue"),
        }
    }
    Ok(snapshot)
}
