//! Writes what happens to the stream, in batches that are confirmed, and never holds anybody up.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use retryrmq::{BasicProperties, Client, Error, ErrorKind, Publish, doubling_pause::DoublingPause};
use tokio::{
    sync::{
        mpsc::{self, Receiver, Sender},
        watch,
    },
    time::sleep,
};
use tracing::warn;

use super::Event;
use crate::ServiceEvent;

/// Events that wait for the stream. Small ones: bodies and headers of an event are gone by then.
const ROOM: usize = 10_000;
/// Events that are published at a time.
const BATCH: usize = 200;
const PAUSE: DoublingPause =
    DoublingPause::new(Duration::from_millis(200), Duration::from_secs(10));
/// The property `type` of an event, as the command writes it.
const KIND: &str = "retryrmq.audit";

pub(super) struct Recorder {
    written: Counter,
    dropped: Counter,
    pending: watch::Sender<usize>,
}

impl Recorder {
    pub(super) fn new(written: Counter, dropped: Counter, pending: watch::Sender<usize>) -> Self {
        Self {
            written,
            dropped,
            pending,
        }
    }

    /// Never ends while the feed tells. Written is once the stream is made; what happens before is taken all the same, because a
    /// service event has a body, and a history event has none.
    pub(super) async fn run(
        self,
        client: &Client,
        stream: &str,
        news: Receiver<ServiceEvent>,
        mut is_made: watch::Receiver<bool>,
    ) {
        let (sender, events) = mpsc::channel(ROOM);
        let write = async {
            let _ = is_made.wait_for(|made| *made).await;
            self.write_all(client, stream, events).await;
        };
        tokio::join!(self.take(news, sender), write);
    }

    async fn take(&self, mut news: Receiver<ServiceEvent>, events: Sender<Event>) {
        while let Some(service_event) = news.recv().await {
            let Some(event) = Event::of(&service_event, Timestamp::now()) else {
                continue;
            };
            match events.try_send(event) {
                Ok(()) => self.pending.send_modify(|count| *count += 1),
                Err(_) => {
                    self.dropped.inc();
                }
            }
        }
    }

    async fn write_all(&self, client: &Client, stream: &str, mut events: Receiver<Event>) {
        let mut batch = Vec::new();
        while events.recv_many(&mut batch, BATCH).await > 0 {
            let mut pause = PAUSE;
            loop {
                let faults = send(client, stream, &batch).await;
                let Some(why) = faults.iter().flatten().next().map(ToString::to_string) else {
                    break;
                };
                warn!(
                    why,
                    "the history is not written now; retries go on, and it is tried again"
                );
                let before = batch.len();
                let kinds: Vec<_> = faults
                    .iter()
                    .map(|fault| fault.as_ref().map(Error::kind))
                    .collect();
                let (written, lost) = settle(&mut batch, &kinds);
                self.written.inc_by(written);
                self.dropped.inc_by(lost);
                self.pending
                    .send_modify(|count| *count -= before - batch.len());
                sleep(pause.next_pause()).await;
            }
            self.written.inc_by(batch.len() as u64);
            self.pending.send_modify(|count| *count -= batch.len());
            batch.clear();
        }
    }
}

/// Leaves what is to be published again: what the stream has, or will never have, is not written anew with each refusal of another event. Returns
/// how many it has taken, and how many it never takes as they are.
fn settle<T>(batch: &mut Vec<T>, faults: &[Option<ErrorKind>]) -> (u64, u64) {
    let (mut written, mut lost) = (0, 0);
    let mut faults = faults.iter();
    batch.retain(|_| match faults.next().copied().flatten() {
        None => {
            written += 1;
            false
        }
        Some(ErrorKind::TooLarge | ErrorKind::InvalidOption) => {
            lost += 1;
            false
        }
        Some(_) => true,
    });
    (written, lost)
}

/// Publishes events at once, and waits for all confirms.
///
/// # Errors
/// A sentence: the stream may lack some of them.
pub(super) async fn publish(client: &Client, stream: &str, events: &[Event]) -> Result<(), String> {
    match send(client, stream, events)
        .await
        .into_iter()
        .flatten()
        .next()
    {
        None => Ok(()),
        Some(why) => Err(format!("the stream `{stream}` may lack it: {why}")),
    }
}

/// Publishes events at once. Of each why it is not known to be in the stream.
async fn send(client: &Client, stream: &str, events: &[Event]) -> Vec<Option<Error>> {
    let sent = events.iter().map(|event| {
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_type(KIND.into());
        let body = serde_json::to_vec(event).unwrap_or_default(); // text and numbers always are JSON
        client.publish(Publish::to_queue(stream, body).properties(properties))
    });
    let sent = join_all(sent).await;
    sent.into_iter().map(Result::err).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_stream_has_taken_is_not_written_again() {
        let mut batch = vec!['a', 'b', 'c', 'd'];
        let faults = [
            None,
            Some(ErrorKind::NotConfirmed),
            Some(ErrorKind::TooLarge),
            Some(ErrorKind::AccessRefused),
        ];
        assert_eq!(settle(&mut batch, &faults), (1, 1));
        assert_eq!(batch, ['b', 'd']);
        assert_eq!(settle(&mut batch, &[None, None]), (2, 0));
        assert!(batch.is_empty());
    }
}
