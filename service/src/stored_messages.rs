//! What people do to single messages in a store: for the page, and for the program that only looks at the store.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use retryrmq::{FailedMessage, types::AMQPValue};
use tokio::time::timeout;

use crate::{
    queue_names::DELAYED_QUEUE,
    retrier_cache::RetrierCache,
    store::{Destination, Id, ListedMessage, Page, Result, Store, StoredMessage, TakeResult},
    wait_reason::WaitReason,
};

/// As many are asked for at a time.
const PAGE: usize = 200;

/// What a message in a store comes back to, as people name it: its queue, or the service's own for what was published with a delay.
pub(crate) fn queue_of(message: &StoredMessage) -> String {
    match (WaitReason::of(message.draft()), message.destination()) {
        (WaitReason::Delayed(_), _) => DELAYED_QUEUE.to_owned(),
        (_, Destination::Queue(queue)) => queue,
        (_, Destination::Exchange(exchange, _)) => exchange,
    }
}

/// A header of ours, in text.
pub(crate) fn header(message: &StoredMessage, name: &str) -> Option<String> {
    let headers = message.draft().properties.headers().as_ref()?;
    match headers.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        AMQPValue::LongLongInt(number) => Some(number.to_string()),
        _ => None,
    }
}

/// What waits for one queue, or everything, by the time when it is due. Bodies are left out.
pub(crate) async fn walk(
    store: &impl Store,
    queue: Option<&str>,
    mut see: impl FnMut(&ListedMessage) -> bool,
) -> Result<()> {
    // What was published with a delay goes to any exchange.
    let line = queue.filter(|queue| *queue != DELAYED_QUEUE);
    let mut from = None;
    loop {
        let page = Page {
            from,
            limit: PAGE,
            destination: line.map(|queue| Destination::Queue(queue.to_owned())),
        };
        let listing = store.list(&page).await?;
        for listed in &listing.messages {
            let is_meant = queue.is_none_or(|queue| queue_of(&listed.message) == queue);
            if is_meant && !see(listed) {
                return Ok(());
            }
        }
        from = listing.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

/// What became of a message that was to be parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParkResult {
    /// It is parked, and waits no longer.
    Parked,
    /// It is parked, and may come back as well: why.
    Twice(String),
    /// There is no such message.
    Unknown,
    /// A replica is publishing it right now.
    TooLate,
    /// It waits as before: why.
    Failed(String),
}

/// Parks one message as `requested`, with its record. `record` is told of it before the copy is made, and may refuse.
pub(crate) async fn park(
    store: &impl Store,
    retriers: &RetrierCache,
    id: &Id,
    record: impl AsyncFnOnce(&StoredMessage) -> std::result::Result<(), String>,
) -> ParkResult {
    let (message, lease, remaining) = match store.take(id).await {
        Ok(TakeResult::Taken {
            message,
            lease,
            remaining,
        }) => (message, lease, remaining),
        Ok(TakeResult::Unknown) => return ParkResult::Unknown,
        Ok(TakeResult::TooLate) => return ParkResult::TooLate,
        Err(why) => return ParkResult::Failed(why.to_string()),
    };
    let taken = Instant::now();
    let mut leases = [lease];
    let parked = async {
        record(&message).await?;
        store_copy(retriers, &message)
            .await
            .map_err(|error| error.to_string())
    };
    // A parking queue that is new may take longer than a lease.
    let mut parked = pin!(parked);
    let parked = loop {
        match timeout(store.lease() / 3, &mut parked).await {
            Ok(parked) => break parked,
            Err(_) => {
                if let Ok(extended) = store.extend(&leases).await
                    && let Some(lease) = extended.into_iter().next().flatten()
                {
                    leases = [lease];
                }
            }
        }
    };
    if let Err(why) = parked {
        let left = remaining.saturating_sub(taken.elapsed());
        let back = store.release(&leases, left).await;
        return ParkResult::Failed(match back {
            Ok(_) => why,
            Err(_) => format!("{why}; it may come back before its time"),
        });
    }
    match store.delete(&leases).await.as_deref() {
        Ok([true]) => ParkResult::Parked,
        Ok(_) => ParkResult::Twice("another service has it by now".to_owned()),
        Err(why) => ParkResult::Twice(why.to_string()),
    }
}

async fn store_copy(retriers: &RetrierCache, message: &StoredMessage) -> retryrmq::Result<()> {
    let draft = message.draft();
    let exchange = match WaitReason::of(draft) {
        WaitReason::Delayed(from) => from,
        WaitReason::Next | WaitReason::Same => draft.exchange.clone(),
    };
    let queue = queue_of(message);
    let retrier = retriers.of(&queue)?;
    let waiting = FailedMessage::new(
        &queue,
        &exchange,
        &draft.routing_key,
        draft.properties.clone(),
        draft.body.clone(),
    )?;
    let decision = retrier.cancel(&waiting)?;
    retrier.store(&waiting, &decision).await
}

/// A duration in milliseconds, as JSON has it.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
