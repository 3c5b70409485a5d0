//! Creates queues, and an exchange, on first use, on one connection for all that are asked for at the same time.

use std::sync::{Arc, Weak};

use tokio::sync::Mutex;

use super::{DeadLetterProbes, Finding, Mode, Plan, Status, age_marker, apply};
use crate::{
    Error, ErrorKind, Result,
    connection::{Addresses, Connection},
};

/// Looks for a place of copies, and creates it.
pub(crate) trait Make: Send + Sync + 'static {
    /// Looks for a queue, or for an exchange and its binding, and creates what is missing if the mode allows that. Returns whether it
    /// created something.
    fn make(&self, plan: Plan, mode: Mode) -> impl Future<Output = Result<bool>> + Send;

    /// Whether a queue is old by its marker. Waits until it is, if it is marked.
    fn is_old(&self, work: &str, queue: &str) -> impl Future<Output = Result<bool>> + Send;

    /// Sets the markers of these queues. If they are young, a clock is started before: that of the work queue. Returns those that could not be
    /// set, and goes no further without the permission.
    fn mark(
        &self,
        young_of: Option<&str>,
        queues: Vec<String>,
    ) -> impl Future<Output = Vec<(String, Error)>> + Send;
}

/// Creates queues on the broker.
pub(crate) struct Maker {
    addresses: Arc<Addresses>,
    probes: Arc<DeadLetterProbes>,
    /// The connection in use. It is closed with its last user.
    open: Mutex<Weak<Connection>>,
}

impl Maker {
    pub(super) fn new(addresses: Arc<Addresses>, probes: Arc<DeadLetterProbes>) -> Self {
        Self {
            addresses,
            probes,
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

/// Closes a connection that nobody else uses.
async fn let_go(connection: Arc<Connection>) {
    if let Some(last) = Arc::into_inner(connection) {
        last.close().await;
    }
}

impl Make for Maker {
    async fn is_old(&self, work: &str, queue: &str) -> Result<bool> {
        let connection = self.connection().await?;
        let age = age_marker::age(&connection, work, queue).await;
        let_go(connection).await;
        Ok(age? == age_marker::Age::Old)
    }

    async fn mark(&self, young_of: Option<&str>, queues: Vec<String>) -> Vec<(String, Error)> {
        let mut unmarked = Vec::new();
        let mut connected = None;
        if let Some(work) = young_of {
            let started = match self.connection().await {
                Ok(connection) => {
                    let started = age_marker::start_clock(&connection, work).await;
                    connected = Some(connection);
                    started
                }
                Err(error) => Err(error),
            };
            // Without it, a marker would tell that they are old.
            if let Err(error) = started {
                if let Some(connection) = connected {
                    let_go(connection).await;
                }
                return queues
                    .into_iter()
                    .map(|queue| (queue, error.duplicate()))
                    .collect();
            }
        }
        for queue in queues {
            let connection = match connected.take() {
                Some(connection) => Ok(connection),
                None => self.connection().await,
            };
            let marked = match connection {
                Ok(connection) => {
                    let marked = age_marker::mark(&connection, &queue).await;
                    connected = Some(connection);
                    marked
                }
                Err(error) => Err(error),
            };
            if let Err(error) = marked {
                let goes_on =
                    matches!(error.kind(), ErrorKind::Mismatch | ErrorKind::QueueNotFound);
                unmarked.push((queue, error));
                if !goes_on {
                    break;
                }
            }
        }
        if let Some(connection) = connected {
            let_go(connection).await;
        }
        unmarked
    }

    async fn make(&self, plan: Plan, mode: Mode) -> Result<bool> {
        if mode == Mode::Apply {
            self.probes.check(&self.addresses, &plan).await?;
        }
        let mut is_first = true;
        loop {
            let connection = self.connection().await?;
            let done = apply(&connection, &plan, mode).await;
            let_go(connection).await;
            match done {
                // A refusal of another queue may have closed the connection.
                Err(error) if is_first && error.kind() == ErrorKind::ConnectionLost => {
                    is_first = false;
                }
                done => {
                    let is_new = |finding: &Finding| finding.status == Status::Created;
                    return done.map(|findings| findings.iter().any(is_new));
                }
            }
        }
    }
}
