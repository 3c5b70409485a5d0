//! What waits in the store of a policy file, for an operator: listed, shown, brought back, parked, and deleted.

use std::sync::atomic::{AtomicBool, Ordering};

use base64::{Engine, prelude::BASE64_STANDARD};
use retryrmq::{Client, headers};
use serde_json::{Value, json};

use crate::{
    ServiceConfig,
    retrier_cache::RetrierCache,
    store::{
        CancelResult, Destination, Error, Id, ListedMessage, Result, Store, redis::RedisStore,
    },
    stored_messages::{ParkResult, header, milliseconds, park, queue_of, walk},
    wait_reason::WaitReason,
};

/// Ids that are made due by one call.
const AT_A_TIME: usize = 1_000;

/// How far a call came that moves messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moved {
    /// All are moved.
    All,
    /// All are moved, and at least one may come back as well.
    Twice,
    /// At least one was not moved.
    Partly,
    /// It was stopped before the end.
    Stopped,
}

/// The store of a policy file, looked at from outside the service.
#[derive(Debug)]
pub struct StoreInspector(std::sync::Arc<RedisStore>);

impl StoreInspector {
    /// The store that this policy names, for the virtual host of this URL.
    ///
    /// # Errors
    /// [`Error::Configuration`]: there is none, or it cannot work.
    pub fn open(service_config: &ServiceConfig, url: &str) -> Result<Self> {
        let store = service_config
            .open_store(url)
            .map_err(Error::Configuration)?;
        store.map(Self).ok_or_else(|| {
            let why = "the policy file has no [store.redis]: what waits, waits in queues of the broker, which `retryrmq waiting ls QUEUE` lists";
            Error::Configuration(why.to_owned())
        })
    }

    /// Says a line of JSON for each message, or for each that comes back to one queue, by the time when it is due.
    ///
    /// # Errors
    /// The store cannot be asked now.
    pub async fn list(&self, queue: Option<&str>, mut say: impl FnMut(String)) -> Result<()> {
        walk(self.0.as_ref(), queue, |listed| {
            say(line(listed).to_string());
            true
        })
        .await
    }

    /// Says a line of JSON for one message, with its body.
    ///
    /// # Errors
    /// There is no such message, or the store cannot be asked now.
    pub async fn show(&self, id: &str, mut say: impl FnMut(String)) -> Result<()> {
        let listed = self.0.find(&parsed(id)?).await?;
        let listed = listed.ok_or_else(|| unknown(id))?;
        let mut object = line(&listed);
        let body = &listed.message.draft().body;
        match std::str::from_utf8(body) {
            Ok(text) => object["body"] = json!(text),
            Err(_) => object["body_base64"] = json!(BASE64_STANDARD.encode(body)),
        }
        say(object.to_string());
        Ok(())
    }

    /// Makes messages due now, and says a line of JSON for each. A running service publishes them. What `stop` leaves has no line.
    ///
    /// # Errors
    /// An id is none: then nothing was done. Or the store cannot be asked now: then those of the lines are due.
    pub async fn flush(
        &self,
        ids: &[String],
        stop: &AtomicBool,
        mut say: impl FnMut(String),
    ) -> Result<Moved> {
        let parsed = all_parsed(ids)?;
        let mut moved = Moved::All;
        for part in parsed.chunks(AT_A_TIME) {
            if stop.load(Ordering::Relaxed) {
                return Ok(Moved::Stopped);
            }
            for (id, result) in part.iter().zip(self.0.hasten(part).await?) {
                if result != CancelResult::Done {
                    moved = Moved::Partly;
                }
                say(match result {
                    CancelResult::Done => answer(id, "flushed", None),
                    CancelResult::Unknown => answer(id, "gone", Some("it no longer waits")),
                    CancelResult::TooLate => answer(id, "gone", Some("it is being published")),
                });
            }
        }
        Ok(moved)
    }

