//! What a look at parked messages may cost: nothing, however often, whoever limits deliveries, and however it ends.

use std::collections::BTreeSet;

use retryrmq::Client;
use retryrmq_harness::{
    Amqp, Broker, CutProxy, Direction, Policy, QueueType, Version, Vhost, eventually, on_brokers,
    on_brokers_where,
};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    fixture::{DEADLINE, PARKED, QUEUE, connect, id, int, ms, table, take, text},
    parking::{ids, ready, records},
};

/// Who limits how often a message of the parking queue may be delivered.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Nobody but the broker, which has a default since 4.0.
    Default,
    /// A policy, on the queue that we declare.
    Policy(i64),
    /// An argument of a queue that somebody else made.
    Argument(i64),
}

const LIMITS: [Limit; 6] = [
    Limit::Default,
    Limit::Policy(5),
    Limit::Policy(2),
    Limit::Policy(1),
    Limit::Argument(3),
    Limit::Argument(1),
];

/// A parking queue with this limit, and these messages in it.
async fn set_up(broker: &Broker, limit: Limit, names: &[String]) -> (Vhost, Client, Amqp) {
    let vhost = broker.vhost().await;
    let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
    match limit {
        Limit::Default => amqp.declare(PARKED, QueueType::Quorum).await,
        Limit::Argument(most) => {
            let arguments = table([("x-delivery-limit", int(most))]);
            amqp.declare_with(PARKED, QueueType::Quorum, arguments)
                .await;
        }
        Limit::Policy(most) => {
            let policy = Policy::new(".*", json!({ "delivery-limit": most }));
            vhost.put_policy("limits", &policy).await.unwrap();
            let plan = client.consumer(QUEUE).dlx(true).plan().unwrap();
            client.apply_plan(&plan).await.unwrap();
        }
    }
    let messages = names
        .iter()
        .map(|name| (PARKED, name.clone(), id(name)))
        .collect::<Vec<_>>();
    amqp.publish_all("", messages).await;
    ready(&amqp, names.len().try_into().unwrap()).await;
    (vhost, client, amqp)
}

