//! The options of a consumer. Their defaults live here, for every language.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use super::{
    Message, Messages, Pause, Subscription,
    handler::{IntoOutcome, Judge, Running, run_workers},
};
use crate::{
    Client, Error, ErrorKind, MAX_DELAY, Result,
    retry::{Limits, Policy, Rule, Rules},
    telemetry::{Event, Listener},
    topology::{self, Plan, Strategy, WorkQueue},
};

/// A consumer before it runs: its options.
///
/// [`Client::consumer`] makes one that is ready to run; [`new`](Self::new) makes one
/// that gets its client later. Nothing is checked or sent until [`subscribe`](Self::subscribe), [`start`](Self::start) or
/// [`run`](Self::run).
#[derive(Clone)]
#[must_use = "a consumer does nothing until it is run"]
pub struct Consumer {
    pub(super) client: Option<Client>,
    pub(super) queue: String,
    pub(super) dlx: bool,
    pub(super) rules: Rules,
    pub(super) strategy: Strategy,
    pub(super) prefetch: u16,
    pub(super) priority: Option<i32>,
    pub(super) concurrency: usize,
    pub(super) handler_timeout: Option<Duration>,
    pub(super) drain_timeout: Duration,
    pub(super) park: bool,
    pub(super) pause: Option<Pause>,
    pub(super) declare: bool,
    pub(super) work_queue: Option<WorkQueue>,
    pub(super) reserved_name: bool,
    pub(super) put_back_whole: bool,
    /// As its client says unless this says otherwise.
    pub(super) wait: Option<bool>,
    pub(super) limits: Limits,
    pub(super) listener: Listener,
    pub(super) judge: Judge,
    /// The name of an option that says how to retry, if one was given.
    pub(super) retries_by: Option<&'static str>,
}

