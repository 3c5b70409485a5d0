//! What a consumer makes of errors that something else wraps.

use std::{io, num::ParseIntError};

use anyhow::Context as _;
use retryrmq::{Event, Message, SECOND, defer, fatal, park, retry_after};
use retryrmq_harness::on_queue_types;

use crate::fixture::{Observations, PARKED, QUEUE, connect_with, id, ms, policy, settled, take};

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error("the carrier does not answer")]
    Carrier(#[from] io::Error),
    #[error(transparent)]
    Any(#[from] anyhow::Error),
    #[error("out of stock")]
    OutOfStock,
}

fn handle(message: &Message) -> anyhow::Result<()> {
    let first = message.attempt() == 1;
    match message.message_id().unwrap_or_default() {
        "park" => Err(park("no such customer"))?,
        "fatal" => Err(fatal("bad data")).context("the order")?,
        "number" => message.routing_key().parse::<u8>().map(drop)?,
        "later" if first => Err(retry_after(ms(330), "busy"))?,
        "deferred" if message.state().deferrals == 0 => Err(defer(ms(120)))?,
        "late" => Err(io::Error::from(io::ErrorKind::TimedOut)).context("the order")?,
        "stock" => Err(ShopError::OutOfStock).context("the order")?,
        _ => {}
    }
    Ok(())
}

/// The same, with an error type as a service declares it.
fn handle_in_the_shop(message: &Message) -> Result<(), ShopError> {
    match message.message_id().unwrap_or_default() {
        "late" => Err(io::Error::from(io::ErrorKind::TimedOut))?,
        "stock" => Err(ShopError::OutOfStock),
        _ => Ok(handle(message)?),
    }
}

#[tokio::test]
async fn signals_and_types_are_found_behind_what_wraps_them() {
    on_queue_types(|broker, kind| async move {
        for in_the_shop in [false, true] {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let observations = Observations::default();
            let consumer = client
                .consumer(QUEUE)
                .dlx(true)
                .on_event(observations.listener())
                .retry(policy("fixed(10m)"))
                .rules([
                    "error=TimedOut => fixed(100ms, retries=1)".parse().unwrap(),
                    "error=OutOfStock => fixed(100ms, retries=2)"
                        .parse()
                        .unwrap(),
                ])
                .fatal(|error| error.is::<ParseIntError>())
                // A transparent enum hides what it holds from everybody but those who know it.
                .fatal(|error| match error.downcast_ref() {
                    Some(ShopError::Any(report)) => report.is::<ParseIntError>(),
                    _ => false,
                })
                .error_type(|error| match error.downcast_ref()? {
                    ShopError::OutOfStock => Some("OutOfStock"),
                    _ => None,
                });
            let seen = observations.clone();
            let running = if in_the_shop {
                consumer
                    .start(move |message: Message| {
                        seen.note(&message);
                        async move { handle_in_the_shop(&message) }
                    })
                    .await
            } else {
                consumer
                    .start(move |message: Message| {
                        seen.note(&message);
                        async move { handle(&message) }
                    })
                    .await
            }
            .unwrap();
            let all = [
                "park", "fatal", "number", "later", "deferred", "late", "stock",
            ];
            amqp.publish_all("", all.map(|name| (QUEUE, name, id(name))))
                .await;

            let mut gone = take(&amqp, PARKED, 5).await;
            gone.sort_by_key(|message| message.id().map(str::to_owned));
            let told: Vec<_> = gone
                .iter()
                .map(|message| {
                    let header = |name: &str| message.header_text(name).unwrap_or_default();
                    (
                        message.id().unwrap_or_default().to_owned(),
                        header("x-retry-parked-reason"),
                        observations.of(message.id().unwrap_or_default()).len(),
                    )
                })
                .collect();
            let expected = [
                ("fatal", "fatal", 1),
                ("late", "exhausted", 2),
                ("number", "fatal", 1),
                ("park", "requested", 1),
                ("stock", "exhausted", 3),
            ]
            .map(|(id, reason, attempts)| (id.to_owned(), reason.to_owned(), attempts));
            assert_eq!(told, expected, "in the shop: {in_the_shop}");
            for name in ["later", "deferred"] {
                observations.until(name, 2).await;
            }
            let stock = gone[4].header_text("x-retry-error-type");
            assert_eq!(stock.as_deref(), Some("OutOfStock"));
            settled(&vhost, &amqp, &running, QUEUE).await;
            assert_eq!(amqp.depth("orders.retry.600000").await, Some(0));
            let events = observations.events();
            let of_stock = events.iter().map(Event::fields);
            let of_stock = of_stock.filter(|fields| fields.message_id == Some("stock"));
            let types: Vec<_> = of_stock.map(|fields| fields.error_type).collect();
            assert_eq!(types, [Some("OutOfStock"); 3], "{events:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_a_timeout_to_rules() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        let observations = Observations::default();
        let seen = observations.clone();
        let _running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(10m)"))
            .rules(["error=TimeoutError => fixed(100ms)".parse().unwrap()])
            .handler_timeout(ms(100))
            .start(move |message: Message| {
                seen.note(&message);
                async move {
                    if message.attempt() == 1 {
                        tokio::time::sleep(600 * SECOND).await;
                    }
                    Ok::<(), io::Error>(())
                }
            })
            .await
            .unwrap();
        observations.until("a", 2).await;
    })
    .await;
}
