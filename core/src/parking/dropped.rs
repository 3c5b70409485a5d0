//! Dropped messages are kept for a while, so that whoever dropped the wrong ones can undo it.

use std::time::Duration;

use super::{Browse, Parked, Record};
use crate::{
    Error, ErrorKind, Result,
    connection::Connection,
    terminal_escape,
    topology::{Mode, Plan, Status, apply, dropped},
};

impl Parked {
    /// Creates the queue for dropped messages if it is missing (AMQP `queue.declare`), with `keep` as their time to live (`x-message-ttl`).
    /// An existing one is not changed. Returns whether it was created. A queue younger than two seconds can lose confirmed messages when its broker is killed.
    ///
    /// # Errors
    /// [`AccessRefused`](crate::ErrorKind::AccessRefused) without permission to configure it, [`TooLarge`](crate::ErrorKind::TooLarge) if its
    /// name has more than 255 bytes, and those of a lost connection.
    pub async fn make_dropped(&self, keep: Duration) -> Result<bool> {
        let plan = Plan {
            items: vec![dropped(self.queue(), keep)],
        };
        plan.validate()?;
        let connection = Connection::open(self.client().addresses(), "parked").await?;
        let made = apply(&connection, &plan, Mode::Apply).await;
        connection.close().await;
        Ok(made?
            .iter()
            .any(|finding| finding.status == Status::Created))
    }
}

impl Browse {
    /// Publishes copies of several messages, with their records as they are, to the tail of `queue`: to [keep](Parked::make_dropped) what is
    /// dropped, or to park it again. Like [`send`](Self::send), it waits for all confirms and acknowledges nothing.
    ///
    /// # Errors
    /// Each message has its own; such a message stays where it is. [`Unroutable`](ErrorKind::Unroutable) if there is no such queue,
    /// [`TooLarge`](ErrorKind::TooLarge) for headers larger than a frame, [`InvalidOption`](ErrorKind::InvalidOption) for a record of another
    /// walk and for one that could not be [read as it is](crate::Message::mended), and those of publishing.
    pub async fn copy_to(&mut self, records: &[Record], queue: &str) -> Vec<Result<()>> {
        self.confirmed(records, |browse, record| {
            browse.would_copy(record)?;
            let sent = browse.copies.renew_to(&record.received, queue)?;
            Ok((sent, queue.to_owned()))
        })
        .await
    }

    /// Asks whether [`copy_to`](Self::copy_to) would take a message, without sending anything.
    ///
    /// # Errors
    /// [`InvalidOption`](ErrorKind::InvalidOption) for a record of another walk, and for one that could not be
    /// [read as it is](crate::Message::mended).
    pub fn would_copy(&self, record: &Record) -> Result<()> {
        self.tag(record)?;
        match &record.received.mended {
            None => Ok(()),
            Some(mended) => Err(Error::new(
                ErrorKind::InvalidOption,
                format!(
                    "it could not be read as it is ({}), and a copy would be another message; it is still where it was",
                    terminal_escape::line(mended)
                ),
            )),
        }
    }
}
