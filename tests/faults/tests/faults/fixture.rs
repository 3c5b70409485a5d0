//! The stage of most tests: a vhost with a work queue and a client.

use futures_util::future::BoxFuture;
use retryrmq::{Client, Message, Publish};
use retryrmq_faults::{load, recorder::Recorder};
use retryrmq_harness::{Amqp, Broker, CutProxy, Direction, QueueType, Vhost, eventually};
use tokio::sync::watch;

pub(crate) const QUEUE: &str = "orders";
pub(crate) const WORKER: &str = env!("CARGO_BIN_EXE_faults-worker");

/// A vhost with a work queue in it, and a connection of the test's own.
pub(crate) struct Fixture {
    pub(crate) vhost: Vhost,
    pub(crate) amqp: Amqp,
}

impl Fixture {
    pub(crate) async fn set(broker: &Broker, kind: QueueType) -> Self {
        show_logs();
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, kind).await;
        Fixture { vhost, amqp }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.vhost.url())
            .await
            .expect("the broker lets us in")
    }

    /// Waits until the queue has no message left that is ready or unacknowledged, which only the broker knows.
    pub(crate) async fn is_empty(&self, queue: &str) {
        eventually(
            retryrmq_faults::DEADLINE,
            &format!("{queue} is empty"),
            || async {
                let queue = self.vhost.queue(queue).await.expect("the queue exists");
                match queue.messages() {
                    Some(0) => Ok(()),
                    messages => Err(format!("{messages:?} messages")),
                }
            },
        )
        .await;
    }

    /// Waits until no connection of the library is open in the vhost.
    pub(crate) async fn no_connection_is_left(&self) {
        no_connection_is_left(self.vhost.broker(), self.vhost.name()).await;
    }
}

/// A question to a broker that does not answer. What ends before it is given up waits for no answer, however busy the machine is.
pub(crate) struct UnansweredQuestion {
    client: Client,
    proxy: CutProxy,
}

impl UnansweredQuestion {
    const QUEUE: &str = "unanswered";

    /// All but the question.
    pub(crate) async fn prepare(fixture: &Fixture) -> Self {
        fixture.amqp.declare(Self::QUEUE, QueueType::Classic).await;
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let client = Client::connect(proxy.url()).await.unwrap();
        let question = UnansweredQuestion { client, proxy };
        // Only the confirm of the next is missing.
        question.ask().await.unwrap();
        question.proxy.stall(Direction::Both);
        question
    }

    async fn ask(&self) -> retryrmq::Result<()> {
        self.client
            .publish(Publish::to_queue(Self::QUEUE, ""))
            .await
    }

    /// Asks, and waits until that is given up.
    pub(crate) async fn given_up(&self) -> retryrmq::Error {
        self.ask().await.expect_err("nobody answers")
    }

    /// Leaves no connection.
    pub(crate) async fn withdraw(self) {
        self.proxy.resume();
        self.client.close().await;
    }
}

/// Waits until no connection of the library is open in a vhost.
pub(crate) async fn no_connection_is_left(broker: &Broker, vhost: &str) {
    eventually(
        retryrmq_faults::DEADLINE,
        "no connection is left",
        || async {
            let open = broker.management().connections(vhost).await.unwrap();
            let ours: Vec<_> = open
                .into_iter()
                .filter(|open| open.raw["client_properties"]["product"] == "retryrmq")
                .filter_map(|open| open.client_name)
                .collect();
            if ours.is_empty() {
                Ok(())
            } else {
                Err(format!("{ours:?}"))
            }
        },
    )
    .await;
}

/// The handler of the load: what it sees goes on tape, what it has handled is told.
pub(crate) fn loaded(
    recorder: &Recorder,
    done: impl Fn(&str) + Clone + Send + Sync + 'static,
) -> impl Fn(Message) -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static {
    let recorder = recorder.clone();
    move |message: Message| {
        let (recorder, done) = (recorder.clone(), done.clone());
        Box::pin(async move {
            let (id, attempt) = (recorder.attempt(&message), message.attempt());
            tokio::time::sleep(load::duration(&id, attempt)).await;
            if load::fails(&id, attempt) {
                return Err(format!("attempt {attempt} at {id} fails by rule"));
            }
            recorder.success(&id);
            done(&id);
            Ok(())
        })
    }
}

/// Holds handlers until it is opened.
#[derive(Clone)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Gate(watch::Sender::new(false))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn pass(&self) {
        // The sender is ours, so there is always one.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

pub(crate) async fn seen(what: &str, condition: impl Fn() -> bool) {
    eventually(retryrmq_faults::DEADLINE, what, || async { condition() }).await;
}

/// With `RUST_LOG`, what the library says; otherwise silence.
pub(crate) fn show_logs() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into()),
        )
        .with_test_writer()
        .try_init();
}
