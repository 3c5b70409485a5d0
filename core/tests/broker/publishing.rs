//! Publishing: every message gets its own right answer, whatever its neighbours are like.

use std::{collections::BTreeMap, time::Instant};

use futures_util::future::join_all;
use retryrmq::{BasicProperties, Client, ErrorKind, Publish, types};
use retryrmq_harness::{
    CutProxy, Direction, QueueType, Version, eventually, free_port, on_brokers, on_every_broker,
    on_queue_types,
};
use tokio::{task::JoinSet, time::timeout};

use crate::{
    connecting::{host_and_port, refused},
    fixture::{CLOCK, DEADLINE, QUEUE, connect, connect_with, id, ms, table, take, text},
    network::{CutProxies, PUBLISHING},
};

#[tokio::test]
async fn a_confirmed_message_is_there_as_it_was_given() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let headers = table([("tenant", text("acme"))]);
        let message = Publish::to_queue(QUEUE, "body")
            .headers(headers)
            .message_id("a");
        client.publish(message).await.unwrap();
        client.publish(Publish::to_queue(QUEUE, "")).await.unwrap();
        let frames = vec![b'm'; 1 << 20];
        client
            .publish(Publish::to_queue(QUEUE, frames.clone()))
            .await
            .unwrap();
        let fleeting = BasicProperties::default().with_delivery_mode(1);
        client
            .publish(Publish::to_queue(QUEUE, "f").properties(fleeting))
            .await
            .unwrap();
        let messages = take(&amqp, QUEUE, 4).await;
        assert_eq!((messages[0].text(), messages[0].id()), ("body", Some("a")));
        assert_eq!(messages[0].header("tenant"), Some(text("acme")));
        assert_eq!(messages[0].properties.delivery_mode(), &Some(2));
        assert!(messages[1].body.is_empty());
        assert!(messages[2].body == frames);
        assert_eq!(messages[3].properties.delivery_mode(), &Some(1));
    })
    .await;
}

