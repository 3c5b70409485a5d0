//! A message in the broker.

use crate::death::{Deaths, Reason, die_in_headers};
use crate::{Name, Version};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use std::sync::Arc;

/// Which publish a message comes from, the same in all queues it passes through. Numbered from 1 by the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

/// A message, shared by the queues it is in.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) id: MessageId,
    pub(crate) exchange: Name,
    /// The routing key it was published with, then those in `CC` and `BCC`.
    pub(crate) routing_keys: Vec<Name>,
    /// How many of the routing keys come from `BCC`; they are the last ones.
    pub(crate) blind: usize,
    pub(crate) properties: Arc<BasicProperties>,
    pub(crate) body: Arc<[u8]>,
    pub(crate) persistent: bool,
    /// Whether it cannot be delivered over AMQP 0-9-1.
    pub(crate) unreadable: bool,
    /// The message's own time to live in milliseconds. Its death ends it.
    pub(crate) expiration: Option<u64>,
    /// Since 4.0 deaths are kept beside the message, which is why nobody can forge them.
    pub(crate) deaths: Option<Box<Deaths>>,
    /// Since 4.0: how often it had been delivered in vain when it died last.
    pub(crate) delivery_count: Option<i64>,
}

/// How and where a message dies.
pub(crate) struct End<'a> {
    pub(crate) version: Version,
    pub(crate) reason: Reason,
    pub(crate) queue: &'a Name,
    /// The exchange it goes to.
    pub(crate) exchange: &'a Name,
    /// The key it goes with, when the queue names one.
    pub(crate) routing_key: Option<&'a Name>,
    /// Seconds since 1970.
    pub(crate) time: u64,
    pub(crate) delivery_count: Option<i64>,
}

impl Message {
    /// The message as it goes on after its death.
    pub(crate) fn die(&self, end: &End<'_>) -> Message {
        let mut dead = self.clone();
        let keys: Vec<Name> = self.routing_keys[..self.routing_keys.len() - self.blind].to_vec();
        let own_time = self.expiration.map(|_| {
            let text = self.properties.expiration().as_ref();
            text.map(|text| text.as_str().to_owned())
                .unwrap_or_default()
        });
        if end.version == Version::V3_10 {
            let mut properties = (*self.properties).clone();
            let headers = properties.headers().clone().unwrap_or_default();
            let mut headers = die_in_headers(&headers, end, &self.exchange, &keys, own_time);
            if end.routing_key.is_some() {
                headers = without(&headers, "CC");
            }
            properties = properties.with_headers(headers);
            dead.properties = Arc::new(without_expiration(properties));
        } else {
            let deaths = dead.deaths.get_or_insert_default();
            deaths.record(end, &self.exchange, &keys, own_time);
            if self.expiration.is_some() {
                dead.properties = Arc::new(without_expiration((*self.properties).clone()));
            }
            dead.delivery_count = end.delivery_count.or(self.delivery_count);
        }
        dead.expiration = None;
        dead.exchange = end.exchange.clone();
        if let Some(key) = end.routing_key {
            dead.routing_keys = vec![key.clone()];
            dead.blind = 0;
        }
        dead
    }

    /// Whether a queue must not have it again, because it goes round in circles and nobody takes part.
    pub(crate) fn is_cycle(&self, version: Version, queue: &str) -> bool {
        if version == Version::V3_10 {
            return crate::death::is_cycle_in_headers(self.properties.headers().as_ref(), queue);
        }
        (self.deaths.as_ref()).is_some_and(|deaths| deaths.is_cycle(queue))
    }

    /// The properties as a consumer gets them, with these counts.
    pub(crate) fn outgoing(
        &self,
        delivery_count: Option<i64>,
        acquired: Option<i64>,
    ) -> Arc<BasicProperties> {
        if self.deaths.is_none() && delivery_count.is_none() && acquired.is_none() {
            return self.properties.clone();
        }
        let mut headers = self.properties.headers().clone().unwrap_or_default();
        if let Some(deaths) = &self.deaths {
            deaths.write(&mut headers);
        }
        let counts = [
            ("x-delivery-count", delivery_count),
            ("x-acquired-count", acquired),
        ];
        for (name, count) in counts {
            if let Some(count) = count {
                headers.insert(name.into(), AMQPValue::LongLongInt(count));
            }
        }
        Arc::new((*self.properties).clone().with_headers(headers))
    }
}

/// A table without one of its fields, because [`FieldTable`] does not let go of any.
pub(crate) fn without(table: &FieldTable, name: &str) -> FieldTable {
    let rest = table.inner().iter().filter(|(key, _)| key.as_str() != name);
    let rest: std::collections::BTreeMap<_, _> = rest
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    FieldTable::from(rest)
}

/// Properties without expiration, because [`BasicProperties`] does not let go of any.
fn without_expiration(from: BasicProperties) -> BasicProperties {
    let mut to = BasicProperties::default();
    macro_rules! keep {
        ($($property:ident => $with:ident),* $(,)?) => {
            $(if let Some(value) = from.$property().clone() { to = to.$with(value); })*
        };
    }
    keep!(
        content_type => with_content_type,
        content_encoding => with_content_encoding,
        headers => with_headers,
        delivery_mode => with_delivery_mode,
        priority => with_priority,
        correlation_id => with_correlation_id,
        reply_to => with_reply_to,
        message_id => with_message_id,
        timestamp => with_timestamp,
        kind => with_type,
        user_id => with_user_id,
        app_id => with_app_id,
        cluster_id => with_cluster_id,
    );
    to
}
