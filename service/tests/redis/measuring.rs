//! Figures for `docs/redis-store.md`, printed: `cargo test --release -p retryrmq-serve --test redis -- --ignored --nocapture measuring`.
//! How fast a machine is shows nothing about the code, so nothing is asserted about times.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use retryrmq_serve::store::{
    Destination, DueDispatcher, DueMessage, PublishRefused, Sink, Store, StoredMessage,
};
use tokio::{
    sync::oneshot,
    time::{Instant, interval, sleep},
};

use crate::{
    message_drafts::many,
    server::{Servers, available, eventually, on_kinds},
};

/// Notes how late each message is. Its publishing takes as long as a confirm of a quorum queue.
#[derive(Default)]
struct Watch {
    late: Mutex<Vec<Duration>>,
}

impl Sink for Watch {
    async fn publish(&self, due: &DueMessage) -> Result<(), PublishRefused> {
        self.late.lock().unwrap().push(due.late);
        sleep(Duration::from_millis(10)).await;
        Ok(())
    }

    async fn give_up(&self, _: &DueMessage, _: &str) -> Result<(), PublishRefused> {
        unreachable!("all are taken")
    }
}

const PER_SECOND: usize = 5_000;
const SECONDS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn lateness_at_five_thousand_a_second() {
    on_kinds(&["appendfsync always"], |servers| async move {
        let store = Arc::new(servers.store());
        let begun = Instant::now();
        // All of them wait before the first is due, spread evenly over the seconds from then on.
        let lead = Duration::from_secs(40);
        for part in 0..SECONDS * 10 {
            let due_in = lead + Duration::from_millis(100 * part as u64);
            let delay = due_in.saturating_sub(begun.elapsed());
            let slots = (PER_SECOND / 10) as u32;
            let batch: Vec<_> = many(&format!("orders-{}", part % 5), PER_SECOND / 10, delay)
                .into_iter()
                .enumerate()
                .map(|(at, kept)| {
                    let mut draft = kept.draft().clone();
                    draft.delay += Duration::from_millis(100) * at as u32 / slots;
                    draft.body = format!("{part}-{at}-{}", "x".repeat(1_000)).into_bytes();
                    StoredMessage::new(draft).unwrap()
                })
                .collect();
            store.keep(&batch).await.unwrap();
        }
        eprintln!("kept {} in {:?}", PER_SECOND * SECONDS, begun.elapsed());
        assert!(
            begun.elapsed() < lead,
            "the first was due before the last was kept"
        );
        let (outlets, stops) = two_replicas(&servers);
        eventually("all brought", || async {
            store.count().await.unwrap().is_empty().then_some(())
        })
        .await;
        eprintln!(
            "due at {PER_SECOND} a second, two replicas: {}",
            lateness(&outlets)
        );
        drop(stops);
    })
    .await;
}

/// Two tickers, which run until what is returned second is dropped.
fn two_replicas(servers: &Servers) -> ([Arc<Watch>; 2], Vec<oneshot::Sender<()>>) {
    let outlets = [Arc::new(Watch::default()), Arc::new(Watch::default())];
    let mut stops = Vec::new();
    for sink in &outlets {
        let dispatcher = DueDispatcher::new(Arc::new(servers.store()), Arc::clone(sink));
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(dispatcher.run(
            async {
                let _ = stopped.await;
            },
            Duration::from_secs(1),
        ));
        stops.push(stop);
    }
    (outlets, stops)
}

fn lateness(outlets: &[Arc<Watch>]) -> String {
    let late = outlets
        .iter()
        .flat_map(|sink| sink.late.lock().unwrap().clone());
    let mut late: Vec<_> = late.collect();
    late.sort();
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
    format!(
        "{} came, late p50 {:?}, p99 {:?}, p99.9 {:?}, most {:?}",
        late.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    )
}

/// Bytes of memory that a server says it uses.
fn used(servers: &Servers) -> u64 {
    let info = servers.cli(0, &["info", "memory"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    line.unwrap().trim().parse().unwrap()
}

/// `make serve-waiting`: `RETRYRMQ_WAITING_COUNT` messages wait for `RETRYRMQ_WAITING_SECONDS`, and come at [`PER_SECOND`] as they
/// were kept.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes more than an hour"]
async fn a_million_that_waits_for_an_hour() {
    if !available() {
        return;
    }
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |said| said.parse().expect(name))
    };
    let (count, seconds) = (
        number("RETRYRMQ_WAITING_COUNT", 1_000_000),
        number("RETRYRMQ_WAITING_SECONDS", 3_600),
    );
    let servers = Servers::new("valkey");
    servers.start(0, &["appendfsync always"]);
    let store = servers.store();
    let (empty, begun, batch) = (used(&servers), Instant::now(), PER_SECOND / 10);
    let mut tick = interval(Duration::from_millis(100));
    for _ in 0..count.div_ceil(batch as u64) {
        tick.tick().await;
        let drafts = many("orders", batch, Duration::from_secs(seconds));
        let kept = drafts.into_iter().map(|kept| {
            let mut draft = kept.draft().clone();
            draft.properties = crate::message_drafts::laden();
            draft.body = vec![b'x'; 256];
            StoredMessage::new(draft).unwrap()
        });
        store.keep(&kept.collect::<Vec<_>>()).await.unwrap();
    }
    let (kept, each) = (
        store.count().await.unwrap()[0].1,
        (used(&servers) - empty) / count,
    );
    eprintln!(
        "Redis: {kept} kept in {:?}, {each} bytes of memory each; the first is due in {seconds} s",
        begun.elapsed()
    );
    assert!(
        begun.elapsed() < Duration::from_secs(seconds),
        "the first was due before the last was kept"
    );
    let (outlets, stops) = two_replicas(&servers);
    while !store.count().await.unwrap().is_empty() {
        sleep(Duration::from_secs(1)).await;
    }
    eprintln!(
        "Redis, due as they were kept, two replicas: {}",
        lateness(&outlets)
    );
    let come: usize = outlets
        .iter()
        .map(|sink| sink.late.lock().unwrap().len())
        .sum();
    assert_eq!(come as u64, kept, "each came once");
    drop(stops);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn bytes_per_message() {
    on_kinds(&["appendfsync everysec"], |servers| async move {
        let store = retryrmq_serve::store::redis::RedisStore::new(&retryrmq_serve::store::redis::Configuration {
            fsync: false,
            ..servers.configuration()
        }, "/")
        .unwrap();
        let empty = used(&servers);
        let hour = Duration::from_secs(3_600);
        let count = 200_000;
        let mut size = 0;
        for _ in 0..count / 1_000 {
            let batch: Vec<_> = many("orders", 1_000, hour)
                .iter()
                .map(|kept| {
                    let mut draft = kept.draft().clone();
                    draft.properties = crate::message_drafts::laden();
                    draft.body.resize(100, b'x');
                    StoredMessage::new(draft).unwrap()
                })
                .collect();
            size = batch[0].size();
            store.keep(&batch).await.unwrap();
        }
        let line = Destination::Queue("orders".to_owned());
        assert_eq!(store.count().await.unwrap(), [(line, count)]);
        let each = (used(&servers) - empty) / count;
        eprintln!(
            "{count} messages: {each} bytes each in memory, for {size} bytes of properties, names and body: {} bytes over",
            each - size as u64
        );
    })
    .await;
}
