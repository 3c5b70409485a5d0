//! Queues that are made by nobody's broker: who shares what with whom, for how long, and from when on it is safe.

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::AtomicUsize,
};

use tokio::{sync::Notify, time::advance};

use super::*;
use crate::topology::{age_marker::MarkerAge, existing};

/// A broker of a few lines: refuses what it is told to, and answers when it may.
#[derive(Default)]
struct Broker {
    made: Mutex<Vec<String>>,
    refused: Mutex<BTreeMap<String, ErrorKind>>,
    silent: Mutex<HashSet<String>>,
    speak: Notify,
    looked: Mutex<Vec<String>>,
    marked: Mutex<HashSet<String>>,
    clock: AtomicBool,
    slowness: Mutex<Duration>,
    busy: AtomicUsize,
    busiest: AtomicUsize,
}

impl Broker {
    fn made(&self, name: &str) -> usize {
        let made = self.made.lock().unwrap();
        made.iter().filter(|made| *made == name).count()
    }

    fn refuses(&self, name: &str, why: ErrorKind) {
        self.refused.lock().unwrap().insert(name.to_owned(), why);
    }

    fn allows(&self, name: &str) {
        self.refused.lock().unwrap().remove(name);
    }

    fn says_nothing_of(&self, name: &str) {
        self.silent.lock().unwrap().insert(name.to_owned());
    }
}

impl Make for Arc<Broker> {
    async fn age(&self, _: &str, queue: &str, _: Duration) -> Result<MarkerAge> {
        self.looked.lock().unwrap().push(queue.to_owned());
        let slowness = *self.slowness.lock().unwrap();
        tokio::time::sleep(slowness).await;
        match self.refused.lock().unwrap().get(&marker_of(queue)) {
            Some(why) => Err(Error::new(*why, format!("no marker of {queue}"))),
            None if self.marked.lock().unwrap().contains(queue) => Ok(MarkerAge::Old),
            None => Ok(MarkerAge::Unknown),
        }
    }

    async fn mark(&self, queues: Vec<String>) -> Vec<(String, Error)> {
        // With a clock, the marker of a young queue does not tell that it is old.
        if !self.clock.load(Ordering::Relaxed) {
            self.marked.lock().unwrap().extend(queues);
        }
        Vec::new()
    }

