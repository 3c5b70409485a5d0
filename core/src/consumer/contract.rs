//! The wire contract as a value without I/O, for programs that consume with a client of their own.

use std::time::{Duration, SystemTime};

use lapin::BasicProperties;

use super::{
    Consumer, Message, Received,
    engine::{AttemptContext, NextAction},
    retrier::Decision,
};
use crate::{
    Error, ErrorKind, MAX_DELAY, Result, Strategy,
    connection::header_room,
    retry::{
        Admission, Counting, DeliveryPast, Failure, Origin, Outcome, RetryState, admit,
        must_be_copied_now, with_reply_to,
    },
    telemetry::{Event, HOST},
    topology::{self, Detour, Item, Plan, QueueType},
};

/// The usual frame size of RabbitMQ.
const USUAL_FRAME: u32 = 131_072;

/// Decides about messages of one work queue as its consumer with `dlx` would, and sends nothing itself. It is for programs that receive
/// and publish with another AMQP client. It knows the strategy `retry-queues`.
///
/// ```text
/// delivery ─► read ─► admit ─► the handler ─► after ─► Settlement: acknowledge, or publish a copy and then acknowledge
/// ```
///
/// The caller keeps the rules of section 3 of PROTOCOL: it publishes each copy persistent and `mandatory`, waits for the confirm, and only
/// then acknowledges the original. If the copy is returned or not confirmed, it keeps the original.
///
/// ```
/// use retryrmq::contract::{Contract, Incoming, Settlement};
/// use retryrmq::{Consumer, Failure, Outcome};
///
/// let contract = Contract::new(Consumer::new("orders").dlx(true).retry("fixed(5s)".parse()?))?;
/// let message = contract.read(Incoming::new(b"7"))?;
/// let after = contract.after(&message, &Outcome::retry(Failure::new("the till is closed")));
/// let Settlement::Copy(copy) = after else { panic!() };
/// assert_eq!(copy.queue, "orders.retry.5000");
/// # Ok::<(), retryrmq::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Contract {
    options: Consumer,
    queue_type: QueueType,
    origin: Origin,
    header_room: usize,
    is_classic: bool,
}

/// A delivery of another client (AMQP `basic.deliver`).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Incoming {
    /// The body.
    pub body: Vec<u8>,
    /// The properties, with the headers.
    pub properties: BasicProperties,
    /// The exchange of this delivery; empty for the default exchange.
    pub exchange: String,
    /// The routing key of this delivery.
    pub routing_key: String,
    /// Whether the broker has delivered the message before.
    pub redelivered: bool,
}

impl Incoming {
    /// A delivery with this body, and nothing else.
    #[must_use]
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// Sets the properties, with the headers.
    #[must_use]
    pub fn properties(mut self, properties: BasicProperties) -> Self {
        self.properties = properties;
        self
    }

    /// Sets the exchange and the routing key of this delivery.
    #[must_use]
    pub fn route(mut self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        (self.exchange, self.routing_key) = (exchange.into(), routing_key.into());
        self
    }

    /// Sets whether the broker has delivered the message before.
    #[must_use]
    pub fn redelivered(mut self, redelivered: bool) -> Self {
        self.redelivered = redelivered;
        self
    }
}

/// What to do with a message before its handler sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Admitted {
    /// Run its handler.
    Run,
    /// Run its handler while nothing else is unacknowledged: it may be the message that crashes its consumers. If that is not possible, send
    /// it through a [detour](Contract::detour).
    RunAlone,
    /// Do not run it.
    Settle(Settlement),
}

/// How a message is settled.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Settlement {
    /// Acknowledge it.
    Ack,
    /// Acknowledge it: it was given up, and `park` is off.
    Drop(Event),
    /// Publish this copy to the default exchange, with [`queue`](Decision::queue) as routing key, persistent and `mandatory`. Acknowledge the
    /// original after the confirm.
    Copy(Box<Decision>),
}

impl Contract {
    /// The contract for the queue and the options of `consumer`, which needs [`dlx`](Consumer::dlx). Options about running handlers have no
    /// effect.
    ///
    /// # Errors
    /// Those of [`Consumer::validate`], and [`ErrorKind::InvalidOption`] without `dlx` or with another strategy than `retry-queues`.
    pub fn new(consumer: Consumer) -> Result<Self> {
        consumer.validate()?;
        let bad = |why: &str| Err(Error::new(ErrorKind::InvalidOption, why));
        if !consumer.has_dlx() {
            return bad("`dlx` is off, and nothing else retries here; set it to true");
        }
        if consumer.strategy != Strategy::RetryQueues {
            return bad(
                "`strategy` must be `retry-queues` where another client consumes; for other strategies use a consumer of retryrmq",
            );
        }
        let contract = Self {
            options: consumer,
            queue_type: QueueType::default(),
            origin: Origin {
                host: HOST.clone(),
                app_version: String::new(),
            },
            header_room: header_room(USUAL_FRAME),
            is_classic: false,
        };
        contract.plan()?;
        Ok(contract)
    }

    /// Sets the type of the waiting and parking queues; quorum by default.
    #[must_use]
    pub fn queue_type(mut self, queue_type: QueueType) -> Self {
        self.queue_type = queue_type;
        self
    }

