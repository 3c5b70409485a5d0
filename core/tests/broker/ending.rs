//! The end of a consumer that was wanted: nothing about it is a failure.

use retryrmq::{Event, Message, Publish};
use retryrmq_harness::on_every_queue_type;
use tokio::sync::mpsc;

use crate::{capture, stage::connect};

/// The client is closed at the moment at which its consumer takes its first message, and consumes anew with the whole prefetch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_widens_while_its_client_is_closed_has_not_failed() {
    capture::start();
    on_every_queue_type(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (publisher, amqp) = (connect(&vhost).await, vhost.connect().await);
        for round in 0..15 {
            let queue = format!("ending.{}.{kind}.{round}", broker.version());
            amqp.declare(&queue, kind).await;
            let client = connect(&vhost).await;
            let (begin, mut began) = mpsc::unbounded_channel();
            let (tell, mut told) = mpsc::unbounded_channel();
            let running = client
                .consumer(queue.as_str())
                .dlx(true)
                .on_event(move |event: &Event| {
                    let _ = tell.send(event.clone());
                })
                .start(move |_: Message| {
                    let _ = begin.send(());
                    async { Ok::<_, &str>(()) }
                })
                .await
                .unwrap();
            publisher
                .publish(Publish::to_queue(queue.as_str(), "1"))
                .await
                .unwrap();
            began.recv().await.unwrap();
            if round % 3 == 0 {
                running.close().await;
                client.close().await;
            } else {
                client.close().await;
                running.close().await;
            }
            let failures: Vec<_> = capture::lines()
                .into_iter()
                .filter(|line| line.contains(&queue))
                .filter(|line| line.contains("WARN") || line.contains("ERROR"))
                .collect();
            assert!(failures.is_empty(), "{broker}, {kind}: {failures:#?}");
            drop(client);
            while let Ok(event) = told.try_recv() {
                assert!(!matches!(event, Event::Reconnected { .. }), "{event:?}");
            }
        }
    })
    .await;
}
