//! Compares a plan with the broker, and creates what is missing.

use lapin::{
    ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{
    Item, Missing, MissingItems, Plan, QueueType, conflicting_arguments,
    plan::{field_table, name},
};
use crate::{
    Error, ErrorKind, Result,
    connection::{
        Connection, OpenChannel, Operation, ProbedQueueType, ask, broker_says, is_locked, kind_of,
        passive_declare,
    },
};

/// The result for one item of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The item.
    pub item: Item,
    /// Its state on the broker.
    pub status: Status,
    /// For a work queue: its type, if the broker told it or the queue was created just now.
    pub queue_type: Option<QueueType>,
    /// For the service's handover queue: how many services consume it.
    pub services: Option<u32>,
}

/// The state of one item on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It exists and is as planned.
    Present,
    /// It did not exist and was created just now.
    Created,
    /// It does not exist.
    Missing,
    /// It exists with other arguments; the text is the broker's.
    Differs(String),
    /// Only the management API could tell. This concerns bindings, and exchanges that exist and that this user may not declare.
    Unknown,
}

/// What to do with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Look, and create nothing.
    Compare,
    /// Create what is missing, refuse what differs.
    Apply,
    /// Declare nothing, refuse what is missing. Bindings are made.
    Require,
    /// Like `Require`, and streams count as queues.
    Exist,
}

/// Goes through `plan` on `connection`, which must be used for nothing else: every refusal closes a channel, and some close the connection.
///
/// # Errors
/// [`ErrorKind::Mismatch`], [`ErrorKind::QueueNotFound`], [`ErrorKind::AccessRefused`], [`ErrorKind::StrategyRefused`]. What was created
/// before stays. What `Require` lacks is in one error, the work queue first.
pub(crate) async fn apply(
    connection: &Connection,
    plan: &Plan,
    mode: Mode,
) -> Result<Vec<Finding>> {
    let mut missing_items = MissingItems::default();
    let found = apply_some(connection, &plan.items, mode, &mut missing_items).await;
    missing_items.or(found)
}

/// Like [`apply`], for some items of a plan. What `Require` lacks is added to `missing_items`, and is no finding.
pub(crate) async fn apply_some(
    connection: &Connection,
    items: &[Item],
    mode: Mode,
    missing_items: &mut MissingItems,
) -> Result<Vec<Finding>> {
    let mut broker = Broker {
        connection,
        channel: None,
        known_type: None,
        asked: None,
        services: None,
    };
    let names = connection.limits().names();
    items.iter().try_for_each(|item| names.check(item.name()))?;
    let mut findings = Vec::with_capacity(items.len());
    if mode == Mode::Apply
        && let Some(work) = items.iter().find(|item| item.is_work_queue())
    {
        broker.refuse_early(work).await?;
    }
    for item in items {
        let found = match item {
            Item::Queue {
                name,
                arguments,
                any_arguments,
                missing,
                ..
            } => {
                let lookup = QueueLookup {
                    queue: name,
                    arguments: field_table(arguments),
                    any: *any_arguments,
                    missing: *missing,
                    is_work_queue: item.is_work_queue(),
                    is_parking_queue: item.is_parking_queue(),
                    is_handover_queue: item.is_handover_queue(),
                };
                broker.queue(lookup, mode).await
            }
            Item::Exchange {
                name,
                kind,
                internal,
                arguments,
                ..
            } => {
                broker
                    .exchange((name, kind, *internal), field_table(arguments), mode)
                    .await
            }
            // One of them may be missing.
            Item::Binding { .. } if !missing_items.is_empty() => continue,
            Item::Binding {
                queue,
                exchange,
                routing_key,
            } => broker.binding(queue, exchange, routing_key, mode).await,
        };
        let status = match found {
            Err(error) if mode == Mode::Require && error.kind() == ErrorKind::QueueNotFound => {
                missing_items.add(item, error);
                continue;
            }
            found => found?,
        };
        findings.push(Finding {
            item: item.clone(),
            status,
            queue_type: broker.known_type.take(),
            services: broker.services.take(),
        });
    }
    if let Some(channel) = broker.channel.take() {
        channel.close().await;
    }
    Ok(findings)
}

/// A queue that is looked for.
struct QueueLookup<'a> {
    queue: &'a str,
    arguments: FieldTable,
    any: bool,
    missing: Missing,
    is_work_queue: bool,
    is_parking_queue: bool,
    is_handover_queue: bool,
}

