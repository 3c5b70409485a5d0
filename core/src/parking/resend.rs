//! How a parked message is sent back: to which queue, with which count, and with which content. Several can be sent at a time.
//!
//! One confirm takes as long as a quorum queue takes to write to its disk. One copy after the other makes a few hundred replays a second; a
//! wave of copies shares the writes.

use std::sync::Arc;

use lapin::{BasicProperties, types::FieldTable};
use tokio::time::{Instant, sleep_until};

use super::{Browse, Record, copies::CopyConfirm};
use crate::{
    Error, ErrorKind, Result,
    connection::ReadyCounter,
    consumer::Received,
    publish::check_numbers,
    retry::headers,
    terminal_escape,
    topology::{HANDOVER_QUEUE, INTAKE_QUEUE, SAFE_AGE, work_queue_of},
};

/// How all queues of the service begin.
const SERVICE: &str = "retryrmq.";
/// How the streams and reports of `retryrmq serve` begin: names that users of the service do not give.
const REPORTS: &str = "retryrmq.serve.";

/// A parked message to send back, and how.
#[derive(Clone, Debug)]
pub struct Resend {
    record: Record,
    to: Option<String>,
    keep_count: bool,
    content: Option<Arc<Received>>,
    edited: bool,
}

impl Resend {
    /// Sends `record` to [its queue](Record::home), unchanged, with its retries counted from the start.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        Self {
            record: record.clone(),
            to: None,
            keep_count: false,
            content: None,
            edited: false,
        }
    }

    /// Sends it to this queue instead, through the default exchange.
    #[must_use]
    pub fn to(mut self, queue: impl Into<String>) -> Self {
        self.to = Some(queue.into());
        self
    }

    /// Whether to keep `x-retry-count`. A message that has used up its retries then gets one attempt, and is parked again if that fails.
    #[must_use]
    pub fn keep_count(mut self, keep: bool) -> Self {
        self.keep_count = keep;
        self
    }

    /// Sends the message as it was before another library gave it up, without what that library added or wrapped around it. All properties
    /// are used, including headers; `user_id`, `expiration` and the broker's headers are treated as in any replay. `origin` is the exchange
    /// and routing key it was first published with, if they are known better than from the parked message.
    #[must_use]
    pub fn original(
        mut self,
        properties: BasicProperties,
        body: Vec<u8>,
        origin: Option<(String, String)>,
    ) -> Self {
        let mut copy = self.copy(properties, body);
        if let Some((exchange, routing_key)) = origin {
            copy.state.exchange = Some(exchange);
            copy.state.routing_key = Some(routing_key);
        }
        self.content = Some(Arc::new(copy));
        self
    }

    /// Sends other headers, properties and another body. Only the publisher's headers are taken from `properties`. The record of its
    /// retries, and the broker's headers, stay as [they would be](Self::properties) without this call.
    #[must_use]
    pub fn content(mut self, properties: BasicProperties, body: Vec<u8>) -> Self {
        let mut table = FieldTable::default();
        let own = self.properties().headers().iter().flatten();
        let edited = properties.headers().iter().flatten();
        // `reply_to` is edited as a property, wherever the message has it.
        let is_kept = |name: &str| headers::is_reserved(name) && name != headers::REPLY_TO;
        for (name, value) in own.filter(|(name, _)| is_kept(name.as_str())) {
            table.insert(name.clone(), value.clone());
        }
        for (name, value) in edited.filter(|(name, _)| !headers::is_reserved(name.as_str())) {
            table.insert(name.clone(), value.clone());
        }
        self.content = Some(Arc::new(self.copy(properties.with_headers(table), body)));
        self.edited = true;
        self
    }

    fn copy(&self, properties: BasicProperties, body: Vec<u8>) -> Received {
        let received = self.received();
        Received {
            queue: Arc::clone(&received.queue),
            body,
            exchange: received.exchange.clone(),
            routing_key: received.routing_key.clone(),
            redelivered: received.redelivered,
            state: received.state.clone(),
            mended: received.mended.clone(),
            properties,
        }
    }

    fn received(&self) -> &Arc<Received> {
        self.content.as_ref().unwrap_or(&self.record.received)
    }

    /// The properties that are sent, including headers, before the record of the replay is added.
    #[must_use]
    pub fn properties(&self) -> &BasicProperties {
        &self.received().properties
    }

    /// The body that is sent, in bytes.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.received().body
    }

    /// The queue to which it is sent.
    #[must_use]
    pub fn target(&self) -> &str {
        self.to.as_deref().unwrap_or(&self.record.home)
    }

    /// The parked message.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Why a copy would be another message, so that it is not sent; `None` if it is whole. A parked message that could not be
    /// [read as it is](crate::Message::mended) is sent only with the [`content`](Self::content) that you give it.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        let table = self.record.received.properties.headers();
        let mended = match self.record.received.mended.as_deref() {
            Some(mended) if !self.edited => mended,
            // Only a queue of the service publishes it anew, with its own routing key.
            None if self.target().starts_with(SERVICE)
                && table.as_ref().is_some_and(headers::has_odd_key) =>
            {
                "the routing key is not UTF-8"
            }
            _ => return None,
        };
        Some(format!(
            "it could not be read as it is ({mended}), and a copy would be another message; it is still parked: drop it, or move it with \
             a shovel, which leaves it as it is"
        ))
    }

    /// Whether [`content`](Self::content) was given.
    #[must_use]
    pub fn is_edited(&self) -> bool {
        self.edited
    }
}

