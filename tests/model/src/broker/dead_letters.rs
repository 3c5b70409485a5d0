//! Dead letters on their way.

use super::Broker;
use crate::death::Reason;
use crate::event_queue::Event;
use crate::message::{End, Message};
use crate::nondeterminism::Delay;
use crate::queue::QueueId;
use std::sync::Arc;

impl Broker {
    /// A message leaves a queue for its dead-letter exchange, and whether it arrives is nobody's business.
    pub(super) fn bury(
        &mut self,
        queue: QueueId,
        message: &Arc<Message>,
        reason: Reason,
        delivery_count: Option<i64>,
    ) {
        let Some((message, targets)) = self.readdress(queue, message, reason, delivery_count)
        else {
            return;
        };
        let at = self.now + self.nondeterminism.delay(Delay::DeadLetter);
        let at = self.in_order(queue, at);
        let message = Arc::new(message);
        self.event_queue.add(
            at,
            Event::Arrive {
                targets,
                message,
                worker: None,
            },
        );
    }

    /// The worker of a quorum queue takes up what it can.
    pub(super) fn carry(&mut self, id: QueueId) {
        loop {
            let Some(Some(queue)) = self.queues.get_mut(id.0 as usize) else {
                return;
            };
            let Some(number) = queue.worker.take_up() else {
                break;
            };
            self.forward(id, number);
        }
        self.set_retry(id);
    }

    /// Tries again what is stuck.
    pub(super) fn retry(&mut self, id: QueueId) {
        let Some(Some(queue)) = self.queues.get_mut(id.0 as usize) else {
            return;
        };
        if queue.worker.timer.is_none_or(|timer| timer > self.now) {
            return;
        }
        queue.worker.timer = None;
        for number in queue.worker.stuck() {
            self.forward(id, number);
        }
        self.set_retry(id);
    }

    fn set_retry(&mut self, id: QueueId) {
        let at = self.now + self.profile.dead_letter_patience;
        let Some(Some(queue)) = self.queues.get_mut(id.0 as usize) else {
            return;
        };
        if queue.worker.is_busy() && queue.worker.timer.is_none() {
            queue.worker.timer = Some(at);
            self.event_queue.add(at, Event::Retry { queue: id });
        }
    }

    fn forward(&mut self, id: QueueId, number: u64) {
        let Some(dead) = self
            .queue(id)
            .and_then(|queue| queue.worker.pending(number))
        else {
            return;
        };
        let dead = dead.clone();
        let sent = self.readdress(id, &dead.message, dead.reason, dead.delivery_count);
        let Some((message, targets)) = sent.filter(|(_, targets)| !targets.is_empty()) else {
            return;
        };
        if let Some(Some(queue)) = self.queues.get_mut(id.0 as usize) {
            queue.worker.send(number);
        }
        let at = self.now + self.nondeterminism.delay(Delay::DeadLetter);
        let at = self.in_order(id, at);
        self.event_queue.add(
            at,
            Event::Arrive {
                targets,
                message: Arc::new(message),
                worker: Some((id, number)),
            },
        );
    }

    /// The message as it goes on, and to which queues; those where it would go round in circles are left out.
    fn readdress(
        &self,
        queue: QueueId,
        message: &Message,
        reason: Reason,
        delivery_count: Option<i64>,
    ) -> Option<(Message, Vec<QueueId>)> {
        let queue = self.queue(queue)?;
        let version = self.profile.version;
        let message = message.die(&End {
            version,
            reason,
            queue: &queue.name,
            exchange: queue.settings.dead_letter_exchange.as_ref()?,
            routing_key: queue.settings.dead_letter_routing_key.as_ref(),
            time: self.profile.epoch + self.now.as_secs(),
            delivery_count,
        });
        let mut targets = self.route(&message.exchange, &message.routing_keys);
        if reason != Reason::Rejected {
            targets.retain(|target| {
                (self.queue(*target)).is_some_and(|target| !message.is_cycle(version, &target.name))
            });
        }
        Some((message, targets))
    }

    /// No dead letter of a queue overtakes another.
    fn in_order(&mut self, queue: QueueId, at: std::time::Duration) -> std::time::Duration {
        let Some(Some(queue)) = self.queues.get_mut(queue.0 as usize) else {
            return at;
        };
        queue.last_burial = queue.last_burial.max(at);
        queue.last_burial
    }
}
