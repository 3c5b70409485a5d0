//! Consumers come, go, and get what they ask for.

use super::{Broker, MethodRefused};
use crate::nondeterminism::UnknownOutcome;
use crate::queue::{ConsumerKey, Context, Holder, Queue, QueueId, Return};
use crate::settings::QueueType;
use crate::{ConnectionId, Frame, Name, Version, method::Consume};

impl Broker {
    pub(super) fn consume(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        consume: &Consume,
    ) -> Result<(), MethodRefused> {
        let queue = self.visible(connection, &consume.queue)?;
        let (Some(known), Some(found)) = (self.channel(connection, channel), self.queue(queue))
        else {
            return Ok(());
        };
        if known.consumers.contains_key(&consume.tag) {
            let text = format!(
                "NOT_ALLOWED - attempt to reuse consumer tag '{}'",
                consume.tag
            );
            return Err(MethodRefused::Connection(crate::Refusal {
                code: 530,
                text,
            }));
        }
        let name = &consume.queue;
        let vhost = &self.profile.vhost;
        let taken = found.exclusive_consumer || (consume.exclusive && found.consumer_count() > 0);
        if taken {
            return Err(Self::refusal(
                403,
                format!("ACCESS_REFUSED - queue '{name}' in vhost '{vhost}' in exclusive use"),
            ));
        }
        let prefetch = known.prefetch;
        let holder = Holder {
            connection,
            channel,
            channel_key: known.key,
            tag: consume.tag.clone(),
            no_ack: consume.no_ack,
            get: false,
        };
        let key = self.new_consumer();
        self.push(
            connection,
            channel,
            Frame::ConsumeOk {
                tag: consume.tag.clone(),
            },
        );
        let exclusive = consume.exclusive;
        let key = self.with_queue(queue, |queue, context| {
            queue.exclusive_consumer = exclusive;
            queue.subscribe(context, key, holder, prefetch)
        });
        if let (Some(key), Some(known)) = (key, self.channel_mut(connection, channel)) {
            known.consumers.insert(consume.tag.clone(), (queue, key));
            known.touch(queue);
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, connection: ConnectionId, channel: u16, tag: &Name) {
        let known = self
            .channel_mut(connection, channel)
            .and_then(|known| known.consumers.remove(tag));
        if let Some((queue, key)) = known {
            let on_their_way = self.stop_what_is_on_its_way(connection, channel, queue, tag);
            self.with_queue(queue, |queue, context| {
                queue.exclusive_consumer = false;
                queue.cancel(context, key);
                // Without one this would wake a queue that a cancel leaves asleep.
                if !on_their_way.is_empty() {
                    queue.give_back(context, &on_their_way, Return::OnTheWay);
                }
            });
        }
        self.apply();
        self.push(connection, channel, Frame::CancelOk { tag: tag.clone() });
        if let Some((queue, _)) = known {
            self.delete_if_abandoned(queue);
        }
    }

    /// Takes the newest deliveries that the client has not received from their channel, if they had not passed it yet.
    fn stop_what_is_on_its_way(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        queue: QueueId,
        consumer: &Name,
    ) -> Vec<u64> {
        let mut stopped = Vec::new();
        if !self.queue(queue).is_some_and(Queue::is_quorum) {
            return stopped;
        }
        while let Some(place) = self.newest_outbound(connection, channel, consumer)
            && self.nondeterminism.happens(UnknownOutcome::OnTheWay)
        {
            if let Some(known) = self.connection_mut(connection) {
                known.outbound.remove(place);
            }
            if let Some(known) = self.channel_mut(connection, channel) {
                known.next_tag -= 1;
                stopped.extend(known.unsettled.pop_back().map(|newest| newest.handout));
            }
        }
        stopped.reverse();
        stopped
    }

    /// The place of the channel's newest delivery, if that is to this consumer, waits for its client and is to be settled.
    fn newest_outbound(
        &self,
        connection: ConnectionId,
        channel: u16,
        consumer: &Name,
    ) -> Option<usize> {
        let outbound = &self.connection(connection)?.outbound;
        let (place, tag) = outbound
            .iter()
            .enumerate()
            .rev()
            .find_map(|(place, (on, frame))| match frame {
                Frame::Deliver(delivery) | Frame::Got(delivery) if *on == channel => {
                    Some((place, delivery.tag))
                }
                _ => None,
            })?;
        let newest = self.channel(connection, channel)?.unsettled.back()?;
        (newest.tag == tag && newest.consumer_tag == *consumer).then_some(place)
    }

    pub(super) fn get(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        queue: &Name,
        no_ack: bool,
    ) -> Result<(), MethodRefused> {
        let id = self.visible(connection, queue)?;
        let Some(known) = self.channel_mut(connection, channel) else {
            return Ok(());
        };
        known.touch(id);
        let holder = Holder {
            connection,
            channel,
            channel_key: known.key,
            tag: Name::from(known.next_tag.to_string()),
            no_ack,
            get: true,
        };
        let key = self.new_consumer();
        let before = self.effects.len();
        let key = self.with_queue(id, |queue, context| {
            let key = queue.subscribe(context, key, holder, 1);
            queue.drop_get(key);
            key
        });
        let got = self.effects[before..].iter().any(|effect| {
            matches!(effect, crate::queue::Effect::Deliver { consumer, .. } if Some(*consumer) == key)
        });
        if !got {
            self.push(connection, channel, Frame::GetEmpty);
        }
        Ok(())
    }

    /// The queue has ended a consumer.
    pub(super) fn end_consumer(&mut self, holder: &Holder) {
        let Some(channel) = self.channel_mut(holder.connection, holder.channel) else {
            return;
        };
        if channel.key == holder.channel_key && channel.consumers.remove(&holder.tag).is_some() {
            let tag = holder.tag.clone();
            self.push(holder.connection, holder.channel, Frame::Cancel { tag });
        }
    }

    /// A delivery has a time in which it has to be settled.
    pub(super) fn be_patient(&mut self, connection: ConnectionId, channel: u16, queue: QueueId) {
        let Some(patience) = self.patience_with(queue) else {
            return;
        };
        let due = self.now + patience;
        if let Some(known) = self.channel_mut(connection, channel)
            && known.patience.is_none_or(|patience| due < patience)
        {
            known.patience = Some(due);
            let channel_key = known.key;
            self.event_queue.add(
                due,
                crate::event_queue::Event::Patience {
                    connection,
                    channel,
                    channel_key,
                },
            );
        }
    }

    /// How long a delivery of this queue may stay unsettled.
    fn patience_with(&self, queue: QueueId) -> Option<std::time::Duration> {
        let queue = self.queue(queue)?;
        let version = self.profile.version;
        if version >= Version::V4_3 && queue.kind == QueueType::Classic {
            return None;
        }
        let own = (version >= Version::V4_0).then_some(queue.settings.consumer_timeout);
        own.flatten().or(self.profile.consumer_timeout)
    }

    /// Looks for deliveries that were unsettled for too long. They cost the channel, and on 4.3 the consumer.
    pub(super) fn lose_patience(&mut self, connection: ConnectionId, channel: u16) {
        let Some(known) = self.channel(connection, channel) else {
            return;
        };
        let now = self.now;
        let mut late: std::collections::BTreeMap<(QueueId, ConsumerKey), Vec<u64>> =
            std::collections::BTreeMap::new();
        let mut next = None;
        for unsettled in &known.unsettled {
            let Some(patience) = self.patience_with(unsettled.queue) else {
                continue;
            };
            let held = (self.queue(unsettled.queue))
                .is_some_and(|queue| queue.held.contains_key(&unsettled.handout));
            let due = unsettled.since + patience;
            if due > now {
                next = Some(next.map_or(due, |next: std::time::Duration| next.min(due)));
            } else if held || self.profile.version < Version::V4_3 {
                let consumer = (unsettled.queue, unsettled.consumer);
                late.entry(consumer).or_default().push(unsettled.handout);
            }
        }
        if let Some(known) = self.channel_mut(connection, channel) {
            known.patience = next;
            let channel_key = known.key;
            if let Some(next) = next {
                self.event_queue.add(
                    next,
                    crate::event_queue::Event::Patience {
                        connection,
                        channel,
                        channel_key,
                    },
                );
            }
        }
        if late.is_empty() {
            return;
        }
        if self.profile.version < Version::V4_3 {
            let text = format!(
                "PRECONDITION_FAILED - delivery acknowledgement on channel {channel} timed out. Timeout value used: {} \
                 ms. This timeout value can be configured, see consumers doc guide to learn more",
                (self.profile.consumer_timeout.unwrap_or_default()).as_millis()
            );
            self.close_channel_with(connection, channel, 406, text);
            return;
        }
        for ((queue, consumer), handouts) in late {
            self.with_queue(queue, |queue, context| {
                queue.time_out(context, consumer, &handouts);
            });
        }
        self.apply();
    }

    fn new_consumer(&mut self) -> ConsumerKey {
        self.next_consumer += 1;
        ConsumerKey(self.next_consumer)
    }

    /// A queue that goes with its last consumer goes.
    pub(super) fn delete_if_abandoned(&mut self, queue: QueueId) {
        let abandoned =
            |queue: &Queue| queue.auto_delete && queue.had_consumers && queue.consumer_count() == 0;
        if self.queue(queue).is_some_and(abandoned) {
            self.remove_queue(queue);
        }
    }

    /// Deletes a queue with what is in it, and tells its consumers.
    pub(super) fn remove_queue(&mut self, id: QueueId) {
        self.with_queue(id, |queue, context: &mut Context<'_>| {
            queue.end_consumers(context);
        });
        if let Some(queue) = self
            .queues
            .get_mut(id.0 as usize)
            .and_then(|slot| slot.take())
        {
            self.names.remove(&queue.name);
        }
        for exchange in self.exchanges.values_mut() {
            exchange.bindings.retain(|(_, queue)| *queue != id);
        }
        self.apply();
    }
}