impl QueueLookup<'_> {
    fn is_missing(&self) -> Error {
        let queue = self.queue;
        let message = if self.is_handover_queue {
            format!(
                "the queue `{queue}` does not exist, to which the strategy service hands failures over: start the service, which \
                 declares it (`retryrmq serve`), in this virtual host, or use another strategy"
            )
        } else if self.is_work_queue && self.missing == Missing::Refused {
            format!(
                "the queue `{queue}` does not exist, and `work_queue` is `existing`: declare it, or let its consumer create it \
                 with `work_queue` as `quorum`, `classic`, or the arguments that you declare it with"
            )
        } else if self.missing == Missing::Gone {
            format!(
                "the queue `{queue}` was deleted and is not created again, because only its owner knows its arguments and bindings; \
                 declare it again, or set `work_queue`"
            )
        } else {
            format!(
                "the queue `{queue}` does not exist; declare it (`retryrmq topology --apply` does), or let a consumer \
                 make it, which it does with `dlx` and `declare` on"
            )
        };
        Error::new(ErrorKind::QueueNotFound, message)
    }

    fn is_a_stream(&self) -> String {
        let queue = self.queue;
        if self.is_parking_queue {
            return format!(
                "the parking queue `{queue}` is a stream: what is dropped or replayed stays in it, and what is put back goes \
                 to all its readers; nothing was read from it. Delete it when nobody needs it any more, and a consumer with \
                 `dlx` makes a quorum queue instead"
            );
        }
        is_a_stream(queue)
    }

    fn would_be_a_stream(&self) -> String {
        format!(
            "the queue `{}` does not exist, and would be created as a stream, because `work_queue` names no type and the default queue type \
             is stream; a stream cannot be a work queue. Nothing was created. Add `\"x-queue-type\": \"quorum\"` or `\"classic\"` to \
             `work_queue`, and let everyone who declares the queue do the same",
            self.queue
        )
    }

    fn is_auto_delete(&self) -> String {
        let queue = self.queue;
        format!(
            "the parking queue `{queue}` is an auto-delete queue: RabbitMQ deletes it, with everything parked in it, as soon as \
             its last reader leaves, and a look is a reader. Nothing was read from it. Move its messages with a shovel to a \
             queue that is not auto-delete, and declare `{queue}` without `auto_delete`, or let a consumer with `dlx` make it"
        )
    }

    /// Adds to the error which strategy works with the work queue as it is.
    fn with_way_out(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Mismatch || !self.is_work_queue {
            return error;
        }
        let message = format!(
            "{error}; or use the strategy retry-queues, which takes the work queue as it is"
        );
        Error::new(ErrorKind::Mismatch, message).with_source(error)
    }
}

const TYPE: &str = "x-queue-type";

/// Of a queue with a longer name, the type would be cut off the refusal that tells it.
const LONGEST_WITH_TYPE: usize = 100;

/// That refusal, without the names of the queue and the virtual host.
const TYPE_REFUSAL: &str = "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '' in vhost '' of queue type rabbit_classic_queue";

/// The answer for a queue with other arguments, without the names of the queue and the virtual host. The values may be longer.
const DIFFERS: &str = "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue '' in vhost '': received the value '1000000000' of type \
                       'long' but current is none";

/// Whether the broker can say in what a queue differs from what is declared. Otherwise a difference costs the connection.
pub(super) fn can_say_what_differs(connection: &Connection, queue: &str) -> bool {
    connection.limits().names().can_say(DIFFERS, queue)
}

fn is_a_stream(queue: &str) -> String {
    format!(
        "the queue `{queue}` is a stream, which cannot be a work queue: acknowledged messages stay in it, and requeued ones reach \
         every reader; use a quorum or classic queue, for example one that is bound to the same exchange"
    )
}

/// The queue type that a refused argument names: `invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_classic_queue`. The
/// names of the queue and the virtual host, which may contain anything, come before it.
fn type_in(refusal: &str) -> Option<ProbedQueueType> {
    let (_, named) = refusal.rsplit_once("of queue type ")?;
    let is = |kind: &str| named.starts_with(kind);
    if is("rabbit_classic_queue") {
        Some(ProbedQueueType::Classic)
    } else if is("rabbit_quorum_queue") {
        Some(ProbedQueueType::Quorum)
    } else if is("rabbit_stream_queue") {
        Some(ProbedQueueType::Stream)
    } else {
        None
    }
}

fn no_exchange(exchange: &str) -> Error {
    Error::new(
        ErrorKind::QueueNotFound,
        format!(
            "the exchange `{exchange}` does not exist, and with `declare` off it is not created; create it with `retryrmq topology --apply`, \
             or turn `declare` on"
        ),
    )
}

