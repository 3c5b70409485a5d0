//! Messages that any publisher can send, and that lapin does not survive.

use futures_util::StreamExt;
use lapin::options::BasicConsumeOptions;
use retryrmq_facts::*;
use retryrmq_harness::hostile::{Hostile, RawPublisher};
use retryrmq_harness::{Amqp, QueueType, brokers, eventually, on_every_broker};
use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use tokio::time::timeout;

const URL: &str = "RETRYRMQ_FACTS_URL";
/// SIGABRT, with which Rust ends a process whose stack overflows.
const ABORTED: i32 = 6;

/// Lapin fact 19.
#[tokio::test]
async fn deeply_nested_headers_end_the_process() {
    for hostile in [Hostile::nested_tables(2_000), Hostile::nested_arrays(4_000)] {
        let broker = brokers().pop().unwrap();
        let vhost = broker.vhost().await;
        vhost
            .connect()
            .await
            .declare("work", QueueType::Classic)
            .await;
        publish(vhost.url(), &hostile).await;
        let mut child = Command::new(env::current_exe().unwrap());
        child
            .args([
                "--exact",
                "hostile::consume_in_a_process_of_its_own",
                "--ignored",
            ])
            .env(URL, vhost.url());
        let output = tokio::task::spawn_blocking(move || child.output())
            .await
            .unwrap()
            .unwrap();
        let says = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.signal(),
            Some(ABORTED),
            "{}: {:?} {says}",
            hostile.name,
            output.status
        );
    }
}

#[tokio::test]
#[ignore = "the other half of the test above, which runs it"]
async fn consume_in_a_process_of_its_own() {
    let amqp = Amqp::connect(&env::var(URL).expect("the test above sets it")).await;
    let mut consumer = amqp.consume("work", 1).await;
    timeout(DEADLINE, consumer.next())
        .await
        .expect("a delivery, or the end")
        .expect("a delivery")
        .expect("a delivery");
}

/// Lapin fact 19.
#[tokio::test]
async fn names_that_are_not_text_cost_the_connection() {
    on_every_broker(|broker| async move {
        for hostile in [Hostile::header_key(), Hostile::routing_key()] {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            amqp.declare("work", QueueType::Classic).await;
            publish(vhost.url(), &hostile).await;
            let channel = amqp.new_channel().await;
            let consume = channel.basic_consume(
                "work".into(),
                "".into(),
                BasicConsumeOptions::default(),
                table([]),
            );
            if let Ok(mut consumer) = consume.await {
                let end = timeout(DEADLINE, consumer.next())
                    .await
                    .unwrap()
                    .expect("an error comes");
                assert!(end.is_err(), "{}: it was delivered", hostile.name);
            }
            eventually(DEADLINE, &hostile.name, || async {
                !amqp.connection().status().connected()
            })
            .await;
        }
    })
    .await;
}

async fn publish(url: &str, message: &Hostile) {
    let (url, message) = (url.to_owned(), message.clone());
    let publish = move || RawPublisher::connect(&url).publish(&message, "work", b"");
    tokio::task::spawn_blocking(publish).await.unwrap();
}
