//! Brokers that come later, go away, and come back.

use std::time::Duration;

use retryrmq::{Client, ClientOptions, ErrorKind, Publish, Strategy};
use retryrmq_harness::{Version, eventually, free_port, on_brokers};
use tokio::time::sleep;

use crate::{
    connecting::{host_and_port, refused},
    fixture::{DEADLINE, Observations, QUEUE, policy, start},
    log_capture,
    logins::cut,
    network::{CONSUMING, CutProxies, GatedProxy, behind},
};

/// The lines about a broker behind this port, as soon as there are so many.
async fn told_of(port: u16, what: &str, many: usize) -> Vec<String> {
    let about = |line: &String| line.contains(what) && line.contains(&port.to_string());
    eventually(DEADLINE, "it was tried often enough", || async {
        let told: Vec<_> = log_capture::lines().into_iter().filter(about).collect();
        (told.len() >= many).then_some(told)
    })
    .await
}

#[tokio::test]
async fn a_broker_that_is_not_there_yet_is_waited_for() {
    log_capture::start();
    on_brokers(|broker| async move {
        let (at, port) = (host_and_port(&broker), free_port());
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        refused(Client::connect(&url).await, ErrorKind::Unreachable);
        let options = ClientOptions::new().wait(true);
        let connecting = tokio::spawn(async move { Client::connect_with(&url, options).await });
        let told = told_of(port, "the broker is not there yet", 3).await;
        assert!(!connecting.is_finished(), "there is nobody yet");
        let warned = told.iter().filter(|line| line.contains(" WARN "));
        assert_eq!(warned.count(), 1, "{told:?}");
        let gated_proxy = GatedProxy::open(port, at).await;
        let client = connecting.await.unwrap().unwrap();
        client.health().unwrap();
        assert!(
            client
                .metrics_text()
                .contains("retryrmq_connection_up{purpose=\"consume\"} 1")
        );
        client.close().await;
        assert_eq!(client.health().unwrap_err().kind(), ErrorKind::Closed);
        assert!(
            client
                .metrics_text()
                .contains("retryrmq_connection_up{purpose=\"consume\"} 0")
        );
        gated_proxy.shut().await;
        // Who refuses is not waited for.
        let wrong = format!("amqp://guest:wr0ng@{}/%2f", host_and_port(&broker));
        let options = ClientOptions::new().wait(true);
        refused(
            Client::connect_with(&wrong, options).await,
            ErrorKind::AuthenticationFailed,
        );
    })
    .await;
}

