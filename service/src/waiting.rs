//! What waits in the store of a policy file, for an operator: listed, and cancelled by id.

use serde_json::json;

use crate::{
    ServiceConfig,
    intake::WaitReason,
    service::open_store,
    store::{
        CancelResult, Destination, Error, Id, ListedMessage, Page, Result, Store, redis::RedisStore,
    },
};

/// As many are asked for at a time.
const PAGE: usize = 200;

/// The store of a policy file, looked at from outside the service.
#[derive(Debug)]
pub struct StoreInspector(std::sync::Arc<RedisStore>);

impl StoreInspector {
    /// The store that this policy names, for the virtual host of this URL.
    ///
    /// # Errors
    /// [`Error::Configuration`]: there is none, or it cannot work.
    pub fn open(service_config: &ServiceConfig, url: &str) -> Result<Self> {
        let store = open_store(service_config, url).map_err(Error::Configuration)?;
        store.map(Self).ok_or_else(|| {
            let why = "the policy file has no [store.redis]: what waits, waits in queues of the broker, which `retryrmq waiting ls QUEUE` lists";
            Error::Configuration(why.to_owned())
        })
    }

    /// Says a line of JSON for each message, by the time when it is due.
    ///
    /// # Errors
    /// The store cannot be asked now.
    pub async fn list(&self, mut say: impl FnMut(String)) -> Result<()> {
        let mut from = None;
        loop {
            let page = Page {
                from,
                limit: PAGE,
                destination: None,
            };
            let listing = self.0.list(&page).await?;
            for message in &listing.messages {
                say(line(message));
            }
            from = listing.next;
            if from.is_none() {
                return Ok(());
            }
        }
    }

    /// Deletes one message for good.
    ///
    /// # Errors
    /// It may or may not have been deleted; or a sentence that says why it is not.
    pub async fn cancel(&self, id: &str) -> Result<()> {
        let parsed = Id::parse(id);
        let parsed = parsed.ok_or_else(|| {
            Error::Configuration(format!(
                "{id} is no id of a message; `--waiting` lists them"
            ))
        })?;
        match self.0.cancel(&parsed).await? {
            CancelResult::Done => Ok(()),
            CancelResult::Unknown => Err(Error::Refused(format!("nothing waits with the id {id}"))),
            CancelResult::TooLate => Err(Error::Refused(format!(
                "{id} is being published at this moment"
            ))),
        }
    }
}

fn line(listed: &ListedMessage) -> String {
    let draft = listed.message.draft();
    let id = |id: &Option<retryrmq::types::ShortString>| id.as_ref().map(ToString::to_string);
    let (queue, exchange) = match listed.message.destination() {
        Destination::Queue(queue) => (Some(queue), None),
        Destination::Exchange(exchange, _) => (None, Some(exchange)),
    };
    let at = jiff::Timestamp::from_millisecond(i64::try_from(listed.due).unwrap_or(i64::MAX));
    json!({
        "id": listed.message.id().as_str(),
        "message_id": id(draft.properties.message_id()),
        "queue": queue,
        "exchange": exchange,
        "routing_key": draft.routing_key,
        "delayed_from": match WaitReason::of(draft) {
            WaitReason::Delayed(from) => Some(from),
            WaitReason::Next | WaitReason::Same => None,
        },
        "due": at.ok().map(|at| at.to_string()),
        "remaining_ms": u64::try_from(listed.remaining.as_millis()).unwrap_or(u64::MAX),
        "bytes": listed.body_size,
    })
    .to_string()
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
