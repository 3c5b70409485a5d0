//! What becomes of a waiting queue that was declared while one of its nodes was away, once that node leads it.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use retryrmq_facts::*;
use retryrmq_harness::{Broker, Node, QueueType, Version, eventually, on_brokers_where};

/// How long a member that came late may take to follow, and then to lead.
const LONG: Duration = Duration::from_secs(240);

/// Fact 82.
#[tokio::test]
async fn what_is_due_in_a_queue_whose_leader_came_late_stays_until_another_leads() {
    // On 4.0 a member that came late could not be made to lead.
    let suits = |broker: &Broker| {
        broker.is_controllable() && !(Version::V4_0..Version::V4_3).contains(&broker.version())
    };
    on_brokers_where(suits, |broker| async move {
        let (one, other, late) = tokio::join!(
            broker.own_node(&[]),
            broker.own_node(&[]),
            broker.own_node(&[])
        );
        other.join(&one).await;
        late.join(&one).await;
        let amqp = one.connect().await;
        amqp.declare("home", QueueType::Classic).await;
        amqp.declare_with("sound", QueueType::Quorum, waiting())
            .await;
        late.stop().await;
        amqp.declare_with("waits", QueueType::Quorum, waiting())
            .await;
        late.start().await;
        lead(&late, "waits").await;

        // Confirmed like any other, and due before those that come home.
        amqp.publish("waits", "held").await;
        eventually(DEADLINE, "it is due", || async {
            amqp.depth("waits").await == Some(0)
        })
        .await;
        for body in ["first", "second"] {
            amqp.publish("sound", body).await;
        }
        let depth = || async { amqp.depth("home").await };
        let is_held = broker.version() < Version::V4_0;
        let coming = if is_held { 2 } else { 3 };
        let all_but_one = || async { depth().await >= Some(coming) };
        eventually(DEADLINE, "what waits elsewhere comes", all_but_one).await;
        let bodies: Vec<_> = amqp
            .drain("home")
            .await
            .into_iter()
            .map(|m| m.body)
            .collect();
        assert_eq!(!bodies.contains(&b"held".to_vec()), is_held, "{bodies:?}");
        if is_held {
            // As `rabbitmq-queues delete_member` and `add_member` do. Another leads, and the member that comes anew is sound.
            let place = "<<\"/\">>, <<\"waits\">>, node()";
            let anew = format!(
                "{{rabbit_quorum_queue:delete_member({place}), rabbit_quorum_queue:add_member({place}, 60000)}}."
            );
            assert_eq!(late.ctl(&["eval", &anew]).await.trim(), "{ok,ok}");
            eventually(DEADLINE, "another leads", || async {
                depth().await == Some(1)
            })
            .await;
            lead(&late, "waits").await;
            amqp.publish("waits", "free").await;
            eventually(DEADLINE, "it comes", || async { depth().await == Some(2) }).await;
        }
    })
    .await;
}

fn waiting() -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in [
        ("x-dead-letter-exchange", ""),
        ("x-dead-letter-routing-key", "home"),
        ("x-dead-letter-strategy", "at-least-once"),
        ("x-overflow", "reject-publish"),
    ] {
        table.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    table.insert("x-message-ttl".into(), AMQPValue::LongInt(100));
    table
}

/// Has a node lead a queue, once its member follows.
async fn lead(node: &Node, queue: &str) {
    let expression = "Own = {Name, node()}, \
         case ra:members(Own) of \
             {ok, _, Own} -> leads; \
             {ok, _, Leader} -> ra:transfer_leadership(Leader, Own); \
             Other -> Other \
         end.";
    let leads = || async {
        let answer = node.eval_on_quorum_queue("/", queue, expression).await;
        answer.trim() == "leads"
    };
    eventually(LONG, "it leads", leads).await;
}
