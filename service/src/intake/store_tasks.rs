//! Keeps what waits in a store outside the broker, and brings it back when it is due.
//!
//! ```text
//! DeadLetterHandler ── keep ──► StoreHandle ──► one batch of all that has come in ──► store
//! work queue ◄── confirmed ── sink ◄── DueDispatcher ◄── what is due ──┘
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use retryrmq::{
    BasicProperties, Client, Decision, FailedMessage, headers,
    types::{AMQPValue, FieldTable},
};
use tokio::{
    sync::{Mutex, Semaphore, mpsc, oneshot, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

use super::{
    parked_event::ParkedReporter, store_metrics::StoreMetrics, store_publisher::StorePublisher,
};
use crate::{
    Health, Metrics,
    store::{DueDispatcher, Error, MessageDraft, Result, Store, StoredMessage},
    supervisor::watch_over,
    wait_reason::SAME_ATTEMPT,
};

/// Messages that are kept by one call.
const BATCH: usize = 500;

/// How often the store is asked how it is.
const LOOK: Duration = Duration::from_secs(2);

/// How long what is being published at the end may take.
const DRAIN: Duration = Duration::from_secs(20);

/// A message that somebody wants kept, and waits for.
type StoreRequest = (StoredMessage, oneshot::Sender<Result<()>>);

/// Hands messages to the store, with all others that have come in meanwhile: one call may take as long as a disk needs.
#[derive(Clone, Debug)]
pub(crate) struct StoreHandle {
    wanted: mpsc::Sender<StoreRequest>,
    health: Health,
}

impl StoreHandle {
    /// Returns once the message is as safe as configured.
    ///
    /// # Errors
    /// Those of [`Store::keep`]: keep the same value again.
    pub(crate) async fn keep(&self, kept: &StoredMessage) -> Result<()> {
        let (done, answer) = oneshot::channel();
        let ended = || Error::Away("the store is not written to any more".to_owned());
        let sent = self.wanted.send((kept.clone(), done)).await;
        sent.map_err(|_| ended())?;
        let kept = answer.await.unwrap_or_else(|_| Err(ended()));
        if let Err(why) = &kept {
            self.health.store(Some(why.to_string()));
        }
        kept
    }
}

/// The tasks around a store, each begun anew should it fail. Dropped, they end at once.
pub(crate) struct StoreTasks {
    store_handle: StoreHandle,
    stop: watch::Sender<bool>,
    dispatching: JoinSet<()>,
    _beside: JoinSet<()>,
}

impl StoreTasks {
    /// Begins to bring back what is due. At most `calls` batches are kept at a time.
    pub(crate) fn start<S: Store>(
        store: &Arc<S>,
        calls: usize,
        client: &Client,
        metrics: &Metrics,
        parked_reporter: ParkedReporter,
        health: &Health,
    ) -> Self {
        let numbers = StoreMetrics::default();
        let sink = Arc::new(StorePublisher::new(
            client.clone(),
            parked_reporter,
            numbers.late(),
        ));
        let dispatcher_metrics = Arc::default();
        metrics.join(numbers.clone().registry(Arc::clone(&dispatcher_metrics)));
        let (stop, stopped) = watch::channel(false);
        let (mut dispatching, mut beside) = (JoinSet::new(), JoinSet::new());
        let kept = Arc::clone(store);
        let heard = stopped.clone();
        dispatching.spawn(watch_over(
            "what brings messages back from the store",
            health.clone(),
            stopped.clone(),
            move || {
                let dispatcher = DueDispatcher::new(Arc::clone(&kept), Arc::clone(&sink));
                let mut heard = heard.clone();
                let stop = async move {
                    let _ = heard.wait_for(|stop| *stop).await; // the keeper is gone: an end, too
                };
                dispatcher
                    .counting_in(Arc::clone(&dispatcher_metrics))
                    .run(stop, DRAIN)
            },
        ));
        let (wanted, asked) = mpsc::channel(BATCH);
        let asked = Arc::new(Mutex::new(asked));
        let kept = Arc::clone(store);
        beside.spawn(watch_over(
            "what keeps messages in the store",
            health.clone(),
            stopped.clone(),
            move || keep_all(Arc::clone(&kept), Arc::clone(&asked), calls),
        ));
        let (kept, health_of_store) = (Arc::clone(store), health.clone());
        beside.spawn(watch_over(
            "what looks after the store",
            health.clone(),
            stopped,
            move || monitor(Arc::clone(&kept), health_of_store.clone(), numbers.clone()),
        ));
        let health = health.clone();
        Self {
            store_handle: StoreHandle { wanted, health },
            stop,
            dispatching,
            _beside: beside,
        }
    }

    /// What the intake keeps messages with.
    pub(crate) fn store_handle(&self) -> StoreHandle {
        self.store_handle.clone()
    }

    /// Claims no more, and lets what is being published come to its end.
    pub(crate) async fn end(mut self) {
        self.stop.send_replace(true);
        while self.dispatching.join_next().await.is_some() {}
    }
}

/// Keeps what has come in while the calls before were under way.
async fn keep_all<S: Store>(
    store: Arc<S>,
    asked: Arc<Mutex<mpsc::Receiver<StoreRequest>>>,
    calls: usize,
) {
    let mut asked = asked.lock().await;
    let free = Arc::new(Semaphore::new(calls.max(1)));
    let mut under_way = JoinSet::new();
    while let Ok(permit) = Arc::clone(&free).acquire_owned().await {
        while under_way.try_join_next().is_some() {}
        let mut batch = Vec::new();
        if asked.recv_many(&mut batch, BATCH).await == 0 {
            return;
        }
        let store = Arc::clone(&store);
        under_way.spawn(async move {
            let (messages, waiting): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let kept = store.keep(&messages).await.map(drop);
            for done in waiting {
                let _ = done.send(kept.clone()); // who asked may have given it back
            }
            drop(permit);
        });
    }
}

/// Tells the probes how the store is, and the metrics how much waits in it.
async fn monitor<S: Store>(store: Arc<S>, health: Health, numbers: StoreMetrics) {
    let mut times = interval(LOOK);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut well = true;
    loop {
        times.tick().await;
        let state = store.health().await;
        match &state {
            Ok(()) if !well => info!("the store takes messages again"),
            Err(error) if well => {
                warn!(%error, "the store takes no messages; they stay in the intake");
            }
            _ => {}
        }
        well = state.is_ok();
        health.store(state.err().map(|why| why.to_string()));
        if let Ok(lines) = store.count().await {
            numbers.waiting(lines.iter().map(|(_, count)| count).sum());
        }
    }
}

/// What is kept of a message that comes back to its queue; `None` where the decision is another. The waiting copy may carry the time that it
/// would stay in a waiting queue, which would make it expire in the work queue.
pub(super) fn draft(
    failed: &FailedMessage,
    decision: &Decision,
    redelivered: bool,
) -> Option<MessageDraft> {
    let delay = decision.delay?;
    let mut properties = BasicProperties::default();
    let copy = &decision.properties;
    macro_rules! carry {
        ($($get:ident => $set:ident),* $(,)?) => {$(
            if let Some(value) = copy.$get() {
                properties = properties.$set(value.clone());
            }
        )*};
    }
    // All but `expiration`, and `user_id`, which a broker refuses from anybody else.
    carry!(
        content_type => with_content_type, content_encoding => with_content_encoding, headers => with_headers,
        delivery_mode => with_delivery_mode, priority => with_priority, correlation_id => with_correlation_id,
        reply_to => with_reply_to, message_id => with_message_id, timestamp => with_timestamp, kind => with_type,
        app_id => with_app_id, cluster_id => with_cluster_id,
    );
    // Neither a deferral nor a detour spends an attempt.
    let record = match retries(&properties) < failed.attempt() {
        true => SAME_ATTEMPT.to_vec(),
        false => Vec::new(),
    };
    Some(MessageDraft {
        exchange: String::new(),
        routing_key: failed.queue().to_owned(),
        delay,
        properties,
        body: failed.body().to_vec(),
        record,
        redelivered,
        named_by: Some(original(failed.properties())),
    })
}

fn retries(properties: &BasicProperties) -> u32 {
    let own = properties.headers().as_ref();
    match own.and_then(|own| own.inner().get(headers::COUNT)) {
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).unwrap_or(0),
        _ => 0,
    }
}

/// The properties of the original, without what the broker changes when it delivers it again. Our own copy is stamped with the time at which it
/// was decided, so that it is another each time; the original has the time of its death, which is the broker's.
pub(crate) fn original(properties: &BasicProperties) -> BasicProperties {
    let Some(own) = properties.headers() else {
        return properties.clone();
    };
    let kept = own
        .inner()
        .iter()
        .filter(|(name, _)| !headers::is_count(name.as_str()));
    let kept: BTreeMap<_, _> = kept
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    properties.clone().with_headers(FieldTable::from(kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Id;

    fn failed(died: u64, delivered: Option<i64>, attempt: i64) -> FailedMessage {
        let mut headers = FieldTable::default();
        headers.insert("x-death".into(), AMQPValue::Timestamp(died));
        headers.insert("x-retry-count".into(), AMQPValue::LongLongInt(attempt));
        if let Some(count) = delivered {
            headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(count));
        }
        let properties = BasicProperties::default().with_headers(headers);
        FailedMessage::new("orders", "", "orders", properties, "body").unwrap()
    }

    /// As it is kept, stamped in this second.
    fn id(failed: &FailedMessage, second: u64) -> Id {
        let mut stamped = FieldTable::default();
        let name = "x-retry-first-failed-at";
        stamped.insert(name.into(), AMQPValue::Timestamp(second));
        let draft = MessageDraft {
            routing_key: failed.queue().to_owned(),
            properties: BasicProperties::default().with_headers(stamped),
            body: failed.body().to_vec(),
            named_by: Some(original(failed.properties())),
            ..MessageDraft::default()
        };
        StoredMessage::new(draft).unwrap().id().clone()
    }

    #[test]
    fn a_message_that_is_delivered_again_in_another_second_has_the_same_id() {
        let first = id(&failed(7, None, 1), 100);
        assert_eq!(first, id(&failed(7, Some(1), 1), 101));
        assert_eq!(first, id(&failed(7, Some(2), 1), 200));
        for other in [failed(8, None, 1), failed(7, None, 2)] {
            assert_ne!(first, id(&other, 100), "another death, another message");
        }
    }
}