/// The broker that was waited for goes again before anything is consumed, as where all of a cluster starts at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_broker_waits_for_it_to_subscribe_as_well() {
    log_capture::start();
    on_brokers(|broker| async move {
        let (vhost, port) = (broker.vhost().await, free_port());
        let gated_proxy = GatedProxy::open(port, host_and_port(&broker)).await;
        let options = ClientOptions::new().wait(true);
        let client = Client::connect_with(&behind(&vhost, port), options)
            .await
            .unwrap();
        gated_proxy.shut().await;
        let subscribing = |queue: &str| {
            let consumer = client.consumer(queue).dlx(true);
            tokio::spawn(async move { consumer.messages().await })
        };
        let (one, other) = (subscribing(QUEUE), subscribing("other"));
        let told = told_of(port, "cannot consume yet", 6).await;
        assert!(!one.is_finished() && !other.is_finished(), "it is away");
        let warned = told.iter().filter(|line| line.contains(" WARN "));
        assert!(warned.count() < told.len(), "{told:?}");
        // Nobody waits for this one any more, and it leaves nothing behind.
        other.abort();
        let gated_proxy = GatedProxy::open(port, host_and_port(&broker)).await;
        let mut messages = one.await.unwrap().expect("the broker is back");
        client.publish(Publish::to_queue(QUEUE, "x")).await.unwrap();
        messages.next().await.unwrap().ack();
        messages.close().await;
        // Nor does it wait for longer than its client lives.
        gated_proxy.shut().await;
        let third = subscribing("third");
        sleep(Duration::from_millis(100)).await;
        client.close().await;
        let ended = tokio::time::timeout(DEADLINE, third).await;
        let error = ended.expect("it ends with its client").unwrap();
        assert_eq!(error.map(drop).unwrap_err().kind(), ErrorKind::Closed);
        // Who refuses is not waited for.
        let options = ClientOptions::new().wait(true);
        let client = Client::connect_with(vhost.url(), options).await.unwrap();
        let missing = client.consumer("missing").messages().await;
        refused(missing.map(drop), ErrorKind::QueueNotFound);
        client.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_broker_is_away_publishers_are_told_and_old_depths_are_not_shown() {
    on_brokers(|broker| async move {
        let (vhost, port) = (broker.vhost().await, free_port());
        let gated_proxy = GatedProxy::open(port, host_and_port(&broker)).await;
        let client = Client::connect(&behind(&vhost, port)).await.unwrap();
        let observations = Observations::default();
        let mut all = Vec::new();
        for queue in ["one", "three", "two"] {
            let consumer = client
                .consumer(queue)
                .dlx(true)
                .retry(policy("fixed(5s, retries=0)"));
            all.push(start(consumer, &observations, |_| Err("no".into())).await);
            client.publish(Publish::to_queue(queue, "x")).await.unwrap();
        }
        let delayed = || Publish::to_queue("one", "x").delay(Duration::from_secs(3_600));
        client.publish(delayed()).await.unwrap();
        let until_depths = async |number: usize| {
            eventually(DEADLINE, &format!("{number} depths are shown"), || async {
                let text = client.metrics_text();
                let shown: Vec<_> = text
                    .lines()
                    .filter(|line| line.starts_with("retryrmq_parked_depth{"))
                    .map(str::to_owned)
                    .collect();
                if shown.len() == number {
                    Ok(())
                } else {
                    Err(format!("{shown:?}"))
                }
            })
            .await;
        };
        until_depths(3).await;
        gated_proxy.shut().await;
        cut(&vhost).await;
        until_depths(0).await;
        let published = tokio::time::timeout(DEADLINE, client.publish(delayed())).await;
        let error = published.expect("the publisher is told").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
        // And why there is none: nobody listens there any more.
        eventually(DEADLINE, "the publisher is told why", || async {
            let error = client.publish(delayed()).await.unwrap_err().to_string();
            error.contains("refused").then_some(()).ok_or(error)
        })
        .await;
        drop(all);
        client.close().await;
    })
    .await;
}

/// Each of them pauses for seconds between two tries by then. The one that is back first wakes the other, unless that one is about to try by
/// itself: then there is another outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_connections_come_back_together() {
    const OUTAGES: usize = 10;
    log_capture::start();
    on_brokers(|broker| async move {
        let (vhost, port) = (broker.vhost().await, free_port());
        let mut gated_proxy = GatedProxy::open(port, host_and_port(&broker)).await;
        let client = Client::connect(&behind(&vhost, port)).await.unwrap();
        let up = || {
            let text = client.metrics_text();
            let is_up = |line: &&str| {
                line.starts_with("retryrmq_connection_up{") && line.trim_end().ends_with(" 1")
            };
            text.lines().filter(is_up).count()
        };
        let is_woken = || {
            let about = |line: &String| {
                line.contains("so trying at once") && line.contains(&port.to_string())
            };
            log_capture::lines().iter().any(about)
        };
        for outage in 1..=OUTAGES {
            gated_proxy.shut().await;
            cut(&vhost).await;
            eventually(DEADLINE, "both are lost", || async {
                (up() == 0).then_some(())
            })
            .await;
            told_of(port, "cannot reconnect yet", 8 * outage).await;
            gated_proxy = GatedProxy::open(port, host_and_port(&broker)).await;
            eventually(DEADLINE, "both are back", || async {
                (up() == 2).then_some(())
            })
            .await;
            if is_woken() {
                break;
            }
        }
        assert!(is_woken(), "each waited out its own pause");
        client.close().await;
        gated_proxy.shut().await;
    })
    .await;
}

/// The same address is another version after a reconnection, as in a rolling upgrade.
#[tokio::test]
async fn a_broker_that_cannot_serve_the_consumer_any_more_is_not_consumed_from() {
    log_capture::start();
    let brokers = retryrmq_harness::brokers();
    let old = brokers
        .iter()
        .find(|broker| broker.version() < Version::V4_0);
    let new = brokers
        .iter()
        .find(|broker| broker.version() >= Version::V4_0);
    let (Some(old), Some(new)) = (old, new) else {
        return eprintln!("skipped: it takes a broker before 4.0 and another one");
    };
    let (vhost, port) = (old.vhost().await, free_port());
    let management = new.management();
    management.create_vhost(vhost.name(), None).await.unwrap();
    let gated_proxy = GatedProxy::open(port, host_and_port(old)).await;
    let client = Client::connect(&behind(&vhost, port)).await.unwrap();
    let observations = Observations::default();
    let queue = format!("upgraded-{}", vhost.name());
    let consumer = client
        .consumer(&queue)
        .dlx(true)
        .strategy(Strategy::DeadLetter)
        .retry(policy("fixed(300ms, retries=30)"));
    let running = start(consumer, &observations, |_| Ok(())).await;
    gated_proxy.shut().await;
    cut(&vhost).await;
    let _door = GatedProxy::open(port, host_and_port(new)).await;
    eventually(DEADLINE, "the refusal is told", || async {
        let told = log_capture::lines().into_iter().any(|line| {
            line.contains("cannot consume")
                && line.contains(&queue)
                && line.contains("cannot hold 30 retries")
        });
        told.then_some(())
    })
    .await;
    running.close().await;
    client.close().await;
    management.delete_vhost(vhost.name()).await.unwrap();
}

/// Its first connection is lost for good while it opens its second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_connects_as_the_broker_goes_does_not_wait_for_its_return() {
    on_brokers(|broker| async move {
        let (vhost, port) = (broker.vhost().await, free_port());
        let proxies = CutProxies::default();
        let way = proxies.lead(port, host_and_port(&broker)).await;
        let url = behind(&vhost, port);
        let connecting = tokio::spawn(async move { Client::connect(&url).await });
        eventually(DEADLINE, "it opens the second", || async {
            match proxies.count() {
                2 => Ok(()),
                opened => Err(opened.to_string()),
            }
        })
        .await;
        way.abort();
        proxies.cut(CONSUMING);
        let connected = tokio::time::timeout(DEADLINE, connecting).await;
        let client = connected.expect("connecting ends").unwrap();
        // The rest is made again in the background.
        if let Ok(client) = client {
            eventually(DEADLINE, "the loss is known", || async {
                client.health().is_err()
            })
            .await;
            client.close().await;
        }
    })
    .await;
}
