//! Many messages that wait for long in waiting queues, measured: `make serve-waiting`. How fast a machine is shows nothing about the
//! code, so nothing is asserted about times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use retryrmq::{Client, Publish};
use retryrmq_harness::{QueueType, brokers, lapin::options::BasicAckOptions};
use tokio::time::{Instant, interval};

/// As many are published in a second, and so are due in one.
const PER_SECOND: u64 = 5_000;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap().as_millis()).unwrap()
}

/// `RETRYRMQ_WAITING_COUNT` messages wait for `RETRYRMQ_WAITING_SECONDS`, and each says when it is due.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes more than an hour"]
async fn a_million_that_waits_for_an_hour() {
    let Some(broker) = brokers()
        .into_iter()
        .rfind(|broker| broker.is_controllable())
    else {
        eprintln!("skipped: there is no broker that can be asked for its memory");
        return;
    };
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |said| said.parse().expect(name))
    };
    let (count, seconds) = (
        number("RETRYRMQ_WAITING_COUNT", 1_000_000),
        number("RETRYRMQ_WAITING_SECONDS", 3_600),
    );
    let node = broker.own_node(&[]).await;
    let asked = async |expression: &str| -> u64 {
        node.ctl(&["eval", expression])
            .await
            .trim()
            .parse()
            .unwrap()
    };
    let memory = "[erlang:garbage_collect(P) || P <- erlang:processes()], timer:sleep(500), erlang:memory(total).";
    let disk = "filelib:fold_files(rabbit:data_dir(), \".*\", true, fun(F, Sum) -> Sum + filelib:file_size(F) end, 0).";
    let amqp = node.connect().await;
    amqp.declare("orders", QueueType::Quorum).await;
    let client = Client::connect(node.url()).await.unwrap();
    let delay = Duration::from_secs(seconds);
    // Its waiting queue is there, and older than two seconds, before what is measured.
    client
        .publish(Publish::to_queue("orders", now_ms().to_string()).delay(delay))
        .await
        .unwrap();
    let (empty_memory, empty_disk, begun) =
        (asked(memory).await, asked(disk).await, Instant::now());

    let mut tick = interval(Duration::from_millis(20));
    let batch = PER_SECOND / 50;
    for _ in 0..count.div_ceil(batch) {
        tick.tick().await;
        let due = now_ms() + seconds * 1_000;
        let body = format!("{due:<256}");
        let publishes = (0..batch)
            .map(|_| client.publish(Publish::to_queue("orders", body.clone()).delay(delay)));
        for published in futures_util::future::join_all(publishes).await {
            published.unwrap();
        }
    }
    let count = count.div_ceil(batch) * batch;
    let each = (asked(memory).await - empty_memory) / count;
    let on_disk = (asked(disk).await - empty_disk) / count;
    eprintln!(
        "broker: {count} wait, stored in {:?}, {each} bytes of memory and {on_disk} of disk each; the first is due in {seconds} s",
        begun.elapsed()
    );
    assert!(
        begun.elapsed() < delay,
        "the first was due before the last was stored"
    );

    let mut consumer = amqp.consume("orders", 2_000).await;
    let mut late = Vec::with_capacity(usize::try_from(count).unwrap());
    let mut early = 0;
    while (late.len() as u64) < count {
        let delivery = consumer.next().await.unwrap().unwrap();
        if delivery.data.len() == 256 {
            let due: u64 = String::from_utf8_lossy(&delivery.data)
                .trim()
                .parse()
                .unwrap();
            let now = now_ms();
            early += u64::from(now < due);
            late.push(now.saturating_sub(due));
        }
        if late.len() % 500 == 0 {
            delivery
                .ack(BasicAckOptions { multiple: true })
                .await
                .unwrap();
        }
    }
    late.sort_unstable();
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
    eprintln!(
        "broker: {count} came, {early} of them early, late p50 {} ms, p99 {} ms, p99.9 {} ms, most {} ms",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    assert_eq!(early, 0);
}
