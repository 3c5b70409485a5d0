//! What happens by itself.

use super::Broker;
use crate::Frame;
use crate::event_queue::Event;
use crate::message::Message;
use crate::queue::{Publisher, QueueId};
use std::sync::Arc;
use std::time::Duration;

impl Broker {
    /// All that is due by then happens, each at its time.
    pub(super) fn happen(&mut self, by: Duration) {
        while let Some((at, event)) = self.event_queue.due(by) {
            self.now = self.now.max(at);
            if self.running {
                self.happen_one(event);
                self.apply();
            }
        }
    }

    fn happen_one(&mut self, event: Event) {
        match event {
            Event::Confirm {
                connection,
                channel,
                channel_key,
                publish,
                stored,
            } => {
                let same = self
                    .channel(connection, channel)
                    .is_some_and(|known| known.key == channel_key);
                if same {
                    self.push(connection, channel, Frame::Confirm { publish, stored });
                }
            }
            Event::Arrive {
                targets,
                message,
                worker,
            } => self.arrive(&targets, &message, worker),
            Event::Look { queue } => {
                self.with_queue(queue, |queue, context| {
                    queue.alarm = None;
                    queue.look(context);
                });
            }
            Event::Lease { queue } => self.end_lease(queue),
            Event::Retry { queue } => self.retry(queue),
            Event::Patience {
                connection,
                channel,
                channel_key,
            } => {
                let now = self.now;
                let due = self.channel(connection, channel).is_some_and(|known| {
                    known.key == channel_key && known.patience.is_some_and(|due| due <= now)
                });
                if due {
                    self.lose_patience(connection, channel);
                }
            }
        }
    }

    /// A dead letter arrives in its queues; the worker that sent it hears whether all took it.
    pub(super) fn arrive(
        &mut self,
        targets: &[QueueId],
        message: &Arc<Message>,
        worker: Option<(QueueId, u64)>,
    ) {
        let publisher = worker.map_or(Publisher::Nobody, |(queue, _)| Publisher::Worker(queue));
        let now = self.now;
        let mut stored = true;
        for target in targets {
            stored &= self
                .with_queue(*target, |queue, context| {
                    queue.enqueue(context, publisher, message.clone(), now)
                })
                .unwrap_or(false);
        }
        let Some((queue, number)) = worker else {
            return;
        };
        if stored {
            self.with_queue(queue, |queue, context| queue.carried(context, number));
            self.carry(queue);
        } else if let Some(Some(queue)) = self.queues.get_mut(queue.0 as usize) {
            queue.worker.keep(number);
        }
    }

    /// A queue that nobody has used for as long as its lease goes, with what is in it.
    fn end_lease(&mut self, id: QueueId) {
        let now = self.now;
        let Some(queue) = self.queue(id) else {
            return;
        };
        let Some(lease) = queue.settings.expires else {
            return;
        };
        let used = if queue.consumer_count() > 0 {
            now
        } else {
            queue.last_used
        };
        if used + lease <= now {
            self.remove_queue(id);
        } else {
            self.event_queue
                .add(used + lease, Event::Lease { queue: id });
        }
    }
}