    /// Sets the version of the application, for the history of failures.
    #[must_use]
    pub fn app_version(mut self, version: impl Into<String>) -> Self {
        self.origin.app_version = version.into();
        self
    }

    /// Sets the frame size (AMQP `connection.tune`) of the connection that publishes copies: all headers of a copy must fit into a frame.
    /// 131 072 by default.
    #[must_use]
    pub fn frame_max(mut self, bytes: u32) -> Self {
        self.header_room = header_room(bytes);
        self
    }

    /// Sets whether the work queue is a classic queue, which counts no crashes. If that is not known, leave it off.
    #[must_use]
    pub fn classic(mut self, is_classic: bool) -> Self {
        self.is_classic = is_classic;
        self
    }

    /// The name of the work queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.options.queue
    }

    /// What must exist on the broker before the first message is consumed, in the order of creation. An existing work or parking queue is used
    /// as it is; a passive declaration finds it.
    #[must_use]
    pub fn topology(&self) -> Plan {
        self.plan().unwrap_or_default() // checked by `new`
    }

    fn plan(&self) -> Result<Plan> {
        let Consumer {
            queue,
            rules,
            work_queue,
            ..
        } = &self.options;
        Strategy::RetryQueues.plan(queue, rules, self.queue_type, work_queue.as_ref())
    }

    /// How the waiting or parking queue of this name is declared; `None` for other names. A copy may go to a waiting queue that is not in the
    /// [topology](Self::topology), because a handler chose its delay.
    #[must_use]
    pub fn declaration(&self, name: &str) -> Option<Item> {
        let queue = self.queue();
        if name == topology::parking_queue(queue) {
            return Some(Item::parking(queue, self.queue_type));
        }
        let delay = topology::waits_for(queue, name).filter(|delay| *delay <= MAX_DELAY)?;
        Some(topology::waiting(queue, delay, self.queue_type))
    }

    /// Reads a delivery of the work queue.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for an exchange or a routing key longer than 255 bytes.
    pub fn read(&self, incoming: Incoming) -> Result<Message> {
        let Incoming {
            body,
            properties,
            exchange,
            routing_key,
            redelivered,
        } = incoming;
        let past = DeliveryPast::of(redelivered, self.is_classic);
        let state = RetryState::read(self.queue(), Counting::Header, past, &properties);
        Ok(Message(std::sync::Arc::new(Received {
            queue: self.queue().into(),
            body,
            properties: with_reply_to(properties),
            exchange: topology::name(&exchange)?,
            routing_key: topology::name(&routing_key)?,
            redelivered,
            state,
            mended: None,
        })))
    }

    /// What to do with a message before its handler sees it.
    #[must_use]
    pub fn admit(&self, message: &Message) -> Admitted {
        let state = &message.0.state;
        match admit(state, &self.options.limits) {
            Admission::Run => Admitted::Run,
            Admission::RunAlone => Admitted::RunAlone,
            Admission::Detour { crashes } => Admitted::Settle(
                self.follow(message, |case| case.detour(crashes, Detour::Shortest)),
            ),
            Admission::Park(reason) => {
                let failure = Failure::new(format!(
                    "it came back without an answer {} times",
                    state.crashes
                ));
                Admitted::Settle(self.follow(message, |case| case.park(reason, &failure)))
            }
        }
    }

    /// What follows when an attempt has ended.
    #[must_use]
    pub fn after(&self, message: &Message, outcome: &Outcome) -> Settlement {
        self.follow(message, |case| case.after(outcome, fastrand::u64(..)))
    }

    /// Sends a message that has not run through a short wait, with its crashes unchanged.
    #[must_use]
    pub fn detour(&self, message: &Message) -> Settlement {
        let crashes = message.0.state.crashes;
        self.follow(message, |case| case.detour(crashes, Detour::Longer))
    }

    /// Whether the next failure may park the message. Then a stack trace is worth collecting.
    #[must_use]
    pub fn may_park(&self, message: &Message) -> bool {
        let fewest_retries = self.options.fewest_retries();
        fewest_retries.is_some_and(|fewest_retries| message.retries() >= fewest_retries)
    }

    /// Whether a copy must not wait until its queue is old enough: the work queue has counted so many deliveries of the original that the
    /// broker may drop it after the next one.
    #[must_use]
    pub fn is_urgent(&self, message: &Message) -> bool {
        must_be_copied_now(&message.0.state)
    }

    fn follow(
        &self,
        message: &Message,
        decide: impl FnOnce(AttemptContext<'_>) -> NextAction,
    ) -> Settlement {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let case = AttemptContext {
            options: &self.options,
            origin: &self.origin,
            received: &message.0,
            header_room: self.header_room,
            now: now.map_or(0, |now: Duration| now.as_secs()),
            copies: false,
        };
        match decide(case) {
            NextAction::Drop(event) => Settlement::Drop(event),
            other => match Decision::of(self.queue(), other) {
                Some(decision) => Settlement::Copy(Box::new(decision)),
                None => Settlement::Ack,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{AMQPValue, FieldTable};

    use super::*;
    use crate::retry::headers;

    fn contract() -> Contract {
        let consumer = Consumer::new("orders").dlx(true);
        Contract::new(consumer.retry("list(1s, 1m)".parse().unwrap())).unwrap()
    }

    fn incoming(fields: &[(&str, i64)]) -> Incoming {
        let mut table = FieldTable::default();
        for (name, value) in fields {
            table.insert((*name).into(), AMQPValue::LongLongInt(*value));
        }
        let properties = BasicProperties::default().with_headers(table);
        Incoming::new("7")
            .properties(properties)
            .route("shop", "de")
    }

    fn copy(settlement: Settlement) -> Decision {
        match settlement {
            Settlement::Copy(copy) => *copy,
            other => panic!("{other:?}"),
        }
    }

    fn count(copy: &Decision, name: &str) -> Option<AMQPValue> {
        let headers = copy.properties.headers().as_ref()?;
        headers.inner().get(name).cloned()
    }

    #[test]
    fn a_message_is_retried_on_its_own_copies_and_then_parked() {
        let (contract, failed) = (contract(), Outcome::retry(Failure::new("no")));
        let mut next = incoming(&[]);
        for (attempt, queue) in [
            (1, "orders.retry.1000"),
            (2, "orders.retry.60000"),
            (3, "orders.parked"),
        ] {
            let message = contract.read(next).unwrap();
            assert!(matches!(contract.admit(&message), Admitted::Run));
            assert_eq!((message.attempt(), message.exchange()), (attempt, "shop"));
            let copy = copy(contract.after(&message, &failed));
            assert_eq!(copy.queue, queue);
            assert!(contract.declaration(&copy.queue).is_some());
            next = Incoming::new("7")
                .properties(copy.properties)
                .route("", "orders");
        }
        let parked = contract.read(next).unwrap();
        let headers = parked.headers().unwrap();
        assert_eq!(
            headers::string(headers, headers::PARKED_REASON).as_deref(),
            Some("exhausted")
        );
        assert!(matches!(
            contract.after(&parked, &Outcome::Ack),
            Settlement::Ack
        ));
    }

    #[test]
    fn crashes_are_counted_and_make_suspects() {
        let contract = contract();
        let crashed = incoming(&[]).redelivered(true);
        let message = contract.read(crashed).unwrap();
        let Admitted::Settle(detour) = contract.admit(&message) else {
            panic!("it ran")
        };
        let detour = copy(detour);
        assert_eq!(detour.queue, "orders.retry.1000");
        assert_eq!(
            count(&detour, headers::CRASHES),
            Some(AMQPValue::LongLongInt(1))
        );
        let admitted = |crashes| {
            let message = contract.read(incoming(&[(headers::CRASHES, crashes)]));
            contract.admit(&message.unwrap())
        };
        assert!(matches!(admitted(2), Admitted::Run));
        assert!(matches!(admitted(3), Admitted::RunAlone));
        let Admitted::Settle(parked) = admitted(10) else {
            panic!("it ran")
        };
        assert_eq!(copy(parked).queue, "orders.parked");
        let suspect = contract.read(incoming(&[(headers::CRASHES, 3)])).unwrap();
        let detour = copy(contract.detour(&suspect));
        assert_eq!(
            count(&detour, headers::CRASHES),
            Some(AMQPValue::LongLongInt(3))
        );
    }

    #[test]
    fn what_a_queue_counts_becomes_a_copy_at_once() {
        let counted = |returns, is_classic| {
            let contract = contract().classic(is_classic);
            let ours = (headers::PROTOCOL, 1);
            let incoming = incoming(&[(headers::DELIVERY_COUNT, returns), ours]);
            let message = contract.read(incoming.redelivered(true)).unwrap();
            contract.is_urgent(&message)
        };
        assert_eq!((counted(1, false), counted(2, false)), (false, true));
        assert!(!counted(2, true), "a classic queue counts nothing");
    }

    #[test]
    fn options_that_need_a_consumer_are_refused() {
        let why = |consumer| Contract::new(consumer).unwrap_err().to_string();
        assert!(why(Consumer::new("orders")).contains("`dlx`"));
        let native = Consumer::new("orders").dlx(true).strategy(Strategy::Native);
        assert!(why(native).contains("`retry-queues`"));
        let dropped = Contract::new(Consumer::new("orders").dlx(true).park(false)).unwrap();
        let message = dropped.read(Incoming::new("7")).unwrap();
        let outcome = Outcome::park(Failure::new("no"));
        assert!(matches!(
            dropped.after(&message, &outcome),
            Settlement::Drop(Event::Parked { .. })
        ));
    }

    #[test]
    fn the_topology_is_that_of_a_consumer() {
        let plan = contract().queue_type(QueueType::Classic).topology();
        let names: Vec<_> = plan.items.iter().map(Item::name).collect();
        assert_eq!(
            names,
            [
                "orders.parked",
                "orders",
                "orders.retry.1000",
                "orders.retry.60000"
            ]
        );
        assert!(contract().declaration("orders").is_none());
        assert!(contract().declaration("invoices.parked").is_none());
    }
}
