//! What publishers of another protocol than AMQP 0-9-1 can have sent, and what no copy may have.

use std::sync::{Arc, Mutex};

use retryrmq::{Client, DIRECT_REPLY_TO, Message, Strategy};
use retryrmq_harness::{
    Amqp, Amqp10, Broker, Message10, Policy, QueueType, Value10, Version, Vhost, eventually,
    lapin::types::AMQPValue, on_every_broker_where,
};
use serde_json::json;

use crate::{
    delayed::{POLICY, shop},
    fixture::{DEADLINE, INTAKE_PARKED, NativeConsumer, Replica, declare, id, policy, take, text},
    server::{KINDS, Servers, available},
};

const HEADER: &str = "x-retry-reply-to";
const MANY: usize = 130;

fn speaks_1_0(broker: &Broker) -> bool {
    broker.version() >= Version::V4_0
}

async fn publish(vhost: &Vhost, address: &str, ids: impl IntoIterator<Item = String>) {
    let mut publisher = Amqp10::connect(vhost).await;
    for id in ids {
        let message = Message10::new("x").id(&id).reply_to(DIRECT_REPLY_TO);
        publisher.publish(address, &message).await;
    }
}

async fn is_parked(amqp: &Amqp, queue: &str, count: usize) {
    for message in take(amqp, queue, count).await {
        assert_eq!(message.properties.reply_to(), &None);
        let said = message.header_text("x-retry-error");
        assert_eq!(
            message.header(HEADER),
            Some(text(DIRECT_REPLY_TO)),
            "{said:?}"
        );
    }
}

/// A message of the queue `other` fails once, and comes back.
async fn other_queue_is_served(vhost: &Vhost, amqp: &Amqp) -> OtherQueue {
    let came = Arc::<Mutex<Vec<usize>>>::default();
    let seen = Arc::clone(&came);
    let other = NativeConsumer::start(vhost, "other", move |message| {
        let attempt = message.attempt();
        seen.lock().unwrap().push(attempt);
        attempt > 1
    });
    let other = other.await;
    amqp.publish_with("other", "x", id("other")).await;
    eventually(DEADLINE, "the other queue is served", || async {
        came.lock().unwrap().contains(&2)
    })
    .await;
    OtherQueue {
        _other: other,
        came,
    }
}

/// A consumer of the queue `other`, and the attempts that it saw.
struct OtherQueue {
    _other: NativeConsumer,
    came: Arc<Mutex<Vec<usize>>>,
}

/// Messages that ask for direct replies fail, and another queue's message beside them.
async fn all_come_back(vhost: &Vhost, replica: &Replica) {
    let amqp = vhost.connect().await;
    for queue in ["orders", "other"] {
        declare(&amqp, queue, QueueType::Quorum, true).await;
    }
    publish(
        vhost,
        "/queues/orders",
        (0..MANY).map(|number| number.to_string()),
    )
    .await;
    let _orders = NativeConsumer::start(vhost, "orders", |_| false).await;
    let other = other_queue_is_served(vhost, &amqp).await;
    is_parked(&amqp, "orders.parked", MANY).await;
    // The last message has gone through everything, and none was delivered twice.
    publish(vhost, "/queues/orders", ["last".to_owned()]).await;
    let last = take(&amqp, "orders.parked", 1).await;
    assert_eq!(
        last[0]
            .properties
            .message_id()
            .as_ref()
            .map(|id| id.as_str()),
        Some("last")
    );
    assert_eq!(*other.came.lock().unwrap(), [1, 2]);
    assert_eq!(replica.said("could not be stored"), 0);
}