    /// Parks messages as `requested`, and says a line of JSON for each. What `stop` leaves has no line.
    ///
    /// # Errors
    /// An id is none: then nothing was done.
    pub async fn park(
        &self,
        ids: &[String],
        client: &Client,
        stop: &AtomicBool,
        mut say: impl FnMut(String),
    ) -> Result<Moved> {
        let parsed = all_parsed(ids)?;
        let retriers = RetrierCache::new(client.clone());
        let mut moved = Moved::All;
        for id in &parsed {
            if stop.load(Ordering::Relaxed) {
                return Ok(Moved::Stopped);
            }
            let result = park(self.0.as_ref(), &retriers, id, async |_| Ok(())).await;
            moved = moved.max(match &result {
                ParkResult::Parked => Moved::All,
                ParkResult::Twice(_) => Moved::Twice,
                ParkResult::Unknown | ParkResult::TooLate | ParkResult::Failed(_) => Moved::Partly,
            });
            say(match result {
                ParkResult::Parked => answer(id, "parked", None),
                ParkResult::Twice(why) => {
                    answer(id, "parked", Some(&format!("it may come back: {why}")))
                }
                ParkResult::Unknown => answer(id, "gone", Some("it no longer waits")),
                ParkResult::TooLate => answer(id, "gone", Some("it is being published")),
                ParkResult::Failed(why) => answer(id, "failed", Some(&why)),
            });
        }
        Ok(moved)
    }

    /// Deletes one message for good.
    ///
    /// # Errors
    /// It may or may not have been deleted; or a sentence that says why it is not.
    pub async fn cancel(&self, id: &str) -> Result<()> {
        match self.0.cancel(&parsed(id)?).await? {
            CancelResult::Done => Ok(()),
            CancelResult::Unknown => Err(unknown(id)),
            CancelResult::TooLate => Err(Error::Refused(format!(
                "{id} is being published at this moment"
            ))),
        }
    }
}

fn parsed(id: &str) -> Result<Id> {
    Id::parse(id).ok_or_else(|| {
        Error::Configuration(format!(
            "{id} is no id of a message; `--waiting` lists them"
        ))
    })
}

fn all_parsed(ids: &[String]) -> Result<Vec<Id>> {
    ids.iter().map(|id| parsed(id)).collect()
}

fn unknown(id: &str) -> Error {
    Error::Refused(format!("nothing waits with the id {id}"))
}

fn answer(id: &Id, outcome: &str, error: Option<&str>) -> String {
    json!({"id": id.as_str(), "outcome": outcome, "error": error}).to_string()
}

fn line(listed: &ListedMessage) -> Value {
    let (message, draft) = (&listed.message, listed.message.draft());
    let id = |id: &Option<retryrmq::types::ShortString>| id.as_ref().map(ToString::to_string);
    let (queue, exchange) = match message.destination() {
        Destination::Queue(queue) => (Some(queue), None),
        Destination::Exchange(exchange, _) => (None, Some(exchange)),
    };
    let at = jiff::Timestamp::from_millisecond(i64::try_from(listed.due).unwrap_or(i64::MAX));
    let retries = header(message, headers::COUNT).and_then(|count| count.parse::<u32>().ok());
    json!({
        "id": message.id().as_str(),
        "mark": message.id().mark(),
        "message_id": id(draft.properties.message_id()),
        "waits_for": queue_of(message),
        "queue": queue,
        "exchange": exchange,
        "routing_key": draft.routing_key,
        "delayed_from": match WaitReason::of(draft) {
            WaitReason::Delayed(from) => Some(from),
            WaitReason::Next | WaitReason::Same => None,
        },
        "retries": retries.unwrap_or(0),
        "error": header(message, headers::ERROR).unwrap_or_default(),
        "error_type": header(message, headers::ERROR_TYPE).unwrap_or_default(),
        "delay_ms": milliseconds(draft.delay),
        "due": at.ok().map(|at| at.to_string()),
        "remaining_ms": milliseconds(listed.remaining),
        "bytes": listed.body_size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_store_the_way_to_the_brokers_list_is_told() {
        let why = StoreInspector::open(&ServiceConfig::default(), "amqp://localhost").unwrap_err();
        assert!(why.to_string().contains("retryrmq waiting ls"), "{why}");
    }
}
