//! What a program logs that set up nothing but the usual subscriber: `tracing_subscriber::fmt::init()` without `RUST_LOG` shows errors only.
#![allow(missing_docs)]

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use retryrmq::{Client, Message, Publish};
use retryrmq_harness::{QueueType, eventually, on_every_broker};
use tracing_subscriber::{filter::LevelFilter, fmt::MakeWriter};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn all(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The only test of this process, which has one subscriber.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_and_a_stop_without_trouble_are_no_errors() {
    let lines = Lines::default();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::ERROR)
        .with_ansi(false)
        .with_writer(lines.clone())
        .init();
    on_every_broker(|broker| {
        let lines = lines.clone();
        async move {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            amqp.declare("existing", QueueType::Classic).await;
            let client = Client::connect(vhost.url()).await.unwrap();
            for queue in ["missing", "existing"] {
                let consumer = client
                    .consumer(queue)
                    .dlx(true)
                    .retry("fixed(50ms, retries=1)".parse().unwrap());
                let running = consumer.start(|_: Message| async { Err::<(), _>("no") });
                let running = running.await.unwrap();
                client.publish(Publish::to_queue(queue, "x")).await.unwrap();
                let parked = format!("{queue}.parked");
                let patience = Duration::from_secs(120);
                eventually(patience, "it is parked", || async {
                    amqp.depth(&parked).await == Some(1)
                })
                .await;
                let mut walk = client.parked(queue).browse().await.unwrap();
                assert!(walk.next().await.unwrap().is_some());
                walk.close().await.unwrap();
                running.close().await;
            }
            client.close().await;
            // A program may also end without that.
            drop(Client::connect(vhost.url()).await.unwrap());
            // A connection ends in a thread of its own.
            tokio::time::sleep(Duration::from_millis(500)).await;
            amqp.close().await;
            let lines = lines.all();
            assert!(lines.is_empty(), "{lines}");
        }
    })
    .await;
}