    async fn start_clock(&self, _: &str) -> Result<()> {
        self.clock.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn make(&self, plan: Plan, _: Mode) -> Result<bool> {
        let name = plan.items[0].name().to_owned();
        self.made.lock().unwrap().push(name.clone());
        let busy = self.busy.fetch_add(1, Ordering::Relaxed) + 1;
        self.busiest.fetch_max(busy, Ordering::Relaxed);
        if self.silent.lock().unwrap().contains(&name) {
            self.speak.notified().await;
        }
        tokio::task::yield_now().await;
        self.busy.fetch_sub(1, Ordering::Relaxed);
        match self.refused.lock().unwrap().get(&name) {
            Some(why) => Err(Error::new(*why, format!("no {name}"))),
            None => Ok(false),
        }
    }
}

struct Stage {
    broker: Arc<Broker>,
    losses: Arc<AtomicU64>,
    waits: Arc<DelayQueues<Arc<Broker>>>,
}

fn stage(backoff: DeclareBackoff) -> Stage {
    let (broker, losses) = (Arc::new(Broker::default()), Arc::default());
    let waits = DelayQueues::with(
        Arc::clone(&broker),
        "orders".to_owned(),
        QueueType::Quorum,
        backoff == DeclareBackoff::Publisher,
        Arc::clone(&losses),
        backoff,
    );
    let waits = Arc::new(waits);
    Stage {
        broker,
        losses,
        waits,
    }
}

/// What is refused if the marker of a queue is.
fn marker_of(queue: &str) -> String {
    format!("the marker of {queue}")
}

const WAITING_QUEUE: &str = "orders.retry.1000";
const PARKED: &str = "orders.parked";

fn found(name: &str, status: Status) -> Finding {
    let item = match waits_for("orders", name) {
        Some(delay) => plan::waiting("orders", delay, QueueType::Quorum),
        None if name == PARKED => plan::parking("orders", QueueType::Quorum),
        None => existing(name),
    };
    Finding {
        item,
        status,
        queue_type: None,
        services: None,
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_made_it_a_queue_is_young_until_we_have_known_it_for_a_while() {
    let Stage { waits, losses, .. } = stage(DeclareBackoff::Consumer);
    let now = Instant::now;
    waits.note(&[
        found(WAITING_QUEUE, Status::Present),
        found(PARKED, Status::Present),
        found("orders", Status::Present),
    ]);
    assert_eq!(waits.safe_from(WAITING_QUEUE), Some(now() + SAFE_AGE));
    assert_eq!(waits.durable_after(PARKED), Some(now() + SAFE_AGE));
    assert_eq!(
        waits.durable_after("orders"),
        None,
        "it is not ours to wait for"
    );
    assert_eq!(waits.durable_after("orders.retry.soon"), None);
    advance(SAFE_AGE).await;
    assert_eq!(waits.durable_after(WAITING_QUEUE), Some(now()));
    // Found again, it may be another one of the same name.
    waits.note(&[found(WAITING_QUEUE, Status::Present)]);
    assert_eq!(waits.durable_after(WAITING_QUEUE), Some(now() + SAFE_AGE));
    assert_eq!(waits.durable_after(PARKED), Some(now()));
    // Another connection, maybe another life of the broker: nothing is known.
    losses.fetch_add(1, Ordering::Relaxed);
    assert_eq!(waits.safe_from(PARKED), None);
    assert_eq!(waits.durable_after(PARKED), Some(now() + SAFE_AGE));
    assert_eq!(waits.ensure(PARKED).await.unwrap(), now() + SAFE_AGE);
    // Returned, and thus deleted.
    advance(SAFE_AGE).await;
    waits.forget(PARKED);
    assert_eq!(waits.durable_after(PARKED), Some(now() + SAFE_AGE));
    assert_eq!(waits.ensure(PARKED).await.unwrap(), now() + SAFE_AGE);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_found_is_old_if_its_marker_says_so_in_time() {
    let Stage {
        waits,
        losses,
        broker,
    } = stage(DeclareBackoff::Publisher);
    let marked = || {
        broker
            .marked
            .lock()
            .unwrap()
            .insert(WAITING_QUEUE.to_owned())
    };
    let looks = || broker.looked.lock().unwrap().len();
    let find = || {
        waits.note(&[
            found(WAITING_QUEUE, Status::Present),
            found(PARKED, Status::Present),
        ])
    };
    find();
    let sent = Instant::now();
    assert_eq!(
        waits.age_from_marker(WAITING_QUEUE, sent).await,
        Some(sent + SAFE_AGE)
    );
    assert_eq!(looks(), 0, "nobody asked");
    waits.find_marker(WAITING_QUEUE);
    waits.find_marker("orders");
    assert_eq!(
        waits.age_from_marker(WAITING_QUEUE, sent).await,
        Some(sent + SAFE_AGE)
    );
    waits.find_marker(WAITING_QUEUE);
    assert_eq!(
        looks(),
        1,
        "there is one answer for each time that it is found"
    );
    marked();
    find();
    let sent = Instant::now();
    waits.find_marker(WAITING_QUEUE);
    waits.find_marker(PARKED);
    assert_eq!(waits.age_from_marker(WAITING_QUEUE, sent).await, None);
    assert_eq!(
        waits.age_from_marker(PARKED, sent).await,
        Some(sent + SAFE_AGE)
    );
    advance(SAFE_AGE).await;
    assert_eq!(waits.age_from_marker(PARKED, Instant::now()).await, None);
    // What was found once more while the broker was asked, and after a lost connection, may be another queue.
    for again in [&find as &dyn Fn(), &|| {
        losses.fetch_add(1, Ordering::Relaxed);
    }] {
        find();
        *broker.slowness.lock().unwrap() = Duration::from_millis(100);
        let sent = Instant::now();
        waits.find_marker(WAITING_QUEUE);
        tokio::task::yield_now().await;
        advance(Duration::from_millis(50)).await;
        again();
        assert!(waits.age_from_marker(WAITING_QUEUE, sent).await.is_some());
    }
    // An answer that comes too late is not waited for.
    find();
    *broker.slowness.lock().unwrap() = 3 * SAFE_AGE;
    let sent = Instant::now();
    waits.find_marker(WAITING_QUEUE);
    assert_eq!(
        waits.age_from_marker(WAITING_QUEUE, sent).await,
        Some(sent + SAFE_AGE)
    );
    assert_eq!(sent.elapsed(), SAFE_AGE);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_young_queue_is_told_when_it_is_old_or_lost() {
    let began = Instant::now();
    let Stage { waits, losses, .. } = stage(DeclareBackoff::Publisher);
    waits.note(&[found(WAITING_QUEUE, Status::Created)]);
    assert!(!waits.is_safe(WAITING_QUEUE));
    waits.until_safe(WAITING_QUEUE).await.unwrap();
    assert_eq!(began.elapsed(), SAFE_AGE);
    assert!(waits.is_safe(WAITING_QUEUE));
    let events: [&dyn Fn(); 2] = [&|| waits.forget(WAITING_QUEUE), &|| {
        losses.fetch_add(1, Ordering::Relaxed);
    }];
    for event in events {
        waits.note(&[found(WAITING_QUEUE, Status::Created)]);
        let waiting = {
            let waits = Arc::clone(&waits);
            tokio::spawn(async move { waits.until_safe(WAITING_QUEUE).await })
        };
        tokio::task::yield_now().await;
        event();
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
        assert!(error.is_transient());
    }
    // Without the permission for markers it would be of no use.
    let Stage { waits, broker, .. } = stage(DeclareBackoff::Publisher);
    broker.refuses(&marker_of(WAITING_QUEUE), ErrorKind::AccessRefused);
    waits.note(&[found(WAITING_QUEUE, Status::Present)]);
    waits.find_marker(WAITING_QUEUE);
    waits.until_safe(WAITING_QUEUE).await.unwrap();
    assert!(waits.is_safe(WAITING_QUEUE));
    assert_eq!(
        waits.durable_after(WAITING_QUEUE),
        waits.safe_from(WAITING_QUEUE)
    );
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_is_refused_is_not_looked_for_again() {
    for (why, looks) in [
        (ErrorKind::AccessRefused, 1),
        (ErrorKind::Mismatch, 2),
        (ErrorKind::Timeout, 6),
    ] {
        let Stage { waits, broker, .. } = stage(DeclareBackoff::Publisher);
        broker.refuses(&marker_of(WAITING_QUEUE), why);
        broker.refuses(&marker_of(PARKED), why);
        for _ in 0..3 {
            waits.note(&[
                found(WAITING_QUEUE, Status::Present),
                found(PARKED, Status::Present),
            ]);
            for queue in [WAITING_QUEUE, PARKED] {
                let sent = Instant::now();
                waits.find_marker(queue);
                let safe = waits.age_from_marker(queue, sent).await;
                assert_eq!(safe, Some(sent + SAFE_AGE));
            }
        }
        assert_eq!(broker.looked.lock().unwrap().len(), looks, "{why:?}");
    }
    let Stage { waits, broker, .. } = stage(DeclareBackoff::Consumer);
    waits.note(&[found(WAITING_QUEUE, Status::Present)]);
    waits.find_marker(WAITING_QUEUE);
    assert!(
        !waits.is_asked(WAITING_QUEUE),
        "nothing is declared with `declare` off"
    );
    assert!(broker.looked.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_answer_holds_up_no_other() {
    let Stage { waits, broker, .. } = stage(DeclareBackoff::Consumer);
    broker.says_nothing_of(WAITING_QUEUE);
    let slow = tokio::spawn({
        let waits = Arc::clone(&waits);
        async move { waits.ensure(WAITING_QUEUE).await }
    });
    tokio::task::yield_now().await;
    waits.ensure(PARKED).await.unwrap();
    waits.ensure("orders.retry.2000").await.unwrap();
    assert!(!slow.is_finished());
    broker.speak.notify_one();
    slow.await.unwrap().unwrap();
    assert_eq!(broker.made(WAITING_QUEUE), 1);
}

#[tokio::test(start_paused = true)]
async fn all_who_ask_for_one_share_a_try_and_its_failure() {
    for backoff in [DeclareBackoff::Consumer, DeclareBackoff::Publisher] {
        let Stage { waits, broker, .. } = stage(backoff);
        broker.says_nothing_of(WAITING_QUEUE);
        broker.refuses(WAITING_QUEUE, ErrorKind::AccessRefused);
        let asking: Vec<_> = (0..1_000)
            .map(|_| {
                let waits = Arc::clone(&waits);
                tokio::spawn(async move { waits.ensure(WAITING_QUEUE).await })
            })
            .collect();
        while broker.made(WAITING_QUEUE) == 0 {
            tokio::task::yield_now().await;
        }
        broker.speak.notify_one();
        for asked in asking {
            let error = asked.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessRefused);
            assert_eq!(error.to_string(), format!("no {WAITING_QUEUE}"));
        }
        assert_eq!(broker.made(WAITING_QUEUE), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_waiting_does_not_end_the_try() {
    let Stage { waits, broker, .. } = stage(DeclareBackoff::Consumer);
    broker.says_nothing_of(WAITING_QUEUE);
    let brief = tokio::time::timeout(Duration::from_millis(1), waits.ensure(WAITING_QUEUE));
    brief.await.unwrap_err();
    broker.speak.notify_one();
    waits.ensure(WAITING_QUEUE).await.unwrap();
    assert_eq!(broker.made(WAITING_QUEUE), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_is_left_alone_for_a_while_and_longer_each_time() {
    let Stage { waits, broker, .. } = stage(DeclareBackoff::Consumer);
    broker.refuses(WAITING_QUEUE, ErrorKind::Mismatch);
    waits.ensure(WAITING_QUEUE).await.unwrap_err();
    let mut pauses = Vec::new();
    for tries in 1..=9 {
        let since = Instant::now();
        while broker.made(WAITING_QUEUE) == tries {
            advance(Duration::from_millis(250)).await;
            waits.ensure(WAITING_QUEUE).await.unwrap_err();
        }
        pauses.push(since.elapsed().as_secs());
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert_eq!((pauses[0], pauses[8]), (1, 60), "{pauses:?}");
    broker.allows(WAITING_QUEUE);
    advance(Duration::from_secs(60)).await;
    waits.ensure(WAITING_QUEUE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_publisher_who_was_told_and_did_something_is_not_told_again() {
    let Stage { waits, broker, .. } = stage(DeclareBackoff::Publisher);
    broker.refuses("orders", ErrorKind::QueueNotFound);
    waits.ensure("orders").await.unwrap_err();
    broker.allows("orders");
    waits.ensure("orders").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn not_all_are_made_at_the_same_time() {
    let Stage { waits, broker, .. } = stage(DeclareBackoff::Consumer);
    let asking: Vec<_> = (1..=100)
        .map(|ms| {
            let waits = Arc::clone(&waits);
            tokio::spawn(async move { waits.ensure(&format!("orders.retry.{ms}")).await })
        })
        .collect();
    for asked in asking {
        asked.await.unwrap().unwrap();
    }
    let busiest = broker.busiest.load(Ordering::Relaxed);
    assert!((2..=AT_A_TIME).contains(&busiest), "{busiest}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_waits_elsewhere_where_its_queue_cannot_be_had() {
    let Stage { waits, broker, .. } = stage(DeclareBackoff::Consumer);
    let adapted = |name: &str, expiration: Option<&str>| {
        let mut properties = BasicProperties::default();
        if let Some(ms) = expiration {
            properties = properties.with_expiration(ms.into());
        }
        let (name, properties) = waits.adapt(name.to_owned(), properties.into());
        let ms = properties.expiration().as_ref().map(ToString::to_string);
        (name, ms.unwrap_or_default())
    };
    let same = |name: &str| (name.to_owned(), String::new());
    assert_eq!(
        adapted(WAITING_QUEUE, None),
        same(WAITING_QUEUE),
        "it was not looked for yet"
    );
    waits.note(&[
        found(WAITING_QUEUE, Status::Missing),
        found(PARKED, Status::Present),
    ]);
    assert_eq!(
        adapted(WAITING_QUEUE, None),
        same(WAITING_QUEUE),
        "there is no other"
    );
    waits.note(&[
        found("orders.retry.5000", Status::Present),
        found("orders.retry.60000", Status::Present),
    ]);
    let elsewhere = |ms: &str| ("orders.retry.5000".to_owned(), ms.to_owned());
    assert_eq!(adapted(WAITING_QUEUE, None), elsewhere("1000"));
    assert_eq!(adapted(WAITING_QUEUE, Some("900")), elsewhere("900"));
    assert_eq!(adapted(PARKED, None), same(PARKED));
    assert_eq!(adapted("orders", None), same("orders"));
    broker.refuses("orders.retry.80000", ErrorKind::QueueNotFound);
    waits.ensure("orders.retry.80000").await.unwrap_err();
    let longest = ("orders.retry.60000".to_owned(), "70000".to_owned());
    assert_eq!(
        adapted("orders.retry.80000", Some("70000")),
        longest,
        "early rather than never"
    );
    // What may well succeed a moment later is no reason to come early.
    broker.refuses("orders.retry.100000", ErrorKind::Timeout);
    waits.ensure("orders.retry.100000").await.unwrap_err();
    assert_eq!(
        adapted("orders.retry.100000", None),
        same("orders.retry.100000")
    );
    // Once in a while it is looked for again, and nobody waits for that.
    let before = broker.made(WAITING_QUEUE);
    advance(Duration::from_secs(10)).await;
    assert_eq!(adapted(WAITING_QUEUE, None), elsewhere("1000"));
    assert_eq!(adapted(WAITING_QUEUE, None), elsewhere("1000"));
    while waits.safe_from(WAITING_QUEUE).is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(broker.made(WAITING_QUEUE), before + 1);
    assert_eq!(adapted(WAITING_QUEUE, None), same(WAITING_QUEUE));
}
