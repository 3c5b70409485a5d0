//! What a message goes through.

use retryrmq::{Client, ClientOptions, Event, Failure, Message, Outcome, Strategy, WorkQueue};
use retryrmq_harness::{Class, Mqtt, MqttMessage, QueueType, Vhost};

use crate::{
    fixture::{INTAKE, NativeConsumer, declare},
    ledger::{HandlerScript, Ledger, replay},
    publishers::{Mixture, Publishers, Target, bind_queue, declare_exchange},
    rare,
};

const DELAYED: &str = "retryrmq.delayed";

/// Messages of this run.
fn messages(usual: Class, (rare, one_in): (Class, u32)) -> Mixture {
    let seed = std::env::var("RETRYRMQ_STRANGE_SEED").ok();
    Mixture {
        seed: seed.map_or(0, |seed| seed.parse().expect("a seed is a number")),
        usual,
        rare,
        one_in,
    }
}

fn outcome(ledger: &Ledger, message: &Message) -> Outcome {
    match ledger.delivered(message.body()) {
        HandlerScript::Handled => Outcome::Ack,
        HandlerScript::Failed => Outcome::retry(Failure::new("no answer")),
        HandlerScript::Parked => Outcome::park(Failure::new("for a person")),
    }
}

/// Says why a consumer does not go on.
fn stops(event: &Event) {
    if let Event::ConsumingStopped { queue, error, .. } = event {
        eprintln!("the consumer of {queue} stops: {error}");
    }
}

/// Consumers with the library: retries, parking and replay.
pub(crate) struct LibraryConsumers {
    pub(crate) kind: QueueType,
    pub(crate) strategy: Strategy,
}

impl LibraryConsumers {
    pub(crate) async fn run(&self, vhost: &Vhost, count: u32) {
        let way = format!(
            "RabbitMQ {}, {:?}, {}",
            vhost.broker().version(),
            self.strategy,
            self.kind
        );
        let kind = match self.kind {
            QueueType::Classic => retryrmq::QueueType::Classic,
            QueueType::Quorum => retryrmq::QueueType::Quorum,
        };
        let options = ClientOptions::new().queue_type(kind);
        let client = Client::connect_with(vhost.url(), options).await.unwrap();
        let mut consumer = client
            .consumer("strange")
            .dlx(true)
            .work_queue(WorkQueue::Type(kind))
            .prefetch(50)
            .concurrency(50)
            .strategy(self.strategy);
        if self.strategy != Strategy::Service {
            consumer = consumer.retry("fixed(50ms, retries=2)".parse().unwrap());
        }
        let ledger = Ledger::default();
        let noted = ledger.clone();
        let running = consumer.on_event(stops).start(move |message: Message| {
            let outcome = outcome(&noted, &message);
            async move { outcome }
        });
        let running = running.await.unwrap();
        let target = Target::Queue("strange");
        let mut publishers = Publishers::connect(
            vhost,
            target,
            messages(Class::Readable, rare(vhost.broker())),
        )
        .await;
        ledger.sent(count, &publishers.publish(count).await);
        ledger.settle(vhost, &client, &["strange"]).await;
        ledger.mend();
        let replayed = replay(&client, "strange").await;
        let still = ledger.settle(vhost, &client, &["strange"]).await;
        ledger.balance(&way, &still, &replayed);
        // What they cannot be given costs connections, and nothing else does.
        let reconnects = running.stats().reconnects;
        assert!(reconnects == 0 || still.has_unreadable(), "{way}");
        running.close().await;
        client.close().await;
    }
}

/// RabbitMQ leaves out what a publisher of AMQP 1.0 would make a consumer lose its connection with (fact 94).
pub(crate) async fn long_content_type_of_mqtt(vhost: &Vhost) {
    let amqp = vhost.connect().await;
    amqp.declare("sensors", QueueType::Quorum).await;
    bind_queue(&amqp, "sensors", "amq.topic", "sensors").await;
    let messages = [255, 256].map(|bytes| MqttMessage::new("x").content_type(&"t".repeat(bytes)));
    Mqtt::connect(vhost)
        .await
        .publish_all("sensors", &messages)
        .await;
    let mut lengths = Vec::new();
    while let Some(message) = amqp.take("sensors").await {
        let kind = message.properties.content_type();
        lengths.push(kind.as_ref().map(|kind| kind.as_str().len()));
    }
    assert_eq!(lengths, [Some(255), None]);
}

/// Consumers without the library, which reject what the service then retries and parks.
pub(crate) async fn rejected(vhost: &Vhost, kind: QueueType, count: u32) {
    let way = format!("RabbitMQ {}, rejected, {kind}", vhost.broker().version());
    let amqp = vhost.connect().await;
    declare(&amqp, "native", kind, kind == QueueType::Quorum).await;
    let ledger = Ledger::default();
    let noted = ledger.clone();
    let _native = NativeConsumer::start(vhost, "native", move |seen| {
        noted.delivered(&seen.body) == HandlerScript::Handled
    })
    .await;
    let target = Target::Queue("native");
    // Its own client gives up its connection for a name that is no text.
    let mut publishers =
        Publishers::connect(vhost, target, messages(Class::Text, (Class::Text, 1))).await;
    ledger.sent(count, &publishers.publish(count).await);
    let queues = ["native", INTAKE];
    let client = Client::connect(vhost.url()).await.unwrap();
    ledger.settle(vhost, &client, &queues).await;
    ledger.mend();
    let replayed = replay(&client, "native").await;
    let still = ledger.settle(vhost, &client, &queues).await;
    ledger.balance(&way, &still, &replayed);
    client.close().await;
}

/// Messages with a delay.
pub(crate) async fn delayed(vhost: &Vhost, count: u32) {
    let way = format!("RabbitMQ {}, delayed", vhost.broker().version());
    let amqp = vhost.connect().await;
    declare_exchange(&amqp, "shop").await;
    amqp.declare("due", QueueType::Quorum).await;
    bind_queue(&amqp, "due", "shop", "order.#").await;
    let ledger = Ledger::default();
    ledger.mend();
    let client = Client::connect(vhost.url()).await.unwrap();
    let noted = ledger.clone();
    let running =
        client
            .consumer("due")
            .dlx(true)
            .on_event(stops)
            .start(move |message: Message| {
                let outcome = outcome(&noted, &message);
                async move { outcome }
            });
    let running = running.await.unwrap();
    let target = Target::Delayed("orders", "order.new");
    let mut publishers = Publishers::connect(
        vhost,
        target,
        messages(Class::Readable, rare(vhost.broker())),
    )
    .await;
    ledger.sent(count, &publishers.publish(count).await);
    let queues = ["due", DELAYED];
    ledger.settle(vhost, &client, &queues).await;
    let replayed = replay(&client, DELAYED).await;
    let still = ledger.settle(vhost, &client, &queues).await;
    ledger.balance(&way, &still, &replayed);
    running.close().await;
    client.close().await;
}