#[tokio::test]
async fn a_body_larger_than_the_broker_takes_hurts_nobody_else() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let big = Publish::to_queue(QUEUE, vec![b'm'; (16 << 20) + 1]);
        let largest = Publish::to_queue(QUEUE, vec![b'm'; 16 << 20]);
        let small = Publish::to_queue(QUEUE, "small");
        let (big, largest, small) = tokio::join!(
            client.publish(big),
            client.publish(largest),
            client.publish(small)
        );
        largest.unwrap();
        small.unwrap();
        let mut expected = vec![5, 16 << 20];
        if broker.version() >= Version::V4_0 {
            let why = refused(big, ErrorKind::TooLarge);
            assert!(why.contains("16777217"), "{why}");
        } else {
            big.unwrap(); // 3.10 takes up to 128 MiB
            expected.push((16 << 20) + 1);
        }
        let all = amqp.drain(QUEUE).await;
        let mut sizes: Vec<_> = all.iter().map(|one| one.body.len()).collect();
        sizes.sort_unstable();
        sizes.dedup(); // one that shared its wave with the refused one may be there twice
        assert_eq!(sizes, expected);
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_published_is_told_and_the_neighbours_go_through() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Classic).await;
        // All at once, so that they are in the same waves, and twice, so that what came before does not matter.
        for _ in 0..2 {
            let to = |properties: BasicProperties| {
                Publish::to_queue(QUEUE, "x").properties(properties.with_delivery_mode(2))
            };
            let nan = to(BasicProperties::default()
                .with_headers(table([("n", types::AMQPValue::Double(f64::NAN))])));
            let infinite = to(BasicProperties::default()
                .with_headers(table([("n", types::AMQPValue::Double(f64::NEG_INFINITY))])));
            let expiring = |text: &str| to(BasicProperties::default().with_expiration(text.into()));
            let huge = table([("blob", text(&"v".repeat(127 * 1024)))]);
            // Each part is short enough; together they are not.
            let name = "n".repeat(255);
            let wide = BasicProperties::default()
                .with_headers(table([("blob", text(&"v".repeat(128_900)))]))
                .with_app_id(name.as_str().into())
                .with_type(name.as_str().into())
                .with_reply_to(name.as_str().into())
                .with_correlation_id(name.as_str().into())
                .with_cluster_id(name.as_str().into())
                .with_content_type(name.as_str().into())
                .with_content_encoding(name.as_str().into())
                .with_message_id(name.as_str().into());
            let cases = [
                (
                    Publish::to_queue("nowhere", "x"),
                    ErrorKind::Unroutable,
                    "`nowhere`",
                ),
                (
                    Publish::to_exchange("amq.topic", "no.one", "x"),
                    ErrorKind::Unroutable,
                    "`amq.topic`",
                ),
                (
                    Publish::to_exchange("missing", "k", "x"),
                    ErrorKind::Unroutable,
                    "'missing'",
                ),
                (
                    Publish::to_exchange("missing", "k", "x").mandatory(false),
                    ErrorKind::Unroutable,
                    "'missing'",
                ),
                (
                    to(BasicProperties::default().with_user_id("bob".into())),
                    ErrorKind::InvalidOption,
                    "user_id",
                ),
                (nan, ErrorKind::InvalidOption, "NaN"),
                (infinite, ErrorKind::InvalidOption, "infinite"),
                (expiring("soon"), ErrorKind::InvalidOption, "`expiration`"),
                (expiring("-1"), ErrorKind::InvalidOption, "`expiration`"),
                (expiring(""), ErrorKind::InvalidOption, "`expiration`"),
                (expiring("1.5"), ErrorKind::InvalidOption, "`expiration`"),
                (
                    expiring("315360000001"),
                    ErrorKind::InvalidOption,
                    "`expiration`",
                ),
                (
                    to(BasicProperties::default().with_headers(huge)),
                    ErrorKind::TooLarge,
                    "body",
                ),
                (to(wide), ErrorKind::TooLarge, "body"),
                (
                    Publish::to_queue("q".repeat(256), "x"),
                    ErrorKind::TooLarge,
                    "255",
                ),
                (
                    Publish::to_exchange("e".repeat(256), "k", "x"),
                    ErrorKind::TooLarge,
                    "255",
                ),
                (
                    to(BasicProperties::default().with_headers(table([("CC", text("no array"))]))),
                    ErrorKind::InvalidOption,
                    "CC",
                ),
            ];
            let mut tasks = JoinSet::new();
            for (message, kind, names) in cases {
                let client = client.clone();
                tasks.spawn(async move {
                    let why = refused(client.publish(message).await, kind);
                    assert!(why.contains(names), "{names}: {why}");
                    None
                });
            }
            for number in 0..50 {
                let client = client.clone();
                tasks.spawn(async move {
                    let name = number.to_string();
                    let fine = Publish::to_queue(QUEUE, "fine").message_id(&name);
                    client
                        .publish(fine)
                        .await
                        .unwrap_or_else(|error| panic!("{name}: {error}"));
                    Some(name)
                });
            }
            let mut confirmed: Vec<String> = tasks.join_all().await.into_iter().flatten().collect();
            let mut found: Vec<String> = amqp
                .drain(QUEUE)
                .await
                .iter()
                .map(|message| message.id().unwrap().to_owned())
                .collect();
            // A wave that was broken off is published again: duplicates there may be, losses never.
            found.sort();
            found.dedup();
            confirmed.sort();
            assert_eq!(found, confirmed);
        }
        // The largest that is let through arrives.
        let blob = table([("blob", text(&"v".repeat(125 * 1024)))]);
        client
            .publish(Publish::to_queue(QUEUE, "x").headers(blob.clone()))
            .await
            .unwrap();
        assert_eq!(take(&amqp, QUEUE, 1).await[0].headers(), blob);
    })
    .await;
}

