//! Options that cannot work are refused at once, and nothing is made.

use std::time::Duration;

use retryrmq::{ErrorKind, Limits, Pause, Policy, QueueType, Strategy};
use retryrmq_harness as harness;

use crate::{
    connecting::refused,
    fixture::{QUEUE, connect},
};

#[tokio::test]
async fn names_that_amqp_cannot_carry_are_refused_at_once() {
    let broker = harness::brokers().remove(0);
    let vhost = broker.vhost().await;
    let client = connect(&vhost).await;
    for (length, dlx) in [
        (256, false),
        (256, true),
        (250, true),
        (240, true),
        (10_000, true),
    ] {
        let consumer = client.consumer("q".repeat(length)).dlx(dlx);
        let why = refused(consumer.subscribe().await, ErrorKind::TooLarge);
        assert!(why.contains("255") && why.len() < 400, "{why}");
    }
    // In characters it is short enough.
    let consumer = client.consumer("ü".repeat(130)).dlx(true);
    let why = refused(consumer.subscribe().await, ErrorKind::TooLarge);
    assert!(why.contains("bytes"), "{why}");
    assert!(vhost.queues().await.is_empty(), "nothing was made");
    client
        .consumer("q".repeat(200))
        .dlx(true)
        .subscribe()
        .await
        .unwrap();
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_at_once() {
    let broker = harness::brokers().remove(0);
    let vhost = broker.vhost().await;
    let client = connect(&vhost).await;
    let consumer = || client.consumer(QUEUE).dlx(true);
    let pause = Pause::default().window(0);
    let for_ever = Pause::default().pause(Duration::MAX);
    let limits = Limits::default().crashes(0);
    for (consumer, named) in [
        (client.consumer("").dlx(true), "`queue`"),
        (client.consumer("two\nlines").dlx(true), "line break"),
        (consumer().prefetch(0), "`prefetch`"),
        (consumer().concurrency(0), "`concurrency`"),
        (
            consumer().handler_timeout(Duration::ZERO),
            "`handler_timeout`",
        ),
        (
            consumer().handler_timeout(Duration::MAX),
            "`handler_timeout`",
        ),
        (consumer().drain_timeout(Duration::MAX), "`drain_timeout`"),
        (consumer().pause(pause), "`pause`"),
        (consumer().pause(for_ever), "`pause`"),
        (consumer().limits(limits), "`limits.crashes`"),
    ] {
        let why = refused(consumer.subscribe().await, ErrorKind::InvalidOption);
        assert!(why.contains(named), "{why}");
    }
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    for bad in [
        Policy::default().jitter(f64::NAN),
        Policy::default().jitter(1.5),
        Policy::default().jitter(-0.1),
        Policy::default().factor(0.5),
        Policy::default().factor(f64::INFINITY),
        Policy::default().max(Duration::ZERO),
        Policy::default().max(century),
        Policy::default().max_age(Duration::ZERO),
        retryrmq::Backoff::fixed(Duration::ZERO),
        retryrmq::Backoff::fixed(Duration::from_nanos(1)),
        retryrmq::Backoff::fixed(Duration::MAX),
        retryrmq::Backoff::list([]),
        retryrmq::Backoff::linear(Duration::from_millis(1)).retries(u32::MAX),
    ] {
        refused(
            consumer().retry(bad.clone()).subscribe().await,
            ErrorKind::InvalidPolicy,
        );
        let rule = retryrmq::Rule::new(bad).error("x");
        refused(
            consumer().rules([rule]).subscribe().await,
            ErrorKind::InvalidPolicy,
        );
    }
    assert!(vhost.queues().await.is_empty(), "nothing was made");
}

#[tokio::test]
async fn policies_and_rules_in_text_are_read_or_refused_with_a_sentence() {
    for bad in [
        "",
        "fixed",
        "fixed()",
        "fixed(5)",
        "fixed(-5s)",
        "fixed(0s)",
        "fixed(1099511627777ms)",
        "never(1s)",
        "fixed(1s, colour=red)",
        "fixed(1s, retries=-1)",
        "fixed(1s, retries=many)",
        "fixed(1s, retries=99999999999)",
        "fixed(1s",
        "fixed(1s))",
        "list()",
        "list(1s, x)",
        "exponential(1s, factor=0)",
        "exponential(1s, factor=NaN)",
        "linear(1s, step=-1s)",
        "exponential(1s, jitter=2)",
        "fixed(1s, max_age=0s)",
        "fixed(1e9d)",
        "fixed(1s) and more",
        "fixed(99999999999999999999999s)",
        "\u{0}",
        "fixed(１s)",
    ] {
        let why = refused(bad.parse::<Policy>(), ErrorKind::InvalidPolicy);
        assert!(why.len() < 600, "{why}");
        let rule = format!("error=x => {bad}");
        refused(rule.parse::<retryrmq::Rule>(), ErrorKind::InvalidPolicy);
    }
    let long = "x".repeat(1_000_000);
    let why = refused(long.parse::<Policy>(), ErrorKind::InvalidPolicy);
    assert!(why.len() < 600, "{} bytes", why.len());
    for bad in ["retry_queues", "", "native "] {
        refused(bad.parse::<Strategy>(), ErrorKind::InvalidOption);
        refused(bad.parse::<QueueType>(), ErrorKind::InvalidOption);
    }
}
