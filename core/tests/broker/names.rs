//! Long names of queues. A name works in every way, or is refused before the broker is asked: RabbitMQ 4 closes the connection (541) instead of
//! answering something that is longer than 255 bytes and not ASCII.

use retryrmq::{Consumer, Error, ErrorKind, Publish, Result};
use retryrmq_harness::{Broker, CutProxy, QueueType, Version, Vhost, on_every_broker};

use crate::{
    connecting::refused,
    fixture::{DEADLINE, Observations, ms, policy, same, settled_at},
};

/// What the waiting queues' names are longer.
const SUFFIX: usize = ".retry.31536000000".len();

/// How many bytes a name may have that the broker has to say.
fn most(vhost: &Vhost, letter: &str) -> usize {
    if letter.is_ascii() || vhost.broker().version() < Version::V4_0 {
        255
    } else {
        255 - "NOT_FOUND - no exchange '' in vhost ''".len() - vhost.name().len()
    }
}

fn named(letter: &str, bytes: usize) -> String {
    letter.repeat(bytes / letter.len())
}

/// A virtual host, and a way to it that shows how the broker closes connections.
async fn observed(broker: &Broker) -> (Vhost, CutProxy) {
    let vhost = broker.vhost().await;
    let proxy = CutProxy::to(vhost.url()).await;
    (vhost, proxy)
}

fn nothing_was_left_unsaid(proxy: &CutProxy, what: &str) {
    let mut unsaid = proxy.close_codes();
    unsaid.retain(|code| *code != 200);
    assert!(unsaid.is_empty(), "{what}: {unsaid:?}");
}

#[tokio::test]
async fn a_name_works_in_every_way_up_to_its_longest() {
    on_every_broker(|broker| async move {
        let (vhost, proxy) = observed(&broker).await;
        let longest = |letter| most(&vhost, letter) - SUFFIX;
        // The shorter ones have answers that are longer than that of a missing queue: of their type, and of their marker.
        for (letter, bytes, kind) in [
            ("q", longest("q"), QueueType::Quorum),
            ("ä", longest("ä"), QueueType::Quorum),
            ("日", longest("日") - 40, QueueType::Quorum),
            ("ä", longest("ä") - 60, QueueType::Classic),
        ] {
            let queue = named(letter, bytes);
            let what = format!("{broker}, {letter}, {bytes} bytes, {kind}");
            let options = retryrmq::ClientOptions::new().queue_type(same(kind));
            let client = retryrmq::Client::connect_with(proxy.url(), options).await;
            let (client, amqp) = (client.unwrap(), vhost.connect().await);
            amqp.declare(&queue, kind).await;
            let consumer = || {
                client
                    .consumer(&queue)
                    .dlx(true)
                    .retry(policy("list(200ms)"))
            };
            let plan = consumer().plan().unwrap();
            assert_eq!(
                client.compare_plan(&plan).await.unwrap().len(),
                plan.items.len()
            );
            let waiting = client.waiting(&queue);
            assert_eq!(waiting.queues([]).await.unwrap(), [], "{what}");
            let late = Publish::to_queue(&queue, "x")
                .message_id("late")
                .delay(ms(100));
            client.publish(late).await.unwrap();
            // The second one finds everything there.
            for number in 0..2 {
                let observations = Observations::default();
                let running = consumer().on_event(observations.listener());
                let handler = observations.handler(|_| Err("no".into()));
                let running = running.start(handler).await;
                let running = running.unwrap_or_else(|error| panic!("{what}, {number}: {error}"));
                let id = number.to_string();
                let message = Publish::to_queue(&queue, "x").message_id(&id);
                client.publish(message).await.unwrap();
                observations.until(&id, 2).await;
                if number == 0 {
                    observations.until("late", 2).await;
                }
                settled_at(&amqp, &running, &what, &queue).await;
                let _ = client.metrics_text();
                running.close().await;
            }
            assert!(
                !waiting
                    .queues([policy("list(200ms)")])
                    .await
                    .unwrap()
                    .is_empty()
            );
            assert_eq!(
                client
                    .depths(&[queue.clone(), format!("{queue}.parked")])
                    .await
                    .unwrap()
                    .len(),
                2
            );
            let retrier = client.retrier(&queue).unwrap();
            assert!(retrier.exists().await.unwrap());
            let replayed = async {
                let mut browse = client.parked(&queue).browse().await?;
                let mut replayed = 0;
                while let Some(record) = browse.next().await? {
                    browse.replay(&record).await?;
                    replayed += 1;
                }
                browse.close().await?;
                Ok::<_, Error>(replayed)
            };
            let replayed = tokio::time::timeout(DEADLINE, replayed).await.unwrap();
            assert_eq!(replayed.unwrap(), 3, "{what}");
            assert_eq!(amqp.depth(&queue).await, Some(3), "{what}");
            nothing_was_left_unsaid(&proxy, &what);
            assert_eq!(client.reconnects(), 0, "{what}");
            client.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_longer_name_is_refused_before_the_broker_is_asked() {
    on_every_broker(|broker| async move {
        let (vhost, proxy) = observed(&broker).await;
        let client = retryrmq::Client::connect(proxy.url()).await.unwrap();
        for letter in ["q", "ä"] {
            let (most, longest) = (most(&vhost, letter), most(&vhost, letter) - SUFFIX);
            let says = |answer: Result<()>, most: usize| {
                let why = refused(answer, ErrorKind::TooLarge);
                let may_have = format!("may have at most {most}");
                assert!(why.contains(&may_have), "{broker}, {most}: {why}");
                assert!(why.len() < 500, "{why}");
            };
            let queue = named(letter, longest + letter.len());
            let consumer = client.consumer(&queue).dlx(true).retry(policy("fixed(1s)"));
            let plan = consumer.plan().unwrap();
            says(client.compare_plan(&plan).await.map(drop), longest);
            says(client.apply_plan(&plan).await.map(drop), longest);
            says(consumer.subscribe().await.map(drop), longest);
            let late = Publish::to_queue(&queue, "x").delay(ms(100));
            says(client.publish(late).await, longest);
            says(client.retrier(&queue).map(drop), longest);
            let error = client.waiting(&queue).queues([policy("fixed(365d)")]).await;
            refused(error, ErrorKind::TooLarge);
            // Nothing is made from this one's name.
            let plain = named(letter, most + letter.len());
            for queue in [&plain, &format!("{plain}.parked")] {
                let consumer: Consumer = client.consumer(queue).reserved_name(true);
                refused(consumer.subscribe().await.map(drop), ErrorKind::TooLarge);
                let totals = client
                    .queue_totals([queue.as_str(), "orders"])
                    .await
                    .unwrap();
                let [Err(long), Ok(None)] = &totals[..] else {
                    panic!("{totals:?}");
                };
                assert_eq!(long.kind(), ErrorKind::TooLarge, "{long}");
            }
            refused(
                client.parked(&plain).browse().await.map(drop),
                ErrorKind::TooLarge,
            );
            let queue = named(letter, most);
            let amqp = vhost.connect().await;
            amqp.declare(&queue, QueueType::Quorum).await;
            let subscription = client.consumer(&queue).subscribe().await.unwrap();
            // What 4.x says of a queue that is being deleted is longer, and costs the connection (limits.md).
            subscription.close();
            subscription.wait_closed().await.unwrap();
            amqp.delete(&queue).await;
        }
        nothing_was_left_unsaid(&proxy, &broker.to_string());
        assert_eq!(client.reconnects(), 0);
        assert!(vhost.queues().await.is_empty(), "nothing was made");
    })
    .await;
}