#[tokio::test]
async fn each_of_two_thousand_gets_its_own_answer() {
    on_brokers(|broker| async move {
        const COUNT: usize = 2_000;
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Classic).await;
        amqp.declare("bound", QueueType::Classic).await;
        use retryrmq_harness::lapin::{options::QueueBindOptions, types::FieldTable};
        let options = QueueBindOptions::default();
        amqp.channel()
            .queue_bind(
                "bound".into(),
                "amq.topic".into(),
                "good.#".into(),
                options,
                FieldTable::default(),
            )
            .await
            .unwrap();
        let mut tasks = JoinSet::new();
        for number in 0..COUNT {
            let client = client.clone();
            tasks.spawn(async move {
                // The same body and, for a third, no id: nothing but the answer itself tells them apart.
                let message = match number % 4 {
                    0 => Publish::to_exchange("amq.topic", format!("bad.{}", number % 8), "x"),
                    1 => Publish::to_exchange("amq.topic", format!("good.{}", number % 8), "x"),
                    2 => Publish::to_queue(format!("nowhere-{}", number % 3), "x"),
                    _ => Publish::to_queue(QUEUE, "x"),
                };
                let message = if number % 3 == 0 {
                    message
                } else {
                    message.message_id(&number.to_string())
                };
                (number, client.publish(message).await)
            });
        }
        let mut right = BTreeMap::new();
        for (number, answer) in tasks.join_all().await {
            match (number % 4, answer) {
                (0 | 2, Err(error)) if error.kind() == ErrorKind::Unroutable => {}
                (1 | 3, Ok(())) => {}
                (_, answer) => panic!("{number}: {answer:?}"),
            }
            *right.entry(number % 4).or_insert(0) += 1;
        }
        assert_eq!(right.into_values().collect::<Vec<_>>(), [COUNT / 4; 4]);
        assert_eq!(amqp.depth(QUEUE).await, Some(COUNT as u32 / 4));
        assert_eq!(amqp.depth("bound").await, Some(COUNT as u32 / 4));
    })
    .await;
}

#[tokio::test]
async fn a_delayed_message_arrives_later_and_never_early() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        // The first in a waiting queue waits until that queue is a safe place; that must not be told as an error.
        let began = Instant::now();
        let own = table([("tenant", text("acme"))]);
        let message = Publish::to_queue(QUEUE, "x")
            .message_id("a")
            .headers(own)
            .delay(ms(2_700));
        client.publish(message).await.unwrap();
        let message = take(&amqp, QUEUE, 1).await.remove(0);
        assert!(
            began.elapsed() + CLOCK >= ms(2_700),
            "after {:?}",
            began.elapsed()
        );
        // Not by a look at that queue: the message may have left it before the answer comes.
        assert_eq!(
            message.header_text("x-first-death-queue").as_deref(),
            Some("orders.retry.3200")
        );
        assert_eq!((message.id(), message.text()), (Some("a"), "x"));
        assert_eq!(message.header_text("tenant").as_deref(), Some("acme"));
        assert_eq!(message.properties.expiration(), &None);
        client
            .publish(Publish::to_queue(QUEUE, "now").delay(ms(0)))
            .await
            .unwrap();
        assert_eq!(take(&amqp, QUEUE, 1).await[0].text(), "now");
    })
    .await;
}

