//! Queues are declared, deleted, purged and bound.

use super::{Broker, MethodRefused};
use crate::declaration::{Existing, check, compare};
use crate::event_queue::Event;
use crate::method::Declare;
use crate::queue::{Declaration, Queue, QueueId};
use crate::settings::{QueueType, Settings};
use crate::{ConnectionId, Frame, Name};

impl Broker {
    pub(super) fn declare(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        declare: Declare,
    ) -> Result<(), MethodRefused> {
        if let Some(id) = self.names.get(&declare.queue).copied() {
            self.visible(connection, &declare.queue)?;
            if !declare.passive {
                self.declare_again(id, &declare)?;
            }
        } else if declare.passive {
            return Err(self.no_queue(&declare.queue));
        } else {
            let kind = check(&self.profile, &declare).map_err(MethodRefused::Channel)?;
            self.create(&declare, kind, Some(connection));
        }
        let Some(queue) = self.named(&declare.queue) else {
            return Ok(());
        };
        let frame = Frame::Declared {
            queue: queue.name.clone(),
            messages: count(queue.ready()),
            consumers: count(queue.consumer_count()),
        };
        self.push(connection, channel, frame);
        Ok(())
    }

    fn declare_again(&mut self, id: QueueId, declare: &Declare) -> Result<(), MethodRefused> {
        let now = self.now;
        let Some(queue) = self.queue(id) else {
            return Ok(());
        };
        if declare.exclusive != queue.exclusive.is_some() {
            return Err(self.locked(&declare.queue));
        }
        let existing = Existing {
            kind: queue.kind,
            durable: queue.durable,
            auto_delete: queue.auto_delete,
            arguments: &queue.arguments,
        };
        compare(&self.profile, &existing, declare).map_err(MethodRefused::Channel)?;
        if let Some(Some(queue)) = self.queues.get_mut(id.0 as usize)
            && queue.kind == QueueType::Classic
        {
            queue.last_used = now;
        }
        Ok(())
    }

    pub(super) fn create(
        &mut self,
        declare: &Declare,
        kind: QueueType,
        connection: Option<ConnectionId>,
    ) -> QueueId {
        let id = QueueId(count(self.queues.len()));
        let policy = self.policy_of(&declare.queue);
        let settings = Settings::of(&self.profile, kind, &declare.arguments, policy.as_ref());
        let lease = settings.expires;
        let birth = Declaration {
            id,
            name: declare.queue.clone(),
            kind,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            exclusive: connection.filter(|_| declare.exclusive),
            arguments: declare.arguments.clone(),
            settings,
        };
        self.queues.push(Some(Queue::new(birth, self.now)));
        self.names.insert(declare.queue.clone(), id);
        if let Some(lease) = lease {
            self.event_queue
                .add(self.now + lease, Event::Lease { queue: id });
        }
        id
    }

    pub(super) fn delete(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        queue: &Name,
    ) -> Result<(), MethodRefused> {
        let mut messages = 0;
        if self.names.contains_key(queue) {
            let id = self.visible(connection, queue)?;
            messages = self.queue(id).map_or(0, |queue| count(queue.ready()));
            self.remove_queue(id);
        }
        self.push(connection, channel, Frame::Deleted { messages });
        Ok(())
    }

    pub(super) fn purge(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        queue: &Name,
    ) -> Result<(), MethodRefused> {
        let id = self.visible(connection, queue)?;
        let messages = self.with_queue(id, |queue, context| queue.purge(context));
        let messages = count(messages.unwrap_or(0));
        self.push(connection, channel, Frame::Purged { messages });
        Ok(())
    }

    pub(super) fn bind(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        queue: &Name,
        exchange: &Name,
        key: &Name,
    ) -> Result<(), MethodRefused> {
        let id = self.visible(connection, queue)?;
        let vhost = &self.profile.vhost;
        let missing = format!("NOT_FOUND - no exchange '{exchange}' in vhost '{vhost}'");
        let known = self
            .exchanges
            .get_mut(exchange)
            .ok_or_else(|| Self::refusal(404, missing))?;
        let binding = (key.clone(), id);
        if !known.bindings.contains(&binding) {
            known.bindings.push(binding);
        }
        self.push(connection, channel, Frame::Bound);
        Ok(())
    }

    /// A queue that exists and does not belong to another connection.
    pub(super) fn visible(
        &self,
        connection: ConnectionId,
        queue: &Name,
    ) -> Result<QueueId, MethodRefused> {
        let found = self.named(queue).ok_or_else(|| self.no_queue(queue))?;
        match found.exclusive {
            Some(owner) if owner != connection => Err(self.locked(queue)),
            _ => Ok(found.id),
        }
    }

    fn locked(&self, queue: &str) -> MethodRefused {
        let vhost = &self.profile.vhost;
        Self::refusal(
            405,
            format!(
                "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. It could \
                 be originally declared on another connection or the exclusive property value does not match that of \
                 the original declaration."
            ),
        )
    }
}

pub(super) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