#[tokio::test]
async fn what_asks_for_direct_replies_is_retried_and_parked_like_all_others() {
    on_every_broker_where(speaks_1_0, |broker| async move {
        let vhost = broker.vhost().await;
        let file = policy("[defaults]\nretry = \"list(100ms)\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        all_come_back(&vhost, &replica).await;
        // What the intake cannot make sense of.
        publish(&vhost, "/queues/retryrmq.intake", ["stray".to_owned()]).await;
        is_parked(&vhost.connect().await, INTAKE_PARKED, 1).await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn what_asks_for_direct_replies_waits_in_redis_like_all_others() {
    on_every_broker_where(
        |broker| speaks_1_0(broker) && available(),
        |broker| async move {
            let servers = Servers::new(KINDS[0]);
            servers.start(0, &[]);
            let vhost = broker.vhost().await;
            let file = policy(&format!(
                "[defaults]\nretry = \"list(100ms)\"\n[store.redis]\naddresses = [\"{}\"]\n",
                servers.address(0)
            ));
            let replica = Replica::start(&vhost, Some(file.path())).await;
            all_come_back(&vhost, &replica).await;
            assert!(replica.end().await.success());
        },
    )
    .await;
}

#[tokio::test]
async fn what_asks_for_direct_replies_is_handed_over_like_all_others() {
    on_every_broker_where(speaks_1_0, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"list(100ms)\"\n");
        let _replica = Replica::start(&vhost, Some(file.path())).await;
        amqp.declare("orders", QueueType::Quorum).await;
        publish(&vhost, "/queues/orders", ["asks".to_owned()]).await;
        let client = Client::connect(vhost.url()).await.unwrap();
        let consumer = client
            .consumer("orders")
            .dlx(true)
            .strategy(Strategy::Service);
        let running = consumer.start(|message: Message| async move {
            let address = message.properties().reply_to().as_ref();
            assert_eq!(address.map(|one| one.as_str()), Some(DIRECT_REPLY_TO));
            Err::<(), _>("no")
        });
        let running = running.await.unwrap();
        let parked = take(&amqp, "orders.parked", 1).await.remove(0);
        assert_eq!(parked.header(HEADER), Some(text(DIRECT_REPLY_TO)));
        assert_eq!(parked.header_text("x-retry-error").as_deref(), Some("no"));
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn what_asks_for_direct_replies_is_delayed_like_all_others() {
    on_every_broker_where(speaks_1_0, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        shop(&amqp, "shop").await;
        let file = policy(POLICY);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        let mut publisher = Amqp10::connect(&vhost).await;
        for (id, key) in [("due", "order.new"), ("astray", "nobody.takes.it")] {
            let message = Message10::new("x")
                .id(id)
                .reply_to(DIRECT_REPLY_TO)
                .property("x-delay", retryrmq_harness::amqp10::long(300))
                .property("CC", retryrmq_harness::amqp10::string("due"))
                .property("BCC", retryrmq_harness::amqp10::string("due"));
            publisher
                .publish(&format!("/exchanges/orders/{key}"), &message)
                .await;
        }
        let due = take(&amqp, "due", 1).await.remove(0);
        assert_eq!(due.id(), Some("due"));
        assert_eq!(due.header("x-delay"), Some(AMQPValue::LongLongInt(-300)));
        assert_eq!(due.header(HEADER), Some(text(DIRECT_REPLY_TO)));
        is_parked(&amqp, "retryrmq.delayed.parked", 1).await;
    })
    .await;
}

/// A message that no client of AMQP 0-9-1 can be given.
fn bomb(id: &str) -> Message10 {
    let tenant = retryrmq_harness::amqp10::uuid([7; 16]);
    Message10::new("x").id(id).property("tenant", tenant)
}

/// Waits until one message is in the queue, and takes none: it cannot be taken over AMQP 0-9-1.
async fn is_set_aside(amqp: &Amqp, queue: &str) {
    eventually(DEADLINE, "it is set aside", || async {
        match amqp.depth(queue).await {
            Some(1) => Ok(()),
            depth => Err(format!("{queue}: {depth:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_delivered_is_set_aside_and_all_other_queues_are_served() {
    on_every_broker_where(speaks_1_0, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        shop(&amqp, "shop").await;
        let file = policy(&format!("{POLICY}[defaults]\nretry = \"list(100ms)\"\n"));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        declare(&amqp, "other", QueueType::Quorum, true).await;
        let mut publisher = Amqp10::connect(&vhost).await;
        publisher
            .publish("/queues/retryrmq.intake", &bomb("dead"))
            .await;
        let late = bomb("late").property("x-delay", retryrmq_harness::amqp10::long(300));
        publisher
            .publish("/exchanges/orders/order.new", &late)
            .await;
        other_queue_is_served(&vhost, &amqp).await;
        is_set_aside(&amqp, "retryrmq.intake.unreadable").await;
        is_set_aside(&amqp, "retryrmq.delayed.unreadable").await;
        assert_eq!(amqp.depth("retryrmq.intake").await, Some(0));
        eventually(DEADLINE, "the service is ready", || async {
            match replica.page("/readyz").await {
                (200, _) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert!(replica.end().await.success());
    })
    .await;
}

/// A publisher can send what neither AMQP 0-9-1 nor AMQP 1.0 can carry.
#[tokio::test]
async fn what_nobody_can_move_stops_the_intake_until_a_policy_removes_it() {
    on_every_broker_where(speaks_1_0, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"list(100ms)\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "other", QueueType::Quorum, true).await;
        let null = Value10::symbol("x-null");
        let neither = bomb("neither").annotation(null, Value10::Null);
        let mut publisher = Amqp10::connect(&vhost).await;
        publisher.publish("/queues/retryrmq.intake", &neither).await;
        replica.says("remove it with a policy").await;
        // The connection that the message ended was also that of the handover.
        eventually(DEADLINE, "only the intake is not consumed", || async {
            let (status, why) = replica.page("/readyz").await;
            if status == 503 && why.starts_with("retryrmq.intake is not consumed") {
                return Ok(());
            }
            Err(format!("{status} {why}"))
        })
        .await;
        let none = json!({ "max-length": 0, "overflow": "drop-head" });
        let none = Policy::new(r"^retryrmq\.intake$", none);
        vhost.put_policy("remove", &none).await.unwrap();
        eventually(DEADLINE, "the message is removed", || async {
            amqp.depth(INTAKE_PARKED).await == Some(1)
        })
        .await;
        let management = broker.management();
        let cleared = management.delete_policy(vhost.name(), "remove");
        cleared.await.unwrap();
        other_queue_is_served(&vhost, &amqp).await;
        assert!(replica.end().await.success());
    })
    .await;
}