/// The host of a broker may die without a word, and nothing is heard of that for long. A young queue may have lost the message by then.
#[tokio::test]
async fn a_message_in_a_young_queue_is_not_called_safe_because_nothing_was_heard() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Classic).await;
        let proxy = CutProxy::to(vhost.url()).await;
        let client = Client::connect(&format!("{}?heartbeat=60", proxy.url()))
            .await
            .unwrap();
        // A machine may take so long that the queue is old before the client is stalled; then there is another.
        let mut delays = [400_000, 500_000, 630_000, 800_000].into_iter();
        let (waiting, refusal) = loop {
            let delay = delays.next().expect("a queue is young when it is filled");
            let waiting = format!("orders.retry.{delay}");
            let delayed = Publish::to_queue(QUEUE, "x").delay(ms(delay));
            let publisher = client.clone();
            let publishing = tokio::spawn(async move { publisher.publish(delayed).await });
            eventually(DEADLINE, "the message waits", || async {
                match amqp.depth(&waiting).await {
                    Some(1) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
            // Its confirm comes, and nothing else is answered.
            proxy.stall(Direction::ToBroker);
            let answer = publishing.await.unwrap();
            if answer.is_err() {
                break (waiting, answer);
            }
            proxy.resume();
        };
        let why = refused(refusal, ErrorKind::Timeout);
        assert!(why.contains(&format!("`{waiting}` was young")), "{why}");
        proxy.cut();
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_delay_that_cannot_be_is_refused() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp): (Client, _) = (connect(&vhost).await, vhost.connect().await);
        let missing = Publish::to_queue("nowhere", "x").delay(ms(10));
        let why = refused(client.publish(missing).await, ErrorKind::QueueNotFound);
        assert!(why.contains("`nowhere`"), "{why}");
        assert!(vhost.queues().await.is_empty(), "nothing was made for it");
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let to = || Publish::to_queue(QUEUE, "x").delay(ms(10));
        for (message, names) in [
            (
                Publish::to_exchange("amq.topic", "k", "x").delay(ms(10)),
                "exchange",
            ),
            (
                to().properties(id("a").with_expiration("10".into())),
                "`expiration`",
            ),
            (to().delay(366 * retryrmq::DAY), "365d"),
        ] {
            let why = refused(client.publish(message).await, ErrorKind::InvalidOption);
            assert!(why.contains(names), "{why}");
        }
        let long = "q".repeat(250);
        amqp.declare(&long, QueueType::Classic).await;
        let message = Publish::to_queue(&long, "x").delay(ms(10));
        refused(client.publish(message).await, ErrorKind::TooLarge);
        // A waiting queue that somebody made otherwise would not bring the message back.
        amqp.declare("orders.retry.10", QueueType::Quorum).await;
        let why = refused(client.publish(to()).await, ErrorKind::Mismatch);
        assert!(why.contains("`orders.retry.10`"), "{why}");
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_says_no_and_that_is_told() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let full = table([
            ("x-max-length", crate::fixture::int(1)),
            ("x-overflow", text("reject-publish")),
        ]);
        amqp.declare_with(QUEUE, kind, full).await;
        // A quorum queue takes a few more before it says no.
        let refused = tokio::time::timeout(DEADLINE, async {
            loop {
                match client.publish(Publish::to_queue(QUEUE, "x")).await {
                    Ok(()) => {}
                    Err(error) => break error,
                }
            }
        });
        let error = refused.await.expect("the queue is full at last");
        assert_eq!(error.kind(), ErrorKind::NotConfirmed, "{error:?}");
        assert!(
            error.is_transient() && error.to_string().contains("basic.nack"),
            "{error}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_confirm_that_comes_too_late_is_nobody_elses() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Classic).await;
        let proxy = CutProxy::to(vhost.url()).await;
        let client = Client::connect(&format!("{}?heartbeat=60", proxy.url()))
            .await
            .unwrap();
        client
            .publish(Publish::to_queue(QUEUE, "first"))
            .await
            .unwrap();
        proxy.stall(Direction::ToClient);
        let mut tasks = JoinSet::new();
        for _ in 0..20 {
            let client = client.clone();
            tasks.spawn(async move { client.publish(Publish::to_queue(QUEUE, "late")).await });
        }
        for answer in tasks.join_all().await {
            refused(answer, ErrorKind::Timeout);
        }
        assert_eq!(
            amqp.depth(QUEUE).await,
            Some(21),
            "the broker has confirmed them"
        );
        let mut tasks = JoinSet::new();
        for number in 0..20 {
            let client = client.clone();
            tasks.spawn(async move {
                // The same lane, and only every second one is taken.
                let exchange = if number % 2 == 0 { "" } else { "amq.topic" };
                let message = Publish::to_exchange(exchange, QUEUE, "after");
                (exchange, client.publish(message).await)
            });
        }
        proxy.resume();
        let mut taken = 0;
        while let Some(answer) = tasks.join_next().await {
            match answer.unwrap() {
                ("", answer) => {
                    answer.unwrap();
                    taken += 1;
                }
                (_, answer) => drop(refused(answer, ErrorKind::Unroutable)),
            }
        }
        assert_eq!(amqp.depth(QUEUE).await, Some(21 + taken));
        assert_eq!(client.reconnects(), 0);
        client.close().await;
    })
    .await;
}

/// Each goes alone, because it was refused before; none waits for the others to be told that there is nothing to go on.
#[tokio::test]
async fn without_a_connection_all_that_go_alone_are_told_together() {
    const ASKED: usize = 20;
    on_brokers(|broker| async move {
        let (proxies, port) = (CutProxies::default(), free_port());
        let gated_proxy = proxies.lead(port, host_and_port(&broker)).await;
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let client = Client::connect(&url).await.unwrap();
        let message = || client.publish(Publish::to_exchange("no.such.exchange", "x", "x"));
        refused(message().await, ErrorKind::Unroutable);
        gated_proxy.abort();
        proxies.cut(PUBLISHING);
        eventually(DEADLINE, "the connection is known to be lost", || async {
            client.health().err().map(drop)
        })
        .await;
        let all = join_all((0..ASKED).map(|_| message()));
        let told = timeout(DEADLINE, all).await.expect("each is told");
        for answer in told {
            refused(answer, ErrorKind::ConnectionLost);
        }
        client.close().await;
    })
    .await;
}

