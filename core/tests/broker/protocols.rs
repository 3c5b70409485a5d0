//! Messages of publishers that speak another protocol than AMQP 0-9-1.

use retryrmq::{DIRECT_REPLY_TO, Message, Resend, defer};
use retryrmq_harness::{Amqp10, Message10, QueueType, Version, on_every_broker_where};

use crate::fixture::{
    Answer, Observations, PARKED, QUEUE, connect_with, id, policy, start, stats, take, text,
};

const HEADER: &str = "x-retry-reply-to";

fn shown(message: &Message) -> Option<&str> {
    let address = message.properties().reply_to().as_ref();
    address.map(|address| address.as_str())
}

/// Defers once, fails twice, and then succeeds if it is a replay.
fn answer(message: &Message) -> Answer {
    match (message.replays(), message.deferrals(), message.attempt()) {
        (0, 0, _) => Err(defer(std::time::Duration::from_millis(50)).into()),
        (0, ..) => Err("no".into()),
        _ => Ok(()),
    }
}

#[tokio::test]
async fn a_reply_to_that_no_copy_may_have_is_in_a_header_and_shown_as_the_property() {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            for kind in QueueType::ALL {
                let vhost = broker.vhost().await;
                let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
                amqp.declare(QUEUE, kind).await;
                let mut other = Amqp10::connect(&vhost).await;
                let asks = Message10::new("x").id("asks").reply_to(DIRECT_REPLY_TO);
                other.publish(&format!("/queues/{QUEUE}"), &asks).await;
                amqp.publish_with(QUEUE, "x", id("plain")).await;
                let observations = Observations::default();
                let consumer = client
                    .consumer(QUEUE)
                    .dlx(true)
                    .retry(policy("fixed(50ms, retries=1)"));
                let running = start(consumer, &observations, answer).await;
                // Deferred, failed, failed again.
                for attempt in observations.until("asks", 3).await {
                    assert_eq!(shown(&attempt.message), Some(DIRECT_REPLY_TO));
                }
                observations.until("plain", 3).await;
                stats(&running, "both are parked", |stats| stats.parked == 2).await;
                let mut walk = client.parked(QUEUE).browse().await.unwrap();
                let mut replayed = 0;
                while let Some(record) = walk.next().await.unwrap() {
                    if record.message().message_id() == Some("asks") {
                        assert_eq!(shown(&record.message()), Some(DIRECT_REPLY_TO));
                    }
                    walk.would_send(&Resend::of(&record)).unwrap();
                    walk.replay(&record).await.unwrap();
                    replayed += 1;
                }
                walk.close().await.unwrap();
                assert_eq!(replayed, 2);
                let attempts = observations.until("asks", 4).await;
                assert_eq!(shown(&attempts[3].message), Some(DIRECT_REPLY_TO));
                observations.until("plain", 4).await;
                running.close().await;
                assert_eq!(amqp.depth(QUEUE).await, Some(0));
                assert_eq!(amqp.depth(PARKED).await, Some(0));
            }
        },
    )
    .await;
}

/// What the broker itself parks has the property as it was.
#[tokio::test]
async fn a_parked_message_is_renewed_edited_and_exported_with_its_reply_to() {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let vhost = broker.vhost().await;
            let (client, amqp) = (
                connect_with(&vhost, QueueType::Quorum).await,
                vhost.connect().await,
            );
            amqp.declare(QUEUE, QueueType::Quorum).await;
            client.parked(QUEUE).make().await.unwrap();
            let mut other = Amqp10::connect(&vhost).await;
            let asks = Message10::new("x").id("asks").reply_to(DIRECT_REPLY_TO);
            other.publish(&format!("/queues/{PARKED}"), &asks).await;
            let mut walk = client.parked(QUEUE).browse().await.unwrap();
            let record = walk.next().await.unwrap().unwrap();
            let kept = record.message().properties().clone();
            let restored = vec![(String::new(), QUEUE.to_owned(), kept.clone(), b"x".to_vec())];
            let restored = client.parked(QUEUE).restore(restored).await;
            assert!(restored.iter().all(Result::is_ok), "{restored:?}");
            let edited = kept.clone().with_reply_to("answers".into());
            let edited = Resend::of(&record).content(edited, b"edited".to_vec());
            let same = Resend::of(&record).content(kept, b"same".to_vec());
            for answer in walk.send(&[edited, same]).await {
                answer.unwrap();
            }
            walk.close().await.unwrap();
            let mut sent = take(&amqp, QUEUE, 2).await;
            sent.sort_by_key(|message| message.body.clone());
            let (edited, same) = (&sent[0], &sent[1]);
            assert_eq!(edited.properties.reply_to(), &Some("answers".into()));
            assert_eq!(edited.header(HEADER), None);
            assert_eq!(same.properties.reply_to(), &None);
            assert_eq!(same.header(HEADER), Some(text(DIRECT_REPLY_TO)));
            take(&amqp, PARKED, 2).await;
        },
    )
    .await;
}