fn names(count: usize) -> Vec<String> {
    (1..=count).map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn no_delivery_limit_is_spent_by_looking() {
    on_brokers(|broker| async move {
        for limit in LIMITS {
            let names = names(3);
            let (_vhost, client, amqp) = set_up(&broker, limit, &names).await;
            for look in 0..24 {
                let seen = ids(&records(&client).await);
                assert_eq!(seen, names, "{limit:?}, look {look}");
                ready(&amqp, 3).await;
            }
        }
    })
    .await;
}

/// For the broker this is a walk whose process was killed while it stood at a prompt.
#[tokio::test]
async fn a_walk_that_dies_again_and_again_costs_no_message() {
    on_brokers(|broker| async move {
        for limit in LIMITS {
            let names = names(3);
            let (_vhost, client, amqp) = set_up(&broker, limit, &names).await;
            for kill in 0..23 {
                let mut walk = client.parked(QUEUE).browse().await.unwrap();
                let mut seen = Vec::new();
                while let Some(record) = walk.next().await.unwrap() {
                    seen.push(record);
                }
                assert_eq!(ids(&seen), names, "{limit:?}, kill {kill}");
                drop(walk);
                ready(&amqp, 3).await;
            }
        }
    })
    .await;
}

/// Where it waits for the broker a caller may stop waiting, and call again.
#[tokio::test]
async fn a_walk_whose_caller_is_impatient_shows_and_keeps_everything() {
    const MESSAGES: usize = 200;
    on_brokers(|broker| async move {
        let names = names(MESSAGES);
        let (vhost, client, amqp) = set_up(&broker, Limit::Default, &names).await;
        // What was looked at before is renewed, where looks are counted.
        assert_eq!(ids(&records(&client).await), names);
        ready(&amqp, MESSAGES.try_into().unwrap()).await;
        let proxy = CutProxy::to(vhost.url()).await;
        proxy.delay(Direction::Both, ms(10));
        let hasty = Client::connect(proxy.url()).await.unwrap();
        let mut walk = hasty.parked(QUEUE).browse().await.unwrap();
        let (mut seen, mut given_up) = (Vec::new(), 0);
        loop {
            match timeout(ms(4 << (given_up % 8)), walk.next()).await {
                Ok(Ok(Some(record))) => seen.push(record),
                Ok(end) => break assert!(end.unwrap().is_none()),
                Err(_) => {
                    given_up += 1;
                    assert!(given_up < 500, "{} came, and no more do", seen.len());
                }
            }
        }
        assert_eq!(ids(&seen), names, "after {given_up} times");
        assert_eq!((walk.missed(), walk.remaining()), (0, 0));
        walk.drop(&seen[7]).await.unwrap();
        walk.close().await.unwrap();
        let left: BTreeSet<_> = take(&amqp, PARKED, MESSAGES - 1)
            .await
            .iter()
            .map(|message| message.id().unwrap().to_owned())
            .collect();
        assert_eq!(left.len(), MESSAGES - 1);
        assert!(given_up > 0, "the broker answered at once");
    })
    .await;
}

/// Past what a walk keeps in order it renews at its end, and each of those settlements has to arrive.
#[tokio::test]
async fn what_a_walk_through_a_large_queue_renews_is_there_once() {
    const MESSAGES: usize = 2_300;
    on_brokers(|broker| async move {
        let (_vhost, client, amqp) = set_up(&broker, Limit::Default, &names(MESSAGES)).await;
        for _ in 0..4 {
            let mut walk = client.parked(QUEUE).browse().await.unwrap();
            for _ in 0..700 {
                assert!(walk.next().await.unwrap().is_some());
            }
            walk.close().await.unwrap();
            ready(&amqp, MESSAGES.try_into().unwrap()).await;
        }
        take(&amqp, PARKED, MESSAGES).await;
        ready(&amqp, 0).await;
    })
    .await;
}

/// More than a walk keeps in order; what was looked at twice is still put back before a limit strikes.
#[tokio::test]
async fn a_large_queue_that_walks_die_in_loses_nothing() {
    const MESSAGES: usize = 2_300;
    on_brokers_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let mut names = names(MESSAGES);
            let (_vhost, client, amqp) = set_up(&broker, Limit::Policy(3), &names).await;
            for kill in 0..7 {
                let mut walk = client.parked(QUEUE).browse().await.unwrap();
                let mut seen = 0;
                while walk.next().await.unwrap().is_some() {
                    seen += 1;
                }
                assert_eq!(seen, MESSAGES, "kill {kill}");
                drop(walk);
                ready(&amqp, MESSAGES.try_into().unwrap()).await;
            }
            for _ in 0..4 {
                // The first of them, looked at and put back.
                let mut walk = client.parked(QUEUE).browse().await.unwrap();
                assert!(walk.next().await.unwrap().is_some());
                walk.close().await.unwrap();
                ready(&amqp, MESSAGES.try_into().unwrap()).await;
            }
            let mut seen: Vec<_> = take(&amqp, PARKED, MESSAGES)
                .await
                .iter()
                .map(|message| message.id().unwrap().to_owned())
                .collect();
            seen.sort();
            names.sort();
            assert_eq!(seen, names);
        },
    )
    .await;
}