impl Consumer {
    /// A consumer of `queue` that has no client yet: it can be described, checked and
    /// [simulated](crate::Simulation) without a broker.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            client: None,
            queue: queue.into(),
            dlx: false,
            rules: Rules::default(),
            strategy: Strategy::default(),
            prefetch: 64,
            priority: None,
            concurrency: 16,
            handler_timeout: None,
            drain_timeout: Duration::from_secs(30),
            park: true,
            pause: None,
            declare: true,
            work_queue: None,
            reserved_name: false,
            put_back_whole: false,
            wait: None,
            limits: Limits::default(),
            listener: Listener::default(),
            judge: Judge::default(),
            retries_by: None,
        }
    }

    /// The client to consume with.
    pub fn client(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Whether failed messages are retried and parked. Off, a failure is rejected without requeue, and the queue's own
    /// dead-lettering decides; the first one warns. Off by default.
    pub fn dlx(mut self, dlx: bool) -> Self {
        self.dlx = dlx;
        self
    }

    /// The policy for failures that no rule matches. `exponential(1s, factor=4, max=5m, retries=5)` by default. Needs
    /// [`dlx`](Self::dlx).
    pub fn retry(mut self, policy: Policy) -> Self {
        self.rules.otherwise = policy;
        self.retries_by = Some("retry");
        self
    }

    /// How failed messages wait. [`Strategy::RetryQueues`] by default.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Rules that choose another policy; the first that holds decides. Needs [`dlx`](Self::dlx).
    pub fn rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.rules.rules = rules.into_iter().collect();
        if !self.rules.rules.is_empty() {
            self.retries_by.get_or_insert("rules");
        }
        self
    }

    /// How many messages may be unacknowledged at a time (AMQP `basic.qos`), 1 to 65535; 64 by default.
    pub fn prefetch(mut self, prefetch: u16) -> Self {
        self.prefetch = prefetch;
        self
    }

    /// Which consumers of the queue come first (the argument `x-priority` of AMQP's `basic.consume`): while one of a higher priority
    /// has room in its [`prefetch`](Self::prefetch), it gets the messages, and those of a lower one get none. May be negative; 0 by
    /// default. What is delivered already stays where it is. On a queue with a single active consumer, only quorum queues of
    /// RabbitMQ 4.0 and later choose that one by priority.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// How many handlers run at a time; 16 by default.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long a handler may take; longer is a failed attempt, and the handler is dropped. No limit by default,
    /// 365 days at most.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// How long closing waits for running handlers; what they hold then goes back to the queue. 30 seconds by default,
    /// 365 days at most.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Whether messages that are given up are parked. Off, they are acknowledged and gone; an event and a warning are
    /// all that is left. On by default; to turn it off needs [`dlx`](Self::dlx), without which nothing is parked anyway.
    ///
    /// With [`Strategy::Service`] it is about what is given up here: what a handler parks, and what takes its consumers down. What the
    /// service gives up after the last retry, its own policy says.
    pub fn park(mut self, park: bool) -> Self {
        self.park = park;
        self
    }

    /// Stops taking messages for a while when too many attempts fail. Off by default.
    pub fn pause(mut self, pause: Pause) -> Self {
        self.pause = Some(pause);
        self
    }

    /// Whether missing queues are made. Off, they must exist already (`retryrmq topology --apply`), and the user needs
    /// no permission to configure. On by default.
    ///
    /// With [`Strategy::DelayedExchange`] the work queue is bound to its exchange all the same (AMQP `queue.bind`), which needs write
    /// on the queue and read on the exchange. A user who may not is warned with each subscription: without the binding, failed
    /// messages are lost.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// What the work queue is made with when it is missing, or that it is never made. Needs [`dlx`](Self::dlx), without which no
    /// queue is made, unless it is [`WorkQueue::Existing`].
    pub fn work_queue(mut self, work_queue: WorkQueue) -> Self {
        self.work_queue = Some(work_queue);
        self
    }

    /// Consumes a queue although its name is one that waiting and parking queues have: `*.parked` or `*.retry.<number>`. Handling
    /// parked messages as if they were new would acknowledge them, and waiting messages would not wait, so such a name is refused
    /// unless this is on. Off by default. To look at parked messages or replay them, use [`Client::parked`].
    pub fn reserved_name(mut self, reserved_name: bool) -> Self {
        self.reserved_name = reserved_name;
        self
    }

    /// Messages that no handler began with always go back to the queue as they are. Off by default: where a return looks like a crash to
    /// the next reader, a copy goes to the queue instead, without what the broker wrote on the original, such as `x-death`. For a
    /// queue whose messages mean nothing without that, and which bounds no deliveries.
    pub fn put_back_whole(mut self, put_back_whole: bool) -> Self {
        self.put_back_whole = put_back_whole;
        self
    }

    /// Whether subscribing waits for a broker that went again or whose queues have no leaders yet, with a growing pause and a line in the
    /// log for each try, until the client is closed. Unless this says otherwise it does where the client
    /// [waits](crate::ClientOptions::wait()) for its broker. For a caller that tries again by itself.
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The bounds on crashes and deferrals. If fewer crashes park a message than make it a suspect, it is a suspect from that
    /// number on.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Limits {
            suspect: limits.suspect.min(limits.crashes),
            ..limits
        };
        self
    }

    /// Tells `listener` of every event. It runs on the consumer's engine and must be quick.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listener = Listener::new(listener);
        self
    }

    /// Says which errors no retry can mend: where `says` is true of the error that a handler returned, or of one in the chain of
    /// its causes, the message is parked at once. Called several times, any of them decides. A [`Signal`](super::Signal)
    /// comes first; a function that panics decides nothing, and that is logged. Needs [`dlx`](Self::dlx).
    ///
    /// ```
    /// # use retryrmq::Consumer;
    /// let orders = Consumer::new("orders")
    ///     .dlx(true)
    ///     .fatal(|error| error.is::<std::str::Utf8Error>())
    ///     .fatal(|error| {
    ///         error
    ///             .downcast_ref::<std::io::Error>()
    ///             .is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    ///     });
    /// ```
    pub fn fatal(
        mut self,
        says: impl Fn(&(dyn StdError + 'static)) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.judge.add_fatal(says);
        self.retries_by.get_or_insert("fatal");
        self
    }

    /// Names types of errors, for [rules](Rule::error) and for the record of a parked message. `names` is called with the error
    /// that a handler returned and with every one in the chain of its causes. The outermost name goes into the record; rules see
    /// all of them.
    ///
    /// In Rust an error does not say its type by itself. Known without this are the type that a handler declares, errors of
    /// the standard library (an [`std::io::Error`] is named by its [kind](std::io::ErrorKind), such as `TimedOut`), of tokio, and
    /// ours; everything that is a timeout is a `TimeoutError` as well, as in every language. Of an error that a transparent enum or
    /// a boxed report hides, only the causes are seen.
    ///
    /// ```
    /// # use retryrmq::Consumer;
    /// # use std::fmt;
    /// #[derive(Debug)]
    /// enum ShopError { OutOfStock, Carrier(std::io::Error) }
    /// # impl fmt::Display for ShopError { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("shop") } }
    /// # impl std::error::Error for ShopError {}
    ///
    /// let orders = Consumer::new("orders")
    ///     .dlx(true)
    ///     .rules(["error=OutOfStock => fixed(10m)".parse()?])
    ///     .error_type(|error| match error.downcast_ref()? {
    ///         ShopError::OutOfStock => Some("OutOfStock"),
    ///         ShopError::Carrier(_) => None,
    ///     });
    /// # Ok::<(), retryrmq::Error>(())
    /// ```
    pub fn error_type<N: Into<String>>(
        mut self,
        names: impl Fn(&(dyn StdError + 'static)) -> Option<N> + Send + Sync + 'static,
    ) -> Self {
        self.judge.add_error_type(names);
        self
    }

    /// What this consumer needs on the broker: pure, nothing is asked or made.
    ///
    /// # Errors
    /// As [`Strategy::plan`].
    pub fn plan(&self) -> Result<Plan> {
        if self.dlx {
            let queue_type = self
                .client
                .as_ref()
                .map(|client| client.options().queue_type)
                .unwrap_or_default();
            self.strategy.plan(
                &self.queue,
                &self.rules,
                queue_type,
                self.work_queue.as_ref(),
            )
        } else {
            Ok(Plan {
                items: vec![crate::topology::existing(&self.queue)],
            })
        }
    }

    /// How many handlers run at a time, for callers that run handlers themselves.
    #[must_use]
    pub fn handlers(&self) -> usize {
        self.concurrency
    }

    /// The handler timeout, for callers that run handlers themselves.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.handler_timeout
    }

    /// The drain timeout, for callers that run handlers themselves.
    #[must_use]
    pub fn last_call(&self) -> Duration {
        self.drain_timeout
    }

    /// What handlers' errors mean, for callers that run handlers themselves.
    #[must_use]
    pub fn judge(&self) -> Judge {
        self.judge.clone()
    }

    /// How many messages may be unacknowledged at a time.
    #[must_use]
    pub fn window(&self) -> u16 {
        self.prefetch
    }

    /// The fewest retries after which a message may be parked; `None` where none is. A service may park any.
    pub(super) fn patience(&self) -> Option<u32> {
        let known = || match self.strategy.hands_over() {
            true => 0,
            false => self.rules.patience(),
        };
        self.dlx.then(known)
    }

    /// Checks every option by itself; nothing is asked of a broker. [`subscribe`](Self::subscribe) does it first.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], [`ErrorKind::InvalidPolicy`], and [`ErrorKind::TooLarge`] for a queue's name that is too
    /// long for what is made from it.
    pub fn validate(&self) -> Result<()> {
        let bad = |why: &str| Err(Error::new(ErrorKind::InvalidOption, why));
        if self.queue.is_empty() {
            return bad("`queue` is empty; name the queue to consume");
        }
        if self.queue.contains(['\r', '\n']) {
            return bad(
                "the name of `queue` holds a line break, which RabbitMQ leaves out of a name when it declares a queue",
            );
        }
        topology::name(&self.queue)?;
        if let Some(work) = topology::work_queue_of(&self.queue).filter(|_| !self.reserved_name) {
            return bad(&format!(
                "`{}` is where messages of `{work}` wait or are parked, and to consume it takes them away; name `{work}`, \
                 or replay what is parked; or, if this is a queue of your own, say so with `reserved_name`",
                self.queue
            ));
        }
        if self.dlx {
            // The longest of the names that are made from it.
            topology::name(&topology::waiting_queue(&self.queue, MAX_DELAY))?;
        }
        if !self.dlx && !matches!(self.work_queue, None | Some(WorkQueue::Existing)) {
            return bad(
                "`work_queue` needs `dlx`: without it no queue is made; declare the queue yourself, or say `existing`",
            );
        }
        let given_up = (!self.park).then_some("park");
        if let Some(option) = self.retries_by.or(given_up).filter(|_| !self.dlx) {
            return bad(&format!(
                "`{option}` needs `dlx`: without it a failed message is rejected, and dropped where its queue has no dead-letter route"
            ));
        }
        if self.prefetch == 0 {
            return bad(
                "`prefetch` must be at least 1: without it the broker would send the whole queue at once",
            );
        }
        if self.concurrency == 0 {
            return bad("`concurrency` must be at least 1");
        }
        if self
            .handler_timeout
            .is_some_and(|timeout| timeout.is_zero())
        {
            return bad("`handler_timeout` must be longer than 0");
        }
        for (option, time) in [
            ("handler_timeout", self.handler_timeout),
            ("drain_timeout", Some(self.drain_timeout)),
        ] {
            if time.is_some_and(|time| time > MAX_DELAY) {
                return bad(&format!("`{option}` must be at most 365d"));
            }
        }
        if self.limits.crashes == 0 || self.limits.suspect == 0 {
            return bad("`limits.crashes` and `limits.suspect` must be at least 1");
        }
        self.pause.as_ref().map_or(Ok(()), Pause::validate)?;
        self.rules.validate()
    }

    /// Subscribes, and lets the caller run the handlers: messages come in batches, outcomes go back.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], [`ErrorKind::InvalidPolicy`], [`ErrorKind::StrategyRefused`],
    /// [`ErrorKind::QueueNotFound`], [`ErrorKind::Mismatch`], [`ErrorKind::AccessRefused`], [`ErrorKind::TooLarge`],
    /// [`ErrorKind::Closed`] without a client, and those of a lost connection. No message was taken.
    pub async fn subscribe(mut self) -> Result<Subscription> {
        let client = self.client.take().ok_or_else(|| {
            Error::new(
                ErrorKind::Closed,
                "this consumer has no client; give it one with `client`, or make it with `Client::consumer`",
            )
        })?;
        Subscription::open(self.client(client.clone()), client).await
    }

    /// Subscribes, and gives the messages one by one, each to be answered by hand. At most [`prefetch`](Self::prefetch) wait for their
    /// answer at a time; [`concurrency`](Self::concurrency) and [`handler_timeout`](Self::handler_timeout) are up to the caller.
    ///
    /// ```no_run
    /// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
    /// let mut orders = rmq.consumer("orders").dlx(true).messages().await?;
    /// while let Some(order) = orders.next().await {
    ///     let stored = std::fs::write("last-order", order.message().body());
    ///     order.settle(stored); // an error retries, Ok acknowledges
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Attempt`](super::Attempt) says what becomes of a message that is dropped without an answer.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub async fn messages(self) -> Result<Messages> {
        let (judge, dlx) = (self.judge(), self.dlx);
        Ok(Messages::new(self.subscribe().await?, judge, dlx))
    }

    /// Starts handling messages in the background.
    ///
    /// A handler that returns `Ok` acknowledges; `Err` retries, or does what a [`Signal`](super::Signal) among its
    /// causes or [`fatal`](Self::fatal) says; a panic or the handler timeout is a failed attempt.
    ///
    /// Each attempt runs in a `tracing` span of its own, `attempt`, at the level INFO and without a parent, with the fields `queue`,
    /// `attempt`, `message_id`, and, where the message's headers have a W3C trace context, `traceparent` and `tracestate`. To continue
    /// that trace with `tracing-opentelemetry`, hand [`Message::headers`](super::Message::headers) to its propagator, and the context to
    /// `Span::current().set_parent` at the beginning of the handler.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub async fn start<F, R, By>(self, handler: F) -> Result<Running>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome<By>> + Send + 'static,
        By: 'static,
    {
        let (concurrency, timeout) = (self.concurrency, self.handler_timeout);
        let judge = self.judge();
        let subscription = Arc::new(self.subscribe().await?);
        Ok(run_workers(
            subscription,
            handler,
            judge,
            concurrency,
            timeout,
        ))
    }

    /// Handles messages until the client is closed. It handles no signals: a process that is ended by one does not drain, and what
    /// it held comes again. To drain at Ctrl-C, use [`run_until`](Self::run_until).
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe); and why the client ended by itself, see
    /// [`ClientOptions::end_when_refused`](crate::ClientOptions).
    pub async fn run<F, R, By>(self, handler: F) -> Result<()>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome<By>> + Send + 'static,
        By: 'static,
    {
        self.run_until(std::future::pending(), handler).await
    }

    /// Handles messages until `end` resolves, and then drains: handlers that run may finish, the rest goes back.
    ///
    /// ```no_run
    /// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
    /// let ctrl_c = async { let _ = tokio::signal::ctrl_c().await; };
    /// rmq.consumer("orders")
    ///     .dlx(true)
    ///     .run_until(ctrl_c, |_message| async { Ok::<(), std::io::Error>(()) })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_until<F, R, By>(
        self,
        end: impl Future<Output = ()> + Send,
        handler: F,
    ) -> Result<()>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome<By>> + Send + 'static,
        By: 'static,
    {
        let client = self.client.clone();
        let running = self.start(handler).await?;
        tokio::select! {
            () = end => running.close().await,
            () = running.closed() => {
                if let Some(error) = client.and_then(|client| client.end()) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &self.queue)
            .field("dlx", &self.dlx)
            .field("retry", &self.rules.otherwise.to_string())
            .field("strategy", &self.strategy)
            .field("prefetch", &self.prefetch)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_queues_are_consumed_only_by_whoever_says_so() {
        for (queue, work) in [
            ("orders.parked", "`orders`"),
            ("orders.retry.1000", "`orders`"),
            ("orders.parked.retry.1000", "`orders.parked`"),
        ] {
            let error = Consumer::new(queue).validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(work), "{error}");
            assert!(error.to_string().contains("`reserved_name`"), "{error}");
            Consumer::new(queue).dlx(true).validate().unwrap_err();
            Consumer::new(queue).reserved_name(true).validate().unwrap();
        }
        for queue in [
            "parked",
            ".parked",
            "orders.retry.",
            "orders.retry.1s",
            "orders.parked.x",
        ] {
            Consumer::new(queue).validate().unwrap();
        }
    }

    #[test]
    fn nobody_is_a_suspect_later_than_it_is_parked() {
        let consumer = Consumer::new("orders").limits(Limits {
            crashes: 2,
            ..Limits::default()
        });
        assert_eq!((consumer.limits.suspect, consumer.limits.crashes), (2, 2));
    }

    #[test]
    fn how_to_retry_means_nothing_without_dlx() {
        let policy = || "fixed(1s)".parse::<Policy>().unwrap();
        let rule = || "error=x => fixed(1s)".parse::<Rule>().unwrap();
        for (consumer, named) in [
            (
                Consumer::new("orders").retry(policy()),
                "`retry` needs `dlx`",
            ),
            (
                Consumer::new("orders").rules([rule()]),
                "`rules` needs `dlx`",
            ),
            (
                Consumer::new("orders").dlx(true).retry(policy()).dlx(false),
                "`retry` needs `dlx`",
            ),
            (
                Consumer::new("orders").fatal(|_| false),
                "`fatal` needs `dlx`",
            ),
            (Consumer::new("orders").park(false), "`park` needs `dlx`"),
        ] {
            let error = consumer.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(named), "{error}");
        }
        for consumer in [
            Consumer::new("orders"),
            Consumer::new("orders").rules([]),
            Consumer::new("orders")
                .retry(policy())
                .rules([rule()])
                .fatal(|_| false)
                .park(false)
                .dlx(true),
            Consumer::new("orders").park(true),
        ] {
            consumer.validate().unwrap();
        }
    }
}
