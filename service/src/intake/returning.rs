//! Sends what has waited in a store back to its queue, or parks it where no queue takes it.

use std::sync::Arc;

use prometheus_client::metrics::histogram::Histogram;
use retryrmq::{Client, Event, Failed, Failure, Outcome, visible};
use tracing::warn;

use super::{
    obituary::{Content, message_id, obituary},
    retriers::Retriers,
};
use crate::{
    Feed, Happening, Metrics,
    store::{Due, Outlet, Refusal, ToBroker},
};

/// The way back.
pub(super) struct Returning {
    broker: ToBroker,
    retriers: Retriers,
    metrics: Arc<Metrics>,
    feed: Feed,
    late: Histogram,
}

impl Returning {
    pub(super) fn new(client: Client, metrics: Arc<Metrics>, feed: Feed, late: Histogram) -> Self {
        Self {
            broker: ToBroker::new(client.clone()),
            retriers: Retriers::new(client),
            metrics,
            feed,
            late,
        }
    }

    async fn park(&self, due: &Due, why: &str) -> retryrmq::Result<()> {
        let draft = due.message.draft();
        let queue = &draft.routing_key;
        let retrier = self.retriers.of(queue)?;
        // Where it was first published its headers say.
        let failed = Failed::new(
            queue,
            &draft.exchange,
            queue,
            draft.properties.clone(),
            draft.body.clone(),
        )?;
        let error = format!(
            "it has waited, and cannot come back to {}: {why}; once that is mended, replay it",
            visible::line(queue)
        );
        let outcome = Outcome::fatal(Failure::new(error).of_type("NotReturned"));
        let Some(decision) = retrier.after(&failed, &outcome).await? else {
            return Ok(());
        };
        if let Event::Parked { reason, error, .. } = &decision.event {
            self.metrics.parked(queue, reason.as_str());
            warn!(
                queue = %visible::line(queue),
                message_id = message_id(&failed),
                reason = reason.as_str(),
                error = %visible::line(error),
                "parked"
            );
            // It is rare: whether somebody reads bodies is not asked.
            let content = Content::of(&failed).await;
            self.feed.tell(|| {
                let written = obituary(&failed, &decision, *reason, content);
                Happening::Parked(Box::new(written))
            });
        }
        Ok(())
    }
}

impl Outlet for Returning {
    async fn publish(&self, due: &Due) -> Result<(), Refusal> {
        self.late.observe(due.late.as_secs_f64());
        self.broker.publish(due).await
    }

    async fn give_up(&self, due: &Due, why: &str) -> Result<(), Refusal> {
        // Whatever is wrong with the parking queue, other lines have others.
        let parked = self.park(due, why).await;
        parked.map_err(|error| Refusal::Line(error.to_string()))
    }
}