struct Broker<'a> {
    connection: &'a Connection,
    channel: Option<OpenChannel>,
    /// The type of the queue, if the broker told it.
    known_type: Option<QueueType>,
    /// The queue whose type was asked last, and the answer.
    asked: Option<(String, Option<ProbedQueueType>)>,
    /// How many services consume the queue.
    services: Option<u32>,
}

impl Broker<'_> {
    /// The channel, or a new one if the last question closed it.
    async fn channel(&mut self) -> Result<&OpenChannel> {
        if !self.channel.as_ref().is_some_and(OpenChannel::is_open) {
            self.channel = Some(self.connection.channel().await?);
        }
        self.channel
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::ConnectionLost, "the connection was lost"))
    }

    /// Refuses a work queue that cannot be used before anything is created for it: a stream, and a queue that another connection uses
    /// exclusively.
    async fn refuse_early(&mut self, work: &Item) -> Result<()> {
        let queue = work.name();
        let wire = name(queue)?;
        match passive_declare(self.channel().await?, wire).await {
            Ok(_) => {
                if self.type_of(queue).await? == Some(ProbedQueueType::Stream) {
                    return Err(Error::new(ErrorKind::Mismatch, is_a_stream(queue)));
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(()),
            // RabbitMQ 4.3 requires a permission to look; the declaration names it.
            Err(error) if error.kind() == ErrorKind::AccessRefused && !is_locked(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn queue(&mut self, lookup: QueueLookup<'_>, mode: Mode) -> Result<Status> {
        let queue = lookup.queue;
        let wire = name(queue)?;
        let looked = passive_declare(self.channel().await?, wire.clone()).await;
        let is_ours_to_make = !matches!(lookup.missing, Missing::Refused | Missing::Gone);
        let makes = mode == Mode::Apply && is_ours_to_make;
        let present = match looked {
            Ok(found) => {
                self.services = lookup.is_handover_queue.then(|| found.consumer_count());
                true
            }
            Err(error) if error.kind() == ErrorKind::QueueNotFound => false,
            // A user who may publish to it need not have any permission on it. If it is missing, a returned copy will tell.
            Err(error) if error.kind() == ErrorKind::AccessRefused && lookup.is_handover_queue => {
                return Ok(Status::Unknown);
            }
            // RabbitMQ 4.3 requires a permission to look. If a declaration follows, its error names that permission.
            Err(error) if error.kind() == ErrorKind::AccessRefused && makes => false,
            Err(error) => return Err(error),
        };
        if present {
            if lookup.is_parking_queue
                && mode != Mode::Exist
                && self.is_auto_delete(&lookup).await?
            {
                return match mode {
                    Mode::Compare => Ok(Status::Differs(lookup.is_auto_delete())),
                    _ => Err(Error::new(ErrorKind::Mismatch, lookup.is_auto_delete())),
                };
            }
            if (lookup.any || lookup.is_work_queue)
                && !lookup.is_handover_queue
                && mode != Mode::Exist
                && self.asked_for_its_type(queue).await? == Some(ProbedQueueType::Stream)
            {
                return match mode {
                    Mode::Compare => Ok(Status::Differs(lookup.is_a_stream())),
                    _ => Err(Error::new(ErrorKind::Mismatch, lookup.is_a_stream())),
                };
            }
            if lookup.any || matches!(mode, Mode::Require | Mode::Exist) {
                return Ok(Status::Present);
            }
        } else if !makes {
            return match mode {
                Mode::Compare => Ok(Status::Missing),
                Mode::Require if lookup.missing == Missing::DoneWithout => Ok(Status::Missing),
                _ => Err(lookup.is_missing()),
            };
        }
        let mut lookup = lookup;
        if !present {
            self.name_the_type(&mut lookup).await?;
        }
        match self.declare(&lookup, present).await {
            Ok(()) if present => Ok(Status::Present),
            Ok(()) => {
                // What was created may be another's, of another type.
                if lookup.is_work_queue
                    && self.asked_for_its_type(queue).await? == Some(ProbedQueueType::Stream)
                {
                    return Err(Error::new(ErrorKind::Mismatch, lookup.is_a_stream()));
                }
                Ok(Status::Created)
            }
            Err(error) if error.kind() == ErrorKind::Mismatch && mode == Mode::Compare => {
                Ok(Status::Differs(error.to_string()))
            }
            Err(error) => Err(lookup.with_way_out(error)),
        }
    }

    /// Adds the queue type if the user's arguments do not name one, so that a virtual host whose default type is `stream` creates none.
    async fn name_the_type(&mut self, lookup: &mut QueueLookup<'_>) -> Result<()> {
        let capabilities = self.connection.server().capabilities();
        if lookup.arguments.contains_key(TYPE)
            || !capabilities.tells_default_type
            || lookup.queue.len() > LONGEST_WITH_TYPE
            || !self
                .connection
                .limits()
                .names()
                .can_say(TYPE_REFUSAL, lookup.queue)
        {
            return Ok(());
        }
        let named = match self.default_type(lookup.queue).await? {
            Some(ProbedQueueType::Stream) => {
                return Err(Error::new(ErrorKind::Mismatch, lookup.would_be_a_stream()));
            }
            Some(ProbedQueueType::Quorum) => QueueType::Quorum,
            // Before 4.0, whoever declares the queue without a type would be refused.
            Some(ProbedQueueType::Classic) if capabilities.fills_in_default_type => {
                QueueType::Classic
            }
            Some(ProbedQueueType::Classic) | None => return Ok(()),
        };
        let named = AMQPValue::LongString(named.as_str().into());
        lookup.arguments.insert(TYPE.into(), named);
        Ok(())
    }

    /// The type of a queue that is declared without one: the virtual host's or node's default. No type takes both arguments of this
    /// declaration, so that nothing is created, and the refusal names the type. `None` if it does not.
    async fn default_type(&mut self, queue: &str) -> Result<Option<ProbedQueueType>> {
        let mut impossible = FieldTable::default();
        impossible.insert("x-max-age".into(), AMQPValue::LongString("1D".into())); // streams only
        // No streams. It is long, so that a broker that accepts both deletes no message before the queue is deleted.
        impossible.insert(
            "x-message-ttl".into(),
            AMQPValue::LongLongInt(4_000_000_000),
        );
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let wire = name(queue)?;
        let channel = self.channel().await?.lapin();
        let declared = channel.queue_declare(wire.clone(), durable, impossible);
        match ask(Operation::Declaring(queue), declared).await {
            Err(error) if error.is_transient() => Err(error),
            Err(error) => Ok(type_in(&error.to_string())),
            Ok(_) => {
                let harmlessly = QueueDeleteOptions {
                    if_unused: true,
                    if_empty: true,
                    ..QueueDeleteOptions::default()
                };
                let deleted = channel.queue_delete(wire, harmlessly);
                ask(Operation::Declaring(queue), deleted)
                    .await
                    .and(Ok(None))
            }
        }
    }

    /// Declares a queue. If the work queue exists, harmless arguments that its owner set are adopted: each refusal names the first argument
    /// that differs, and its value.
    async fn declare(&mut self, lookup: &QueueLookup<'_>, present: bool) -> Result<()> {
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let wire = name(lookup.queue)?;
        let mut arguments = lookup.arguments.clone();
        loop {
            let channel = self.channel().await?.lapin();
            let declared = channel.queue_declare(wire.clone(), durable, arguments.clone());
            let error = match ask(Operation::Declaring(lookup.queue), declared).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let owners = (present && lookup.is_work_queue && error.kind() == ErrorKind::Mismatch)
                .then(|| conflicting_arguments::argument(&error.to_string()))
                .flatten()
                .filter(|(name, _)| !arguments.contains_key(name.as_str()));
            match owners {
                Some((name, value)) => {
                    arguments.insert(name.into(), value);
                }
                None => return Err(error),
            }
        }
    }

    /// Whether a queue is deleted with its last consumer. AMQP shows that only in the refusal of a declaration: first whether the queue is
    /// durable, then this, then its arguments. A user who may not declare it does not find out, and neither does anybody of a name that is too
    /// long for these refusals.
    async fn is_auto_delete(&mut self, lookup: &QueueLookup<'_>) -> Result<bool> {
        if !can_say_what_differs(self.connection, lookup.queue) {
            return Ok(false);
        }
        // A quorum queue must be durable, so none of these declarations can create one that is not.
        let mut quorum = FieldTable::default();
        quorum.insert(
            ShortString::from("x-queue-type"),
            AMQPValue::LongString("quorum".into()),
        );
        for (durable, arguments) in [(true, lookup.arguments.clone()), (false, quorum)] {
            let options = QueueDeclareOptions {
                durable,
                ..QueueDeclareOptions::default()
            };
            let wire = name(lookup.queue)?;
            let channel = self.channel().await?.lapin();
            let declared = channel.queue_declare(wire, options, arguments);
            match ask(Operation::Declaring(lookup.queue), declared).await {
                Err(error) if error.is_transient() => return Err(error),
                Err(error) if broker_says(&error, "inequivalent arg 'durable'") => {}
                answer => {
                    return Ok(answer.is_err_and(|error| {
                        broker_says(&error, "inequivalent arg 'auto_delete'")
                    }));
                }
            }
        }
        Ok(false)
    }

    /// The type of a queue, if it can be found out. A user who may not read it gets a refusal when consuming.
    async fn asked_for_its_type(&mut self, queue: &str) -> Result<Option<ProbedQueueType>> {
        let kind = self.type_of(queue).await?;
        match kind {
            Some(ProbedQueueType::Classic) => self.known_type = Some(QueueType::Classic),
            Some(ProbedQueueType::Quorum) => self.known_type = Some(QueueType::Quorum),
            Some(ProbedQueueType::Stream) | None => {}
        }
        Ok(kind)
    }

    /// The same, asked once for each queue.
    async fn type_of(&mut self, queue: &str) -> Result<Option<ProbedQueueType>> {
        if let Some((asked, kind)) = &self.asked
            && asked == queue
        {
            return Ok(*kind);
        }
        let wire = name(queue)?;
        let connection = self.connection;
        let kind = match kind_of(connection, self.channel().await?.lapin(), wire).await {
            Err(error) if error.kind() == ErrorKind::AccessRefused => None,
            answer => answer?,
        };
        self.asked = Some((queue.to_owned(), kind));
        Ok(kind)
    }

    async fn exchange(
        &mut self,
        (exchange, kind, internal): (&str, &str, bool),
        arguments: FieldTable,
        mode: Mode,
    ) -> Result<Status> {
        let durable = ExchangeDeclareOptions {
            durable: true,
            internal,
            ..ExchangeDeclareOptions::default()
        };
        let passive = ExchangeDeclareOptions {
            passive: true,
            ..durable
        };
        self.connection.limits().names().check(exchange)?;
        let wire = name(exchange)?;
        let custom = || ExchangeKind::Custom(kind.to_owned());
        let channel = self.channel().await?.lapin();
        let looked =
            channel.exchange_declare(wire.clone(), custom(), passive, FieldTable::default());
        let present = match ask(Operation::Exchange(exchange), looked).await {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::QueueNotFound => false,
            Err(error) => return Err(error),
        };
        if !present {
            match mode {
                Mode::Compare => return Ok(Status::Missing),
                Mode::Apply => {}
                Mode::Require | Mode::Exist => return Err(no_exchange(exchange)),
            }
        }
        // A passive declaration compares nothing.
        let channel = self.channel().await?.lapin();
        let declared = channel.exchange_declare(wire, custom(), durable, arguments);
        match ask(Operation::Exchange(exchange), declared).await {
            Ok(()) if present => Ok(Status::Present),
            Ok(()) => Ok(Status::Created),
            Err(error) if present && error.kind() == ErrorKind::AccessRefused => {
                Ok(Status::Unknown)
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => {
                let way_out = if internal {
                    "; an exchange of that name that clients may publish to would let them forge dead letters: delete it"
                } else if kind == "x-delayed-message" {
                    "; or use the strategy retry-queues, which needs no exchange"
                } else {
                    "; delete it when nobody needs it any more, or choose another name"
                };
                let message = format!("{error}{way_out}");
                match mode {
                    Mode::Compare => Ok(Status::Differs(message)),
                    _ => Err(Error::new(ErrorKind::Mismatch, message).with_source(error)),
                }
            }
            // RabbitMQ 4 answers 406; 3.10 answers 503 and closes the connection.
            Err(error) if error.to_string().contains("unknown exchange type") => Err(Error::new(
                ErrorKind::StrategyRefused,
                format!(
                    "the broker has no exchange type `{kind}`, which the strategy delayed-exchange needs; enable the \
                     plugin rabbitmq_delayed_message_exchange, or use the strategy retry-queues"
                ),
            )
            .with_source(error)),
            Err(error) => Err(error),
        }
    }

    async fn binding(
        &mut self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        mode: Mode,
    ) -> Result<Status> {
        // Nobody can look at a binding. Making it again changes nothing and needs no `configure` permission, so it is made even if queues
        // may not be: without it every failed message is silently dropped.
        if matches!(mode, Mode::Compare | Mode::Exist) {
            return Ok(Status::Unknown);
        }
        let (wire, exchange, routing_key) = (name(queue)?, name(exchange)?, name(routing_key)?);
        let channel = self.channel().await?.lapin();
        let bound = channel.queue_bind(
            wire,
            exchange,
            routing_key,
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        match ask(Operation::Binding(queue), bound).await {
            Ok(()) => Ok(Status::Present),
            Err(error) if error.kind() == ErrorKind::AccessRefused && mode == Mode::Require => {
                Ok(Status::Unknown)
            }
            Err(error) => Err(error),
        }
    }
}
