//! How a parked message is sent back: where to, with which count, and as which content; several at a time.
//!
//! One confirm takes as long as a quorum queue takes to write to its disk. Whoever waits for each before the next copy is sent
//! replays a few hundred messages a second; a wave of copies shares the writes.

use std::sync::Arc;

use lapin::{BasicProperties, types::FieldTable};
use tokio::time::{Instant, sleep_until};

use super::{Browse, Record};
use crate::{
    Error, ErrorKind, Result,
    connection::Census,
    consumer::Received,
    retry::headers,
    topology::{INTAKE_QUEUE, SAFE_AGE, work_queue_of},
    visible,
};

/// One parked message that is to be sent back, and how.
#[derive(Clone, Debug)]
pub struct Resend {
    record: Record,
    to: Option<String>,
    keep_count: bool,
    content: Option<Arc<Received>>,
    edited: bool,
}

impl Resend {
    /// To [where it belongs](Record::home), as it is, its retries counted from the start.
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

    /// To this queue instead, by way of the default exchange.
    #[must_use]
    pub fn to(mut self, queue: impl Into<String>) -> Self {
        self.to = Some(queue.into());
        self
    }

    /// Keeps `x-retry-count`: a message that had spent all its retries gets one attempt, and is parked again if that fails.
    #[must_use]
    pub fn keep_count(mut self, keep: bool) -> Self {
        self.keep_count = keep;
        self
    }

    /// As the message that it was before another library gave it up: without what that wrote on it, or out of what that wrapped it
    /// in. All properties are taken, headers included; `user_id`, `expiration` and what a broker writes go the way of any
    /// replay's. `origin` is the exchange and the routing key that it was first published with, where they are known better than
    /// by the parked message.
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

    /// Edited: with other headers, properties and another body. Of the headers only the publisher's are taken: the record of its
    /// retries and what the broker wrote stay those of what [would be sent](Self::properties) without this.
    #[must_use]
    pub fn content(mut self, properties: BasicProperties, body: Vec<u8>) -> Self {
        let mut table = FieldTable::default();
        let own = self.properties().headers().iter().flatten();
        let edited = properties.headers().iter().flatten();
        for (name, value) in own.filter(|(name, _)| is_ours(name.as_str())) {
            table.insert(name.clone(), value.clone());
        }
        for (name, value) in edited.filter(|(name, _)| !is_ours(name.as_str())) {
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

    /// The properties that are sent, headers included, before the record of the replay is written on them.
    #[must_use]
    pub fn properties(&self) -> &BasicProperties {
        &self.received().properties
    }

    /// The body that is sent.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.received().body
    }

    /// The queue that it goes to.
    #[must_use]
    pub fn target(&self) -> &str {
        self.to.as_deref().unwrap_or(&self.record.home)
    }

    /// The message that it is about, as it is parked.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether [`content`](Self::content) was given.
    #[must_use]
    pub fn is_edited(&self) -> bool {
        self.edited
    }
}

/// Whether a header is of our record, or the broker's: nobody edits those.
fn is_ours(name: &str) -> bool {
    name.starts_with("x-retry-") || headers::is_brokers_own(name)
}

impl Browse {
    /// Publishes copies of several messages at once and waits for all confirms. Nothing is acknowledged: a message whose copy
    /// is confirmed is in both places until it is [dropped](Self::drop), so that its caller can write down what was done before.
    /// Returns once the copies are safe: the first to a queue take two seconds, see [`replay`](Self::replay).
    ///
    /// One answer for each message, in the same order. At most a few hundred should be on their way at a time: they are what is
    /// doubled when the process dies.
    ///
    /// # Errors
    /// Each message has its own, as of [`replay_to`](Self::replay_to). It stays parked then.
    pub async fn send(&mut self, messages: &[Resend]) -> Vec<Result<()>> {
        let ours = self.supply.check();
        if let Err(error) = self.unless_over(ours) {
            return messages.iter().map(|_| Err(error.duplicate())).collect();
        }
        let asked = Instant::now();
        let sent: Vec<_> = messages
            .iter()
            .map(|message| {
                self.tag(&message.record)?;
                self.may_go_to(&message.record, message.target())?;
                self.copies
                    .resend(message.received(), message.target(), message.keep_count)
            })
            .collect();
        let mut answers = Vec::with_capacity(sent.len());
        let mut safe = Instant::now();
        for (sent, message) in sent.into_iter().zip(messages) {
            let answer = match sent {
                Ok(sent) => super::copies::answer(sent).await,
                Err(error) => Err(error),
            };
            if answer.is_ok() {
                // How old the queue is nobody can tell. A young one comes back empty when its broker is killed.
                let seen = *self
                    .targets
                    .entry(message.target().to_owned())
                    .or_insert_with(Instant::now);
                safe = safe.max(seen + SAFE_AGE);
            }
            answers.push(answer);
        }
        self.supply.confirmed(asked);
        sleep_until(safe).await;
        answers
    }

    /// Whether a record of another walk is of a message that this walk sent back, and that was parked again.
    #[must_use]
    pub fn has_sent(&self, record: &Record) -> bool {
        self.copies.is_replayed(&record.received.properties)
    }

    /// What this walk sent back, and has been parked again and delivered to this walk meanwhile. It is held until the end.
    /// What is still in the queue another walk sees, and [`has_sent`](Self::has_sent) tells.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] when the walk was cut short.
    pub fn came_back(&mut self) -> Result<Vec<Record>> {
        let ours = self.supply.check();
        self.unless_over(ours)?;
        let came: Vec<_> = self
            .supply
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
                if *self.queue == *self.parking {
                    record.comes_from_elsewhere();
                }
                record
            })
            .collect();
        Ok(came)
    }

    /// How many messages are ready in the parking queue now, which this walk does not hold.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] where the queue has no leader to ask, and those of a lost connection.
    pub async fn ready(&mut self) -> Result<u32> {
        let count = Census::once(
            self.copies.addresses(),
            &self.connection,
            self.supply.queue(),
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
                visible::line(queue)
            ));
        }
        if queue == INTAKE_QUEUE {
            return refused(format!(
                "what is sent to `{INTAKE_QUEUE}` is parked again, with another reason: its own says where it failed, name that queue to replay it to"
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
