//! The copies that a walk publishes: fresh ones to the tail of the parking queue, and replayed ones to a work queue. Each has the walk's
//! own mark, so that the walk recognises it when it is delivered again.

use std::sync::Arc;

use lapin::{BasicProperties, message::Delivery, types::ShortString};
use tokio::sync::oneshot;

use super::copy_marker::{CopyMarkers, DeliverySource};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::Addresses,
    consumer::Received,
    publish::{Job, check_numbers},
    retry::{CopyHeaders, Origin, is_renewable},
    telemetry::HOST,
    terminal_escape,
    topology::{UNROUTABLE_KEY, name},
};

/// The confirm of a copy. If it is dropped before the copy was sent, the copy is not published: nobody would acknowledge its original.
pub(crate) struct CopyConfirm {
    confirm: oneshot::Receiver<Result<()>>,
    _asker: Arc<()>,
}

impl CopyConfirm {
    /// Waits for the confirm. Call it again only if its future was dropped.
    pub(crate) async fn get(&mut self) -> Result<()> {
        let confirm = (&mut self.confirm).await;
        confirm.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Closed,
                "the client is closed; connect a new one",
            ))
        })
    }
}

/// Publishes a copy of a held message to a queue.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for a name or for headers that RabbitMQ cannot read: a message from a file, or one that was edited, may have them.
pub(crate) fn publish(
    client: &Client,
    to: &str,
    properties: BasicProperties,
    body: Arc<dyn AsRef<[u8]> + Send + Sync>,
) -> Result<CopyConfirm> {
    check_numbers(&properties)?;
    let (done, confirm) = oneshot::channel();
    let job = Job {
        exchange: ShortString::default(),
        routing_key: name(to)?,
        properties: Arc::new(properties),
        body,
        mandatory: true,
        done: Box::new(move |result| {
            let _ = done.send(result);
        }),
    };
    let asker = Arc::new(());
    client.publisher().submit_for(job, Arc::downgrade(&asker));
    Ok(CopyConfirm {
        confirm,
        _asker: asker,
    })
}

pub(super) struct Copies {
    client: Client,
    parking: String,
    marks: CopyMarkers,
}

impl Copies {
    pub(super) fn new(client: &Client, parking: &str, walk: u64) -> Self {
        Self {
            client: client.clone(),
            parking: parking.to_owned(),
            marks: CopyMarkers::of(walk),
        }
    }

    /// Where the broker is.
    pub(super) fn addresses(&self) -> &Arc<Addresses> {
        self.client.addresses()
    }

    /// Where a delivery comes from.
    pub(super) fn source(&self, delivery: &Delivery) -> DeliverySource {
        self.marks.source(&delivery.properties)
    }

    /// Whether a message can be replaced by a fresh copy, with nothing cut from it.
    pub(super) fn is_renewable(&self, delivery: &Delivery) -> bool {
        is_renewable(&delivery.properties, self.client.header_room())
    }

    /// Checks that something can be published to queues now; nothing is stored. During an alarm it waits. It publishes twice, because in an
    /// alarm the broker still reads one message from each connection, and then nothing more.
    ///
    /// # Errors
    /// Those of publishing, except the expected one.
    pub(super) async fn may_publish(&self) -> Result<()> {
        self.ask_to_publish().await?;
        self.ask_to_publish().await
    }

    async fn ask_to_publish(&self) -> Result<()> {
        let properties = BasicProperties::default().with_expiration("0".into());
        let mut sent = publish(&self.client, UNROUTABLE_KEY, properties, Arc::new([0; 0]))?;
        match sent.get().await {
            Err(error) if error.kind() == ErrorKind::Unroutable => Ok(()),
            other => other,
        }
    }

    /// Sends a fresh copy to the tail of the parking queue.
    pub(super) fn renew(&self, received: &Arc<Received>) -> Result<CopyConfirm> {
        self.renew_to(received, &self.parking)
    }

    /// Sends a fresh copy, with its record, to the tail of this queue.
    pub(super) fn renew_to(&self, received: &Arc<Received>, to: &str) -> Result<CopyConfirm> {
        let origin = Origin {
            host: HOST.clone(),
            app_version: String::new(),
        };
        let properties = self.stamp(&origin, received).renewed(&self.marks.renewed);
        let properties = properties.ok_or_else(too_large)?;
        publish(&self.client, to, properties, Arc::clone(received) as _)
    }

    /// Sends a copy to a work queue. The answer is its confirm.
    pub(super) fn resend(
        &self,
        received: &Arc<Received>,
        to: &str,
        keep_count: bool,
    ) -> Result<CopyConfirm> {
        let origin = Origin::default();
        let stamp = self.stamp(&origin, received);
        let properties = stamp
            .replay(&self.marks.replayed, keep_count)
            .map_err(|lost| cut(to, &lost))?;
        publish(&self.client, to, properties, Arc::clone(received) as _)
    }

    /// Whether this walk replayed it, and it was parked again.
    pub(super) fn is_replayed(&self, properties: &BasicProperties) -> bool {
        self.marks.source(properties) == DeliverySource::Replayed
    }

    fn stamp<'a>(&self, origin: &'a Origin, received: &'a Received) -> CopyHeaders<'a> {
        CopyHeaders {
            origin,
            properties: &received.properties,
            exchange: received.exchange(),
            routing_key: received.routing_key(),
            state: &received.state,
            now: 0,
            budget: self.client.header_room(),
        }
    }
}

fn too_large() -> Error {
    let why =
        "the headers of the message fill a whole frame, so that no copy has room for all of them";
    Error::new(ErrorKind::TooLarge, why)
}

fn cut(to: &str, lost: &[String]) -> Error {
    let names: Vec<_> = lost
        .iter()
        .take(5)
        .map(|name| format!("`{}`", terminal_escape::line(name)))
        .collect();
    let more = if lost.len() > 5 { " and others" } else { "" };
    Error::new(
        ErrorKind::TooLarge,
        format!(
            "the headers of a parked message take more than a copy has room for: in `{}` it would be without {}{more}. It was \
             not replayed and is still parked; raise RabbitMQ's `frame_max`, or publish its body anew with fewer headers",
            terminal_escape::line(to),
            names.join(", ")
        ),
    )
}