impl Browse {
    /// Publishes copies of several messages, and waits for all confirms. Nothing is acknowledged: until it is [dropped](Self::drop), a
    /// message is both parked and in its target queue. So the caller can first record what was sent. Returns once the copies are safe; the
    /// first to a queue take two seconds, see [`replay`](Self::replay).
    ///
    /// Returns one answer per message, in the same order. Send at most a few hundred at a time: they are the ones that exist twice if the
    /// process is killed. If the future is dropped, those that were not sent yet are not sent.
    ///
    /// # Errors
    /// Each message has its own, as of [`replay_to`](Self::replay_to). It stays parked.
    pub async fn send(&mut self, messages: &[Resend]) -> Vec<Result<()>> {
        self.confirmed(messages, |browse, message| {
            browse.would_send(message)?;
            let (received, to) = (message.received(), message.target());
            let sent = browse.copies.resend(received, to, message.keep_count)?;
            Ok((sent, to.to_owned()))
        })
        .await
    }

    /// Waits for the confirms of copies, and until the queues they went to are old enough to keep them. `send` publishes one and says to which
    /// queue.
    pub(super) async fn confirmed<T>(
        &mut self,
        messages: &[T],
        send: impl Fn(&Self, &T) -> Result<(CopyConfirm, String)>,
    ) -> Vec<Result<()>> {
        let ours = self.source.check();
        if let Err(error) = self.unless_over(ours) {
            return messages.iter().map(|_| Err(error.duplicate())).collect();
        }
        let asked = Instant::now();
        let sent: Vec<_> = messages.iter().map(|message| send(self, message)).collect();
        let mut answers = Vec::with_capacity(sent.len());
        let mut safe = Instant::now();
        for sent in sent {
            let (mut sent, target) = match sent {
                Ok(sent) => sent,
                Err(error) => {
                    answers.push(Err(error));
                    continue;
                }
            };
            let answer = sent.get().await;
            match &answer {
                // Nobody can tell how old the queue is, and a young one can come back empty when its broker is killed.
                Ok(()) => {
                    let target = self.targets.entry(target);
                    safe = safe.max(*target.or_insert_with(Instant::now) + SAFE_AGE);
                }
                // The queue is gone. If it is made again, it is young.
                Err(error) if error.kind() == ErrorKind::Unroutable => {
                    self.targets.remove(&target);
                }
                Err(_) => {}
            }
            answers.push(answer);
        }
        self.source.confirmed(asked);
        sleep_until(safe).await;
        answers
    }

    /// Asks whether [`send`](Self::send) would take a message, without sending anything: for a rehearsal, which must not promise more than
    /// the action. What only the broker knows, such as whether the queue exists, shows when it is sent.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a queue from which nobody would take the message, for a message of another walk, for headers that
    /// RabbitMQ cannot read, or for a message that has an [obstacle](Resend::obstacle). It stays parked.
    pub fn would_send(&self, message: &Resend) -> Result<()> {
        self.tag(&message.record)?;
        self.may_go_to(&message.record, message.target())?;
        check_numbers(&message.received().properties)?;
        match message.obstacle() {
            Some(why) => Err(Error::new(ErrorKind::InvalidOption, why)),
            None => Ok(()),
        }
    }

    /// Whether a record of another walk is a message that this walk sent back and that was parked again.
    #[must_use]
    pub fn has_sent(&self, record: &Record) -> bool {
        self.copies.is_replayed(&record.received.properties)
    }

    /// The messages that this walk sent back, and that were parked again and delivered to this walk. They are held until it ends. Those
    /// still in the queue are seen by another walk; [`has_sent`](Self::has_sent) recognises them.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] if the walk was interrupted.
    pub fn came_back(&mut self) -> Result<Vec<Record>> {
        let ours = self.source.check();
        self.unless_over(ours)?;
        let is_foreign = self.is_foreign();
        let came: Vec<_> = self
            .source
            .at_hand()
            .filter(|delivery| self.copies.is_replayed(&delivery.properties))
            .map(|delivery| {
                let mut record = Record::read(
                    (self.walk, 0),
                    &self.queue,
                    delivery.data.clone(),
                    delivery.properties.clone(),
                    delivery.exchange.clone(),
                    delivery.routing_key.clone(),
                );
                if is_foreign {
                    record.comes_from_elsewhere();
                }
                record
            })
            .collect();
        Ok(came)
    }

    /// How many messages are ready in the parking queue now, without those that this walk holds (AMQP `queue.declare`, passive).
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if the queue has no leader to ask, and those of a lost connection.
    pub async fn ready(&mut self) -> Result<u32> {
        let count = ReadyCounter::once(
            self.copies.addresses(),
            &self.connection,
            self.source.queue(),
        );
        let count = count.await;
        Ok(self.unless_over(count)?.found.message_count())
    }

    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a queue from which nobody would take the message.
    fn may_go_to(&self, record: &Record, queue: &str) -> Result<()> {
        let refused = |sentence| Err(Error::new(ErrorKind::InvalidOption, sentence));
        if queue.is_empty() {
            return refused(
                "this message does not say which queue it came from: name the queue to replay it to".to_owned(),
            );
        }
        if queue == self.parking {
            return refused(format!(
                "`{}` is where this message is: replay it to a queue that is consumed",
                terminal_escape::line(queue)
            ));
        }
        if [INTAKE_QUEUE, HANDOVER_QUEUE].contains(&queue) {
            return refused(format!(
                "what is sent to `{queue}` is parked again, with another reason; replay it to the queue where it failed, which its record names"
            ));
        }
        if queue.starts_with(REPORTS) {
            return refused(format!(
                "`{}` belongs to `retryrmq serve`, which would not handle the message: replay it to the queue where it failed",
                terminal_escape::line(queue)
            ));
        }
        match work_queue_of(queue) {
            Some(work) if queue != record.home => refused(format!(
                "messages of `{work}` wait or are parked in `{queue}`: replay to a queue that is consumed, such as `{work}`"
            )),
            _ => Ok(()),
        }
    }
}