/// Their publishers are told that the time is over, and may publish them again.
#[tokio::test]
async fn what_a_wave_had_no_time_for_is_not_published_later() {
    /// More than all buffers on the way hold.
    const LARGE: usize = 1 << 20;
    const ASKED: usize = 60;
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Classic).await;
        let proxy = CutProxy::to(vhost.url()).await;
        let client = Client::connect(&format!("{}?heartbeat=60", proxy.url()))
            .await
            .unwrap();
        let large = || client.publish(Publish::to_queue(QUEUE, vec![b'x'; LARGE]));
        // From then on messages as large go together.
        large().await.unwrap();
        amqp.drain(QUEUE).await;
        proxy.stall(Direction::Both);
        for answer in join_all((0..ASKED).map(|_| large())).await {
            refused(answer, ErrorKind::Timeout);
        }
        proxy.resume();
        client
            .publish(Publish::to_queue(QUEUE, "last"))
            .await
            .unwrap();
        // On its own channel, which is slower with what was on its way.
        eventually(DEADLINE, "the last one is there", || async {
            let there = amqp.drain(QUEUE).await;
            let late = there.iter().filter(|message| message.text() != "last");
            println!("{broker}: {} of {ASKED} are there", late.clone().count());
            assert!(late.count() < 16, "no more than were on their way");
            there
                .iter()
                .any(|message| message.text() == "last")
                .then_some(())
        })
        .await;
        client.close().await;
    })
    .await;
}

/// An error would have its publisher publish it again, although it is stored.
#[tokio::test]
async fn closing_waits_for_what_is_being_published() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let message = || Publish::to_queue(QUEUE, "x").delay(ms(500_000));
        let (publishing, closing) = (client.clone(), client.clone());
        let published = tokio::spawn(async move { publishing.publish(message()).await });
        // For two seconds its queue is no safe place.
        eventually(DEADLINE, "it is stored", || async {
            amqp.depth("orders.retry.500000")
                .await
                .filter(|depth| *depth > 0)
        })
        .await;
        let closed = tokio::spawn(async move { closing.close().await });
        eventually(DEADLINE, "others are refused", || async {
            client.publish(Publish::to_queue(QUEUE, "y")).await.err()
        })
        .await;
        published.await.unwrap().unwrap();
        closed.await.unwrap();
        refused(client.publish(message()).await, ErrorKind::Closed);
    })
    .await;
}

/// What waits for a connection was not sent.
#[tokio::test]
async fn closing_waits_for_no_lost_connection() {
    on_brokers(|broker| async move {
        let (proxies, port) = (CutProxies::default(), free_port());
        let gated_proxy = proxies.lead(port, host_and_port(&broker)).await;
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let client = Client::connect(&url).await.unwrap();
        gated_proxy.abort();
        proxies.cut(PUBLISHING);
        eventually(DEADLINE, "the connection is known to be lost", || async {
            client.health().err().map(drop)
        })
        .await;
        let closing = async {
            tokio::task::yield_now().await;
            client.close().await;
        };
        let (answer, ()) = tokio::join!(client.publish(Publish::to_queue(QUEUE, "x")), closing);
        refused(answer, ErrorKind::Closed);
    })
    .await;
}

/// `mandatory` would not report that the waiting queue is missing, and the other queues would get it without the delay.
#[tokio::test]
async fn a_delayed_message_for_several_queues_is_refused_before_anything_is_sent() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        for queue in [QUEUE, "other"] {
            amqp.declare(queue, QueueType::Quorum).await;
        }
        for name in ["CC", "BCC"] {
            let headers = table([(name, crate::fixture::array(vec![text("other")]))]);
            let message = Publish::to_queue(QUEUE, "x").headers(headers);
            let error = client.publish(message.clone().delay(ms(100))).await;
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
            assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
            assert_eq!(amqp.depth("other").await, Some(0));
            client.publish(message).await.unwrap();
            take(&amqp, "other", 1).await;
            take(&amqp, QUEUE, 1).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_reply_to_that_only_its_consumer_may_name_is_refused_before_it_is_sent() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let message = Publish::to_queue(QUEUE, "x")
            .properties(BasicProperties::default().with_reply_to(retryrmq::DIRECT_REPLY_TO.into()));
        let error = client.publish(message).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        assert!(error.to_string().contains("`reply_to`"), "{error}");
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
    })
    .await;
}
