//! Creates queues, and an exchange, on first use, on one connection for all that are asked for at the same time.

use std::sync::{Arc, Weak};

use tokio::sync::Mutex;

use super::{Mode, Plan, Trials, apply};
use crate::{
    ErrorKind, Result,
    connection::{Addresses, Connection},
};

/// Looks for a place of copies, and creates it.
pub(crate) trait Make: Send + Sync + 'static {
    /// Looks for a queue, or for an exchange and its binding, and creates what is missing if the mode allows that.
    fn make(&self, plan: Plan, mode: Mode) -> impl Future<Output = Result<()>> + Send;
}

/// Creates queues on the broker.
pub(crate) struct Maker {
    addresses: Arc<Addresses>,
    trials: Arc<Trials>,
    /// The connection in use. It is closed with its last user.
    open: Mutex<Weak<Connection>>,
}

impl Maker {
    pub(super) fn new(addresses: Arc<Addresses>, trials: Arc<Trials>) -> Self {
        Self {
            addresses,
            trials,
            open: Mutex::default(),
        }
    }

    async fn connection(&self) -> Result<Arc<Connection>> {
        let mut open = self.open.lock().await;
        if let Some(connection) = open.upgrade().filter(|connection| connection.is_open()) {
            return Ok(connection);
        }
        let connection = Arc::new(Connection::open(&self.addresses, "topology").await?);
        *open = Arc::downgrade(&connection);
        Ok(connection)
    }
}

impl Make for Maker {
    async fn make(&self, plan: Plan, mode: Mode) -> Result<()> {
        let mut is_first = true;
        loop {
            let connection = self.connection().await?;
            let mut done = apply(&connection, &plan, mode).await.map(drop);
            if mode == Mode::Apply && done.is_ok() {
                done = self.trials.check(&connection, &plan).await;
            }
            if let Some(last) = Arc::into_inner(connection) {
                last.close().await;
            }
            match done {
                // A refusal of another queue may have closed the connection.
                Err(error) if is_first && error.kind() == ErrorKind::ConnectionLost => {
                    is_first = false;
                }
                done => return done,
            }
        }
    }
}