/// What was looked at before is held with its body until the end, because it goes back as a copy; but only so much of it.
#[tokio::test]
async fn a_look_at_very_much_puts_it_back_on_the_way() {
    const MESSAGES: usize = 2_050;
    const SIZE: usize = 40 * 1024;
    on_brokers(|broker| async move {
        let (_vhost, client, amqp) = set_up(&broker, Limit::Argument(1_000_000), &[]).await;
        let names = names(MESSAGES);
        let messages = names
            .iter()
            .map(|name| (PARKED, format!("{name:SIZE$}"), id(name)));
        amqp.publish_all("", messages).await;
        ready(&amqp, MESSAGES.try_into().unwrap()).await;
        let look = async || {
            let mut walk = client.parked(QUEUE).browse().await.unwrap();
            let (mut first, mut seen) = (None, BTreeSet::new());
            while let Some(record) = walk.next().await.unwrap() {
                seen.insert(record.message().message_id().unwrap().to_owned());
                first.get_or_insert(record);
            }
            assert_eq!(seen.len(), MESSAGES);
            (walk, first.unwrap())
        };
        let (walk, _) = look().await;
        walk.close().await.unwrap();
        ready(&amqp, MESSAGES.try_into().unwrap()).await;
        let (mut walk, first) = look().await;
        walk.discard(&first).await.unwrap(); // what was handed out is still the walk's
        drop(walk);
        // Nobody confirms an acknowledgement: it may be gone with the connection that was dropped right after it.
        let back = async || amqp.depth(PARKED).await.unwrap_or_default() as usize;
        eventually(DEADLINE, "all are back", || async {
            match back().await {
                back if back >= MESSAGES - 1 => Ok(()),
                back => Err(format!("{back}")),
            }
        })
        .await;
        let back = back().await;
        let left = take(&amqp, PARKED, back).await;
        let held = left
            .iter()
            .filter(|message| message.header_int("x-delivery-count") >= Some(2))
            .count();
        assert!(
            (1_000..1_800).contains(&held),
            "{held} were held with their bodies"
        );
        let ids: BTreeSet<_> = left.iter().map(|message| message.id().unwrap()).collect();
        assert_eq!(ids.len(), back);
        assert!((MESSAGES - 1..=MESSAGES).contains(&back), "{back}");
        ready(&amqp, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_forged_count_moves_nothing_in_a_classic_queue() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(PARKED, QueueType::Classic).await;
        for name in ["a", "b", "c"] {
            let headers = table([("x-delivery-count", int(19)), ("kept", text(name))]);
            let properties = if name == "a" {
                id(name).with_headers(headers)
            } else {
                id(name)
            };
            amqp.publish_with(PARKED, name, properties).await;
        }
        for _ in 0..5 {
            ready(&amqp, 3).await;
            assert_eq!(ids(&records(&client).await), ["a", "b", "c"]);
        }
    })
    .await;
}

/// As large as a frame of headers can be. Nothing may be cut from it, so it cannot be put back as a fresh copy; but it keeps
/// nobody from the others, and can be replayed.
#[tokio::test]
async fn one_whose_headers_fill_a_frame_keeps_nobody_from_the_others() {
    on_brokers(|broker| async move {
        let names = names(2);
        let (_vhost, client, amqp) = set_up(&broker, Limit::Policy(50), &names).await;
        let filler = text(&"x".repeat(130_300));
        let large = id("large").with_headers(table([("filler", filler)]));
        amqp.publish_with(PARKED, "large", large).await;
        ready(&amqp, 3).await;
        for look in 0..4 {
            let mut walk = client.parked(QUEUE).browse().await.unwrap();
            let mut seen = Vec::new();
            while let Some(record) = walk.next().await.unwrap() {
                seen.push(record);
            }
            seen.sort_by(|one, other| {
                one.message()
                    .message_id()
                    .cmp(&other.message().message_id())
            });
            assert_eq!(ids(&seen), ["1", "2", "large"], "look {look}");
            let filler = seen[2].message().headers().unwrap().inner()["filler"].clone();
            assert_eq!(filler, text(&"x".repeat(130_300)), "nothing is cut");
            walk.close().await.unwrap();
            ready(&amqp, 3).await;
        }
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        while let Some(record) = walk.next().await.unwrap() {
            if record.message().message_id() == Some("large") {
                walk.drop(&record).await.unwrap();
            }
        }
        walk.close().await.unwrap();
        ready(&amqp, 2).await;
    })
    .await;
}

/// What they hold this walk does not see, so that nobody may take a name for the only one.
#[tokio::test]
async fn others_who_come_after_the_beginning_are_known_at_the_end() {
    on_brokers(|broker| async move {
        let (_vhost, client, amqp) = set_up(&broker, Limit::Default, &names(3)).await;
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        assert_eq!(walk.others(), 0);
        let _other = amqp.consume(PARKED, 1).await;
        ready(&amqp, 2).await;
        let mut seen = 0;
        while walk.next().await.unwrap().is_some() {
            seen += 1;
        }
        assert_eq!((seen, walk.others()), (2, 1));
        walk.close().await.unwrap();
    })
    .await;
}
