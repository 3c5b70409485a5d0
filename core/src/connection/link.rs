//! A connection that is re-made: one supervisor a link, fresh connections only, backoff with jitter.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tracing::{info, warn};

use super::{Address, limits::header_room, open::Connection, survival::survives};
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
    frame_max: Arc<AtomicU32>,
    supervisor: JoinHandle<()>,
}

impl Link {
    /// Opens the first connection, and from then on keeps one open. `on_return` is told of every reconnection, before anybody can use it.
    ///
    /// # Errors
    /// As [`Connection::open`], for the first connection only.
    pub(crate) async fn open(
        address: Arc<Address>,
        purpose: &'static str,
        on_return: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self> {
        let first = Arc::new(Connection::open(&address, purpose).await?);
        let (set, state) = watch::channel(State::Up(Arc::clone(&first)));
        let set = Arc::new(set);
        let frame_max = Arc::new(AtomicU32::new(first.limits().frame_max()));
        let supervisor = Supervisor {
            address,
            purpose,
            state: Arc::clone(&set),
            frame_max: Arc::clone(&frame_max),
            on_return,
        };
        let supervisor = tokio::spawn(async move {
            // Without one, whoever waits for a connection would wait for ever.
            while !survives("the supervisor of a connection", supervisor.run()).await {}
        });
        Ok(Self {
            state,
            set,
            frame_max,
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

    /// Whether the broker has stopped reading from the open connection.
    pub(crate) fn is_blocked(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(connection) if connection.is_blocked())
    }

    /// Bytes that the headers and properties of a message may take, by the frame size of the last connection.
    pub(crate) fn header_room(&self) -> usize {
        header_room(self.frame_max.load(Ordering::Relaxed))
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

/// Keeps a link's connection open.
struct Supervisor<F> {
    address: Arc<Address>,
    purpose: &'static str,
    state: Arc<watch::Sender<State>>,
    frame_max: Arc<AtomicU32>,
    on_return: F,
}

impl<F: Fn()> Supervisor<F> {
    /// Until the link is closed.
    async fn run(&self) {
        loop {
            let now = self.state.borrow().clone();
            match now {
                State::Up(connection) => {
                    connection.gone().await;
                    if !proceed(&self.state, State::Down) {
                        return;
                    }
                    warn!(address = %self.address, purpose = self.purpose, "connection lost; reconnecting");
                }
                State::Down => {
                    let connection = self.connect().await;
                    self.frame_max
                        .store(connection.limits().frame_max(), Ordering::Relaxed);
                    // Before anybody uses it: what was known of the broker may not be true any more.
                    (self.on_return)();
                    if !proceed(&self.state, State::Up(connection)) {
                        return; // and the new connection ends with us
                    }
                    info!(address = %self.address, purpose = self.purpose, "reconnected");
                }
                State::Closed => return,
            }
        }
    }

    async fn connect(&self) -> Arc<Connection> {
        let mut pause = FIRST_PAUSE;
        loop {
            // Jitter, so that a broker that comes back is not met by all its clients at once.
            sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            match Connection::open(&self.address, self.purpose).await {
                Ok(connection) => return Arc::new(connection),
                Err(error) => {
                    warn!(address = %self.address, purpose = self.purpose, %error, "cannot reconnect yet");
                }
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
