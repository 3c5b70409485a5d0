//! What is kept comes back as it was, once.

use std::time::Duration;

use retryrmq::BasicProperties;
use retryrmq_serve::store::{Destination, MessageDraft, Store, StoreResult, StoredMessage};

use crate::{
    message_drafts::{all, draft, kept, laden, many},
    server::on_kinds,
};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn a_message_comes_back_whole() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let body: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        let message = StoredMessage::new(MessageDraft {
            exchange: "the exchange".to_owned(),
            routing_key: "ключ\n".to_owned(),
            delay: Duration::ZERO,
            properties: laden(),
            body,
            record: vec![0, 255, 10],
            redelivered: false,
            named_by: None,
        })
        .unwrap();
        assert_eq!(
            store.keep(std::slice::from_ref(&message)).await.unwrap(),
            [StoreResult::New]
        );
        let claim = store.claim(&all()).await.unwrap();
        let [due] = &claim.due[..] else {
            panic!("{claim:?}");
        };
        assert_eq!(due.message.id(), message.id());
        assert_eq!(
            format!("{:?}", due.message.draft()),
            format!("{:?}", message.draft())
        );
        assert!(!due.again);
        assert_eq!(
            store
                .delete(std::slice::from_ref(&due.lease))
                .await
                .unwrap(),
            [true]
        );
        assert!(store.count().await.unwrap().is_empty());
        assert_eq!(servers.cli(0, &["dbsize"]), "0", "nothing is left behind");
    })
    .await;
}

#[tokio::test]
async fn an_empty_body_and_empty_names_are_kept() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let message = kept("", "", Duration::ZERO);
        store.keep(&[message]).await.unwrap();
        let claim = store.claim(&all()).await.unwrap();
        assert!(claim.due[0].message.draft().body.is_empty());
        assert!(store.keep(&[]).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn the_same_delivery_is_kept_once_and_a_twin_beside_it() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let first = kept("orders", "tick", HOUR);
        // The answer got lost, and the caller asks again.
        for expected in [StoreResult::New, StoreResult::Known, StoreResult::Known] {
            assert_eq!(
                store.keep(std::slice::from_ref(&first)).await.unwrap(),
                [expected]
            );
        }
        // Another message that looks the same to the last byte: two ticks of one second.
        let twin = kept("orders", "tick", HOUR);
        assert_eq!(first.id(), twin.id());
        for expected in [StoreResult::New, StoreResult::Known] {
            assert_eq!(
                store.keep(std::slice::from_ref(&twin)).await.unwrap(),
                [expected]
            );
        }
        // What RabbitMQ 4 says of dead letters when it delivers them for the first time: without an id nobody can tell.
        let again = MessageDraft {
            redelivered: true,
            ..draft("orders", "tick", HOUR)
        };
        let again = [
            StoredMessage::new(again.clone()).unwrap(),
            StoredMessage::new(again).unwrap(),
        ];
        assert_eq!(store.keep(&again).await.unwrap(), [StoreResult::New; 2]);
        // It comes again, because whoever took it died before he acknowledged it.
        let named = |redelivered| {
            let draft = MessageDraft {
                redelivered,
                properties: BasicProperties::default().with_message_id("7".into()),
                ..draft("orders", "tick", HOUR)
            };
            [StoredMessage::new(draft).unwrap()]
        };
        assert_eq!(store.keep(&named(false)).await.unwrap(), [StoreResult::New]);
        assert_eq!(
            store.keep(&named(true)).await.unwrap(),
            [StoreResult::Known]
        );
        let line = Destination::Queue("orders".to_owned());
        assert_eq!(store.count().await.unwrap(), [(line, 5)]);
        // A redelivered one of which nothing is known was never kept.
        let unknown = StoredMessage::new(MessageDraft {
            redelivered: true,
            ..draft("orders", "other", HOUR)
        });
        assert_eq!(
            store.keep(&[unknown.unwrap()]).await.unwrap(),
            [StoreResult::New]
        );
    })
    .await;
}

/// It was published and handled, and whoever handled it published the same again; then its store could not be asked for a while.
#[tokio::test]
async fn what_comes_again_is_not_taken_for_one_that_may_be_published_already() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let life = |redelivered| {
            let draft = MessageDraft {
                redelivered,
                properties: BasicProperties::default().with_message_id("7".into()),
                ..draft("orders", "tick", Duration::ZERO)
            };
            [StoredMessage::new(draft).unwrap()]
        };
        store.keep(&life(false)).await.unwrap();
        assert_eq!(store.keep(&life(true)).await.unwrap(), [StoreResult::Known]);
        let published = store.claim(&all()).await.unwrap().due.remove(0).lease;
        assert_eq!(store.keep(&life(true)).await.unwrap(), [StoreResult::New]);
        assert_eq!(store.delete(&[published]).await.unwrap(), [true]);
        let next = store.claim(&all()).await.unwrap().due;
        assert_eq!(next.len(), 1);
        assert_eq!(next[0].message.draft().body, b"tick");
    })
    .await;
}

#[tokio::test]
async fn a_large_batch_is_kept_whole_and_counted_by_line() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let mut batch = many("orders", 700, HOUR);
        batch.extend(many("bills", 3, HOUR));
        // Larger than what one script takes.
        batch.push(kept("bills", &"x".repeat(9 << 20), HOUR));
        let arrivals = store.keep(&batch).await.unwrap();
        assert_eq!(arrivals, vec![StoreResult::New; 704]);
        let count = store.count().await.unwrap();
        let queue = |name: &str| Destination::Queue(name.to_owned());
        assert_eq!(count, [(queue("bills"), 4), (queue("orders"), 700)]);
    })
    .await;
}

#[tokio::test]
async fn stores_of_two_names_do_not_meet() {
    on_kinds(&[], |servers| async move {
        use retryrmq_serve::store::redis::{Configuration, RedisStore};
        let named = |name: &str| {
            RedisStore::new(
                &Configuration {
                    name: name.to_owned(),
                    ..servers.configuration()
                },
                "/",
            )
            .unwrap()
        };
        let (one, other) = (named("one"), named("other"));
        one.keep(&many("orders", 2, Duration::ZERO)).await.unwrap();
        assert!(other.claim(&all()).await.unwrap().due.is_empty());
        assert_eq!(one.claim(&all()).await.unwrap().due.len(), 2);
    })
    .await;
}
