//! A connection that is re-made: one supervisor a link, fresh connections only, backoff with jitter.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tracing::{info, warn};

use super::{Address, connection::Connection};
use crate::{Error, ErrorKind, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The state of a link, as its users see it.
#[derive(Clone)]
enum State {
    Up(Arc<Connection>),
    Down,
    Closed,
}

/// A supervised connection.
pub(crate) struct Link {
    state: watch::Receiver<State>,
    set: Arc<watch::Sender<State>>,
    supervisor: JoinHandle<()>,
}

impl Link {
    /// Opens the first connection, and from then on keeps one open. `on_return` is told after every reconnection.
    ///
    /// # Errors
    /// As [`Connection::open`], for the first connection only.
    pub(crate) async fn open(
        address: Arc<Address>,
        purpose: &'static str,
        on_return: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let first = Arc::new(Connection::open(&address, purpose).await?);
        let (set, state) = watch::channel(State::Up(Arc::clone(&first)));
        let set = Arc::new(set);
        let supervisor = tokio::spawn(supervise(
            address,
            purpose,
            Arc::clone(&set),
            first,
            on_return,
        ));
        Ok(Self {
            state,
            set,
            supervisor,
        })
    }

    /// The open connection; waits while there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] once the link was closed.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                State::Up(connection) if connection.is_open() => return Ok(Arc::clone(connection)),
                State::Closed => return Err(closed()),
                State::Up(_) | State::Down => {}
            }
            // A connection that has just died is still `Up` until its supervisor has noticed: wait for the next state.
            state.changed().await.map_err(|_| closed())?;
        }
    }

    /// Closes the connection for good.
    pub(crate) async fn close(&self) {
        self.supervisor.abort();
        if let State::Up(connection) = self.set.send_replace(State::Closed) {
            connection.close().await;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.supervisor.abort();
        if let State::Up(connection) = self.set.send_replace(State::Closed) {
            connection.cut();
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was closed")
}

/// The next state, unless the link was closed in the meantime: `abort` does not stop a supervisor in the middle of a step.
fn proceed(state: &watch::Sender<State>, next: State) -> bool {
    state.send_if_modified(|now| {
        let open = !matches!(now, State::Closed);
        if open {
            *now = next;
        }
        open
    })
}

async fn supervise(
    address: Arc<Address>,
    purpose: &'static str,
    state: Arc<watch::Sender<State>>,
    mut connection: Arc<Connection>,
    on_return: impl Fn(),
) {
    loop {
        connection.gone().await;
        if !proceed(&state, State::Down) {
            return;
        }
        warn!(%address, purpose, "connection lost; reconnecting");
        let mut pause = FIRST_PAUSE;
        connection = loop {
            // Jitter, so that a broker that comes back is not met by all its clients at once.
            sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            match Connection::open(&address, purpose).await {
                Ok(connection) => break Arc::new(connection),
                Err(error) => warn!(%address, purpose, %error, "cannot reconnect yet"),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        if !proceed(&state, State::Up(Arc::clone(&connection))) {
            return; // and the new connection ends with us
        }
        info!(%address, purpose, "reconnected");
        on_return();
    }
}
