//! Sends what has waited in a store back to its queue, or parks it where no queue takes it.

use prometheus_client::metrics::histogram::Histogram;
use retryrmq::{
    BasicProperties, Client, FailedMessage, Failure, Outcome, headers, terminal_escape,
    types::AMQPValue,
};

use super::parked_event::ParkedReporter;
use crate::{
    queue_names::DELAYED_QUEUE,
    retrier_cache::RetrierCache,
    store::{BrokerSink, DueMessage, PublishRefused, Sink},
    wait_reason::WaitReason,
};

/// The way back.
pub(super) struct StorePublisher {
    broker: BrokerSink,
    retrier_cache: RetrierCache,
    parked_reporter: ParkedReporter,
    late: Histogram,
}

impl StorePublisher {
    pub(super) fn new(client: Client, parked_reporter: ParkedReporter, late: Histogram) -> Self {
        Self {
            broker: BrokerSink::new(client.clone()),
            retrier_cache: RetrierCache::new(client),
            parked_reporter,
            late,
        }
    }

    async fn park(&self, due: &DueMessage, why: &str) -> retryrmq::Result<()> {
        let draft = due.message.draft();
        let (queue, from, properties, error) = match WaitReason::of(draft) {
            waits @ (WaitReason::Next | WaitReason::Same) => (
                draft.routing_key.as_str(),
                // Where it was first published its headers say.
                draft.exchange.clone(),
                match waits {
                    WaitReason::Next => last_attempt(draft.properties.clone()),
                    _ => draft.properties.clone(),
                },
                format!(
                    "it has waited, and cannot come back to {}: {why}; once that is mended, replay it",
                    terminal_escape::line(&draft.routing_key)
                ),
            ),
            WaitReason::Delayed(from) => (
                DELAYED_QUEUE,
                from,
                draft.properties.clone(),
                format!(
                    "it was due, and cannot be published to the exchange {} with the routing key {}: {why}; once that is mended, replay it",
                    terminal_escape::line(&draft.exchange),
                    terminal_escape::line(&draft.routing_key)
                ),
            ),
        };
        let retrier = self.retrier_cache.of(queue)?;
        // A classic queue whose node is away takes nothing, and RabbitMQ 3.10 returns the message as if there were no such queue.
        retrier.exists().await?;
        let failed = FailedMessage::new(
            queue,
            &from,
            &draft.routing_key,
            properties,
            draft.body.clone(),
        )?;
        let outcome = Outcome::fatal(Failure::new(error).of_type("NotReturned"));
        if let Some(decision) = retrier.after(&failed, &outcome).await? {
            self.parked_reporter.report(&failed, &decision).await;
        }
        Ok(())
    }
}

/// The properties with which the last attempt began. What waits for its next one has the count of the one to come, which there will not be.
fn last_attempt(properties: BasicProperties) -> BasicProperties {
    let mut own = properties.headers().clone().unwrap_or_default();
    let Some(AMQPValue::LongLongInt(count)) = own.inner().get(headers::COUNT) else {
        return properties;
    };
    let before = AMQPValue::LongLongInt((count - 1).max(0));
    own.insert(headers::COUNT.into(), before);
    properties.with_headers(own)
}

impl Sink for StorePublisher {
    async fn publish(&self, due: &DueMessage) -> Result<(), PublishRefused> {
        self.late.observe(due.late.as_secs_f64());
        self.broker.publish(due).await
    }

    async fn give_up(&self, due: &DueMessage, why: &str) -> Result<(), PublishRefused> {
        // Whatever is wrong with the parking queue, other lines have others.
        let parked = self.park(due, why).await;
        parked.map_err(|error| PublishRefused::Line(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use retryrmq::types::FieldTable;

    use super::*;

    fn counted(count: i64) -> BasicProperties {
        let mut headers = FieldTable::default();
        headers.insert("x-retry-count".into(), AMQPValue::LongLongInt(count));
        BasicProperties::default().with_headers(headers)
    }

    #[test]
    fn the_attempt_that_there_will_not_be_is_not_counted() {
        for (waits, attempt) in [(1, 1), (4, 4), (0, 1)] {
            let failed =
                FailedMessage::new("orders", "", "orders", last_attempt(counted(waits)), "")
                    .unwrap();
            assert_eq!(failed.attempt(), attempt, "{waits}");
        }
        let plain = BasicProperties::default();
        assert_eq!(last_attempt(plain.clone()), plain);
    }
}
