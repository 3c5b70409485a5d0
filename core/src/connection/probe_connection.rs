//! Looks at queues that may be missing, on a connection of their own. Each look at a missing queue uses up a channel number for good (lapin
//! fact 20), and in the end the connection, with everything held on it.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{Addresses, Connection, OpenChannel};
use crate::{ErrorKind, Result};

/// One connection for all looks of a client, opened with the first.
pub(crate) struct ProbeConnection {
    addresses: Arc<Addresses>,
    open: Mutex<Option<Arc<Connection>>>,
}

impl ProbeConnection {
    pub(crate) fn new(addresses: &Arc<Addresses>) -> Self {
        Self {
            addresses: Arc::clone(addresses),
            open: Mutex::default(),
        }
    }

    /// A channel for one look.
    ///
    /// # Errors
    /// Those of [`Connection::open`] and [`Connection::channel`].
    pub(crate) async fn channel(&self) -> Result<OpenChannel> {
        match self.open_channel().await {
            // Its channel numbers are used up; the next one has all of them.
            Err(error) if error.kind() == ErrorKind::ConnectionLost => self.open_channel().await,
            opened => opened,
        }
    }

    async fn open_channel(&self) -> Result<OpenChannel> {
        let connection = self.connection().await?;
        let opened = connection.channel().await;
        // A broker that does not open a channel has stopped reading.
        if matches!(&opened, Err(error) if error.kind() == ErrorKind::Timeout) {
            connection.cut();
        }
        opened
    }

    async fn connection(&self) -> Result<Arc<Connection>> {
        let mut open = self.open.lock().await;
        if let Some(connection) = open.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(Connection::open(&self.addresses, "looks").await?);
        *open = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Closes it. A connection that is being opened ends with the client.
    pub(crate) async fn close(&self) {
        let open = self.open.try_lock().ok().and_then(|mut open| open.take());
        if let Some(connection) = open {
            connection.close().await;
        }
    }
}
