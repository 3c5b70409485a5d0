//! Publishing: what is refused, where it goes, when it is confirmed.

use super::{Broker, MethodRefused};
use crate::event_queue::Event;
use crate::frame::Returned;
use crate::message::{Message, without};
use crate::method::Publish;
use crate::nondeterminism::Delay;
use crate::queue::{Publisher, QueueId};
use crate::size::encoded;
use crate::{ConnectionId, Frame, Name, Refusal, Version};
use lapin::types::AMQPValue;
use std::sync::Arc;

/// Expirations go up to ten years of 365 days.
const LONGEST: u64 = 315_360_000_000;

impl Broker {
    pub(super) fn publish(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        publish: Publish,
    ) -> Result<(), MethodRefused> {
        self.check(&publish)?;
        let Some(known) = self.channel_mut(connection, channel) else {
            return Ok(());
        };
        let channel_key = known.key;
        let number = known.publishes.as_mut().map(|count| {
            *count += 1;
            *count
        });
        let message = self.message(&publish)?;
        let targets = self.route(&message.exchange, &message.routing_keys);
        if targets.is_empty() {
            if publish.mandatory {
                let returned = Returned {
                    exchange: publish.exchange,
                    routing_key: publish.routing_key,
                    properties: publish.properties,
                    body: publish.body,
                    message: message.id,
                };
                self.push(connection, channel, Frame::Return(Box::new(returned)));
            }
            if let Some(number) = number {
                let frame = Frame::Confirm {
                    publish: number,
                    stored: true,
                };
                self.push(connection, channel, frame);
            }
            self.block_if_alarmed(connection);
            return Ok(());
        }
        let safe_at = self.now + self.nondeterminism.delay(Delay::Confirm);
        let message = Arc::new(message);
        let mut stored = true;
        for target in targets {
            let limited = self
                .queue(target)
                .is_some_and(|queue| queue.settings.max_length.is_some());
            if limited && let Some(known) = self.channel_mut(connection, channel) {
                known.touch(target);
            }
            let publisher = Publisher::Channel(channel_key);
            let message = message.clone();
            stored &= self
                .with_queue(target, |queue, context| {
                    queue.enqueue(context, publisher, message, safe_at)
                })
                .unwrap_or(false);
        }
        if let Some(publish) = number {
            self.event_queue.add(
                safe_at,
                Event::Confirm {
                    connection,
                    channel,
                    channel_key,
                    publish,
                    stored,
                },
            );
        }
        self.block_if_alarmed(connection);
        Ok(())
    }

    fn check(&self, publish: &Publish) -> Result<(), MethodRefused> {
        let properties = &publish.properties;
        let size = encoded(properties);
        if size > self.profile.largest_properties {
            let text = format!("FRAME_ERROR - the properties take {size} bytes");
            return Err(MethodRefused::Connection(Refusal { code: 501, text }));
        }
        let failed =
            |text: String| Err(Self::refusal(406, format!("PRECONDITION_FAILED - {text}")));
        let (body, most) = (publish.body.len(), self.profile.largest_body);
        if body > most {
            return failed(format!(
                "message size {body} is larger than configured max size {most}"
            ));
        }
        if let Some(user) = properties.user_id()
            && user.as_str() != self.profile.user
        {
            return failed(format!(
                "user_id property set to '{user}' but authenticated user was '{}'",
                self.profile.user
            ));
        }
        // No client of this model consumes direct replies.
        if properties
            .reply_to()
            .as_ref()
            .is_some_and(|to| to.as_str() == "amq.rabbitmq.reply-to")
        {
            return failed("fast reply consumer does not exist".to_owned());
        }
        if let Some(expiration) = properties.expiration() {
            let valid = (expiration.as_str().parse()).is_ok_and(|time: u64| time <= LONGEST);
            if !valid {
                return failed(format!("invalid expiration '{expiration}'"));
            }
        }
        if !publish.exchange.is_empty() && !self.exchanges.contains_key(&publish.exchange) {
            return Err(Self::refusal(
                404,
                format!(
                    "NOT_FOUND - no exchange '{}' in vhost '{}'",
                    publish.exchange, self.profile.vhost
                ),
            ));
        }
        Ok(())
    }

    /// The message as it is stored, `BCC` taken out.
    fn message(&mut self, publish: &Publish) -> Result<Message, MethodRefused> {
        let mut routing_keys = vec![publish.routing_key.clone()];
        let mut properties = publish.properties.clone();
        let mut blind = 0;
        if let Some(headers) = publish.properties.headers() {
            for name in ["CC", "BCC"] {
                let Some(value) = headers.inner().get(name) else {
                    continue;
                };
                let keys = copies(name, value)?;
                if name == "BCC" {
                    blind = keys.len();
                    let rest = without(headers, name);
                    properties = Arc::new((*properties).clone().with_headers(rest));
                }
                routing_keys.extend(keys);
            }
        }
        let expiration = properties.expiration().as_ref();
        Ok(Message {
            id: self.new_message(),
            exchange: publish.exchange.clone(),
            routing_keys,
            blind,
            unreadable: publish.unreadable && self.profile.version >= Version::V4_0,
            persistent: *properties.delivery_mode() == Some(2),
            expiration: expiration.and_then(|time| time.as_str().parse().ok()),
            body: publish.body.clone(),
            properties,
            deaths: None,
            delivery_count: None,
        })
    }

    /// The queues that an exchange sends a message with these keys to.
    pub(super) fn route(&self, exchange: &str, keys: &[Name]) -> Vec<QueueId> {
        let mut targets = Vec::with_capacity(1);
        let mut add = |queue: QueueId| {
            if !targets.contains(&queue) {
                targets.push(queue);
            }
        };
        if exchange.is_empty() {
            for key in keys {
                if let Some(queue) = self.names.get(key) {
                    add(*queue);
                }
            }
        } else if let Some(exchange) = self.exchanges.get(exchange) {
            for (key, queue) in &exchange.bindings {
                if exchange.fanout || keys.contains(key) {
                    add(*queue);
                }
            }
        }
        targets
    }

    /// During an alarm a connection that publishes is no longer read.
    fn block_if_alarmed(&mut self, connection: ConnectionId) {
        if self.alarm
            && let Some(known) = self.connection_mut(connection)
            && !known.blocked
        {
            known.blocked = true;
            self.push(connection, 0, Frame::Blocked);
        }
    }
}

fn copies(name: &str, value: &AMQPValue) -> Result<Vec<Name>, MethodRefused> {
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => Some(Name::from(String::from_utf8_lossy(text.as_bytes()))),
        _ => None,
    };
    match value {
        AMQPValue::FieldArray(keys) => Ok(keys.as_slice().iter().filter_map(text).collect()),
        _ => Err(Broker::refusal(
            406,
            format!("PRECONDITION_FAILED - unacceptable_type_in_{name}_header"),
        )),
    }
}
