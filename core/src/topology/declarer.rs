//! Creates queues, and an exchange, on first use, on one connection for all that are asked for at the same time.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::{
    DeadLetterProbes, Finding, Mode, Plan, Status,
    age_marker::{self, MarkerAge},
    apply,
};
use crate::{
    Error, ErrorKind, Result,
    connection::{Addresses, Connection, is_crash},
};

/// How often a clock is looked at. Each answer that it runs closes two channels.
const TICK: Duration = Duration::from_millis(500);

/// Looks for a place of copies, and creates it.
pub(crate) trait Make: Send + Sync + 'static {
    /// Looks for a queue, or for an exchange and its binding, and creates what is missing if the mode allows that. Returns whether it
    /// created something.
    fn make(&self, plan: Plan, mode: Mode) -> impl Future<Output = Result<bool>> + Send;

    /// What the marker of a queue tells. If its clock runs, it is asked again until the queue is old, for so long.
    fn age(
        &self,
        work: &str,
        queue: &str,
        longest: Duration,
    ) -> impl Future<Output = Result<MarkerAge>> + Send;

    /// Sets the markers of these queues, which are old. Returns those that could not be set, and goes no further without the permission.
    fn mark(&self, queues: Vec<String>) -> impl Future<Output = Vec<(String, Error)>> + Send;

    /// Starts the clock of a work queue.
    fn start_clock(&self, work: &str) -> impl Future<Output = Result<()>> + Send;
}

/// Creates queues on the broker.
pub(crate) struct Declarer {
    addresses: Arc<Addresses>,
    probes: Arc<DeadLetterProbes>,
    /// The connection in use. It is closed with its last user.
    open: Mutex<Weak<Connection>>,
}

impl Declarer {
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

impl Make for Declarer {
    async fn age(&self, work: &str, queue: &str, longest: Duration) -> Result<MarkerAge> {
        let (began, connection) = (Instant::now(), self.connection().await?);
        let mut age = age_marker::age(&connection, work, queue).await;
        while matches!(age, Ok(MarkerAge::Young)) && began.elapsed() < longest {
            sleep(TICK).await;
            age = age_marker::age(&connection, work, queue).await;
        }
        let_go(connection).await;
        age
    }

    async fn start_clock(&self, work: &str) -> Result<()> {
        let connection = self.connection().await?;
        let started = age_marker::start_clock(&connection, work).await;
        let_go(connection).await;
        started
    }

    async fn mark(&self, queues: Vec<String>) -> Vec<(String, Error)> {
        let mut unmarked = Vec::new();
        let mut connected = None;
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
                Err(error)
                    if is_first
                        && (error.kind() == ErrorKind::ConnectionLost || is_crash(&error)) =>
                {
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
