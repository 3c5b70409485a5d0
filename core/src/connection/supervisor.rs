//! A connection that is re-made: one supervisor per link, a fresh connection each time, backoff with jitter.
//!
//! An outage is logged in a few lines: that the connection is lost, why it cannot be re-made (when the reason changes, or after a minute),
//! and that it is back.

use std::{
    error::Error as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tracing::{debug, info, warn};

use super::{
    Addresses, Connection, Server,
    dial::no_broker,
    limits::{FRAME_MAX, header_room},
    restart_on_panic::survives,
};
use crate::{Error, ErrorKind, Result, doubling_pause::DoublingPause, retry::format_duration};

const PAUSE: DoublingPause =
    DoublingPause::new(Duration::from_millis(100), Duration::from_secs(10));
/// How often an outage that continues is logged again.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// The state of a link, as its users see it.
#[derive(Clone)]
enum LinkState {
    Up(Arc<Connection>),
    /// With the reason why it could not be re-made, once that was tried.
    Down(Option<DisconnectReason>),
    /// By us, or for this reason.
    Closed(Option<DisconnectReason>),
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DisconnectReason {
    kind: ErrorKind,
    why: String,
    /// The broker said so, not the source of the credentials.
    by_broker: bool,
}

impl DisconnectReason {
    fn of(error: &Error) -> Self {
        Self {
            kind: error.kind(),
            why: error.to_string(),
            by_broker: error
                .source()
                .is_some_and(|source| source.is::<lapin::Error>()),
        }
    }

    /// Whether time alone will not help.
    fn is_refusal(&self) -> bool {
        self.by_broker
            && matches!(
                self.kind,
                ErrorKind::AuthenticationFailed | ErrorKind::VhostNotFound
            )
    }

    fn error(&self) -> Error {
        Error::new(self.kind, self.why.clone())
    }
}

/// Rings when one of a client's links has a connection again, so that the others need not wait for their pauses to end.
#[derive(Clone, Debug)]
pub(crate) struct ReconnectSignal(watch::Sender<()>);

impl ReconnectSignal {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(()))
    }
}

/// How a link is kept.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    /// Shown with the connection in the management UI, and in the log.
    pub(crate) purpose: &'static str,
    /// Whether a login that is refused ends the link.
    pub(crate) ends_when_refused: bool,
    pub(crate) reconnect_signal: ReconnectSignal,
}

/// A supervised connection.
pub(crate) struct Link {
    state: watch::Receiver<LinkState>,
    set: Arc<watch::Sender<LinkState>>,
    frame_max: Arc<AtomicU32>,
    /// `None` if there is no broker.
    supervisor: Option<JoinHandle<()>>,
    /// Why another connection with the same login was refused, while this one may still be open. Work that needs a new connection cannot go
    /// on.
    reported: Mutex<Option<(DisconnectReason, Weak<Connection>)>>,
    ends_when_refused: bool,
}

impl Link {
    /// Opens the first connection, and keeps one open from then on. `on_return` is called at every reconnect, before anybody can use the
    /// connection. Also returns the first broker's properties, which are known even if that connection is lost at once.
    ///
    /// # Errors
    /// Those of [`Connection::open`], for the first connection only.
    pub(crate) async fn open(
        addresses: Arc<Addresses>,
        keeping: LinkOptions,
        on_return: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Self, Server)> {
        let first = Arc::new(Connection::open(&addresses, keeping.purpose).await?);
        let server = first.server().clone();
        let (set, state) = watch::channel(LinkState::Up(Arc::clone(&first)));
        let set = Arc::new(set);
        let frame_max = Arc::new(AtomicU32::new(first.limits().frame_max()));
        let ends_when_refused = keeping.ends_when_refused;
        let supervisor = Supervisor {
            addresses,
            keeping,
            state: Arc::clone(&set),
            frame_max: Arc::clone(&frame_max),
            on_return,
        };
        let supervisor = tokio::spawn(async move {
            // Without a supervisor, everyone who waits for a connection would wait forever.
            while !survives("the supervisor of a connection", supervisor.run()).await {}
        });
        let link = Self {
            state,
            set,
            frame_max,
            supervisor: Some(supervisor),
            reported: Mutex::default(),
            ends_when_refused,
        };
        Ok((link, server))
    }

    /// One that never has a connection, because its client has no broker.
    pub(crate) fn without_broker() -> Self {
        let why = DisconnectReason::of(&no_broker());
        let (set, state) = watch::channel(LinkState::Closed(Some(why)));
        Self {
            state,
            set: Arc::new(set),
            frame_max: Arc::new(AtomicU32::new(FRAME_MAX)),
            supervisor: None,
            reported: Mutex::default(),
            ends_when_refused: false,
        }
    }

    fn end_supervisor(&self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.abort();
        }
    }

    fn reported(&self) -> MutexGuard<'_, Option<(DisconnectReason, Weak<Connection>)>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the result of another connection with the same login. Returns whether the broker now refuses us, and did not the last time.
    pub(crate) async fn report(&self, error: Option<&Error>) -> bool {
        let Some(error) = error else {
            *self.reported() = None;
            return false;
        };
        let disconnect_reason = DisconnectReason::of(error);
        if !disconnect_reason.is_refusal() {
            return false; // it says nothing about the login
        }
        let beside = match &*self.state.borrow() {
            LinkState::Up(connection) => Arc::downgrade(connection),
            LinkState::Down(_) | LinkState::Closed(_) => Weak::new(),
        };
        let before = self.reported().replace((disconnect_reason, beside));
        if self.ends_when_refused {
            self.end_as(error).await;
        }
        before.is_none()
    }

    /// The open connection; waits if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after the link was closed, or the error with which it ended.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                LinkState::Up(connection) if connection.is_open() => {
                    return Ok(Arc::clone(connection));
                }
                LinkState::Closed(None) => return Err(closed()),
                LinkState::Closed(Some(disconnect_reason)) => return Err(disconnect_reason.error()),
                LinkState::Up(_) | LinkState::Down(_) => {}
            }
            // A connection that has just died is `Up` until its supervisor has noticed: wait for the next state.
            state.changed().await.map_err(|_| closed())?;
        }
    }

    /// Whether there is an open connection whose secret has not expired, and another one could be opened.
    ///
    /// # Errors
    /// That of the last try, [`ErrorKind::ConnectionLost`] before the first, [`ErrorKind::Closed`].
    pub(crate) fn health(&self) -> Result<()> {
        self.standing()?.is_logged_in()
    }

    /// The open connection, even if its secret has expired, provided that another one could be opened.
    ///
    /// # Errors
    /// Those of [`health`](Self::health).
    pub(crate) fn standing(&self) -> Result<Arc<Connection>> {
        match &*self.state.borrow() {
            LinkState::Up(connection) if connection.is_open() => match &*self.reported() {
                // A connection that came later has logged in.
                Some((disconnect_reason, beside)) if beside.as_ptr() == Arc::as_ptr(connection) => {
                    Err(disconnect_reason.error())
                }
                _ => Ok(Arc::clone(connection)),
            },
            LinkState::Down(Some(disconnect_reason))
            | LinkState::Closed(Some(disconnect_reason)) => Err(disconnect_reason.error()),
            LinkState::Closed(None) => Err(closed()),
            LinkState::Up(_) | LinkState::Down(None) => Err(Error::new(
                ErrorKind::ConnectionLost,
                "the connection was lost; the client reconnects",
            )),
        }
    }

    /// Resolves with the error if there is no connection because the broker refuses our login.
    pub(crate) async fn refused(&self) -> Error {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                LinkState::Down(Some(disconnect_reason))
                | LinkState::Closed(Some(disconnect_reason))
                    if disconnect_reason.is_refusal() =>
                {
                    return disconnect_reason.error();
                }
                _ => {}
            }
            if state.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Ends with the error that ended another link of the same client.
    pub(crate) async fn end_as(&self, error: &Error) {
        let disconnect_reason = DisconnectReason::of(error);
        self.end_supervisor();
        if let LinkState::Up(connection) = self
            .set
            .send_replace(LinkState::Closed(Some(disconnect_reason)))
        {
            connection.close().await;
        }
    }

    /// Resolves with the error when it has ended by itself; never if it is closed. Keeps nothing alive.
    pub(crate) fn ends(&self) -> impl Future<Output = Error> + Send + use<> {
        let mut state = self.state.clone();
        async move {
            let disconnect_reason = match state
                .wait_for(|state| matches!(state, LinkState::Closed(_)))
                .await
            {
                Ok(closed) => match &*closed {
                    LinkState::Closed(disconnect_reason) => disconnect_reason.clone(),
                    _ => None,
                },
                Err(_) => None,
            };
            match disconnect_reason {
                Some(disconnect_reason) => disconnect_reason.error(),
                None => std::future::pending().await,
            }
        }
    }

    /// Resolves when it was closed or has ended by itself.
    pub(crate) async fn is_over(&self) {
        let mut state = self.state.clone();
        let _ = state
            .wait_for(|state| matches!(state, LinkState::Closed(_)))
            .await;
    }

    /// The error with which it ended by itself, if it did.
    pub(crate) fn end(&self) -> Option<Error> {
        match &*self.state.borrow() {
            LinkState::Closed(Some(disconnect_reason)) => Some(disconnect_reason.error()),
            _ => None,
        }
    }

    /// Whether the broker has stopped reading from the open connection.
    pub(crate) fn is_blocked(&self) -> bool {
        matches!(&*self.state.borrow(), LinkState::Up(connection) if connection.is_blocked())
    }

    /// The frame size of the last connection.
    pub(crate) fn frame_max(&self) -> u32 {
        self.frame_max.load(Ordering::Relaxed)
    }

    /// The most bytes of a message's headers and properties, given the frame size of the last connection.
    pub(crate) fn header_room(&self) -> usize {
        header_room(self.frame_max())
    }

    /// Closes the connection for good.
    pub(crate) async fn close(&self) {
        self.end_supervisor();
        if let LinkState::Up(connection) = self.set.send_replace(LinkState::Closed(None)) {
            connection.close().await;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end_supervisor();
        if let LinkState::Up(connection) = self.set.send_replace(LinkState::Closed(None)) {
            connection.cut();
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed; connect a new one")
}

/// Sets the next state, unless the link was closed meanwhile: `abort` does not stop a supervisor in the middle of a step.
fn proceed(state: &watch::Sender<LinkState>, next: LinkState) -> bool {
    state.send_if_modified(|now| {
        let open = !matches!(now, LinkState::Closed(_));
        if open {
            *now = next;
        }
        open
    })
}

/// Keeps a link's connection open.
struct Supervisor<F> {
    addresses: Arc<Addresses>,
    keeping: LinkOptions,
    state: Arc<watch::Sender<LinkState>>,
    frame_max: Arc<AtomicU32>,
    on_return: F,
}

impl<F: Fn()> Supervisor<F> {
    /// Runs until the link is closed.
    async fn run(&self) {
        let purpose = self.keeping.purpose;
        loop {
            let now = self.state.borrow().clone();
            match now {
                LinkState::Up(connection) => {
                    connection.gone().await;
                    if !proceed(&self.state, LinkState::Down(None)) {
                        return;
                    }
                    warn!(address = %self.addresses, purpose, "connection lost; reconnecting");
                }
                LinkState::Down(_) => {
                    let lost = Instant::now();
                    let Some(connection) = self.connect().await else {
                        return;
                    };
                    self.frame_max
                        .store(connection.limits().frame_max(), Ordering::Relaxed);
                    // Before anybody uses it: what was known about the broker may no longer be true.
                    (self.on_return)();
                    if !proceed(&self.state, LinkState::Up(connection)) {
                        return; // the new connection ends with us
                    }
                    let after = format_duration(Duration::from_secs(lost.elapsed().as_secs()));
                    info!(address = %self.addresses, purpose, after, "reconnected");
                }
                LinkState::Closed(_) => return,
            }
        }
    }

    /// The next connection; `None` at the end of the link.
    async fn connect(&self) -> Option<Arc<Connection>> {
        let mut pause = PAUSE;
        let mut last_warning: Option<(DisconnectReason, Instant)> = None;
        let mut tries = 0;
        let reconnect_signal = &self.keeping.reconnect_signal.0;
        let mut reconnected = reconnect_signal.subscribe();
        loop {
            tokio::select! {
                // Jitter, so that a returning broker does not get all its clients at once.
                () = sleep(pause.next_pause().mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
                _ = reconnected.changed() => {
                    // Another broker is likely to be back soon, too.
                    pause.reset();
                    debug!(address = %self.addresses, purpose = self.keeping.purpose, "another connection is back, so trying at once");
                }
            }
            reconnected.mark_unchanged();
            tries += 1;
            let error = match Connection::open(&self.addresses, self.keeping.purpose).await {
                Ok(connection) => {
                    reconnect_signal.send_replace(());
                    return Some(Arc::new(connection));
                }
                Err(error) => error,
            };
            let disconnect_reason = DisconnectReason::of(&error);
            let is_news = last_warning.as_ref().is_none_or(|(reason, when)| {
                reason.kind != disconnect_reason.kind || when.elapsed() >= TOLD_AGAIN
            });
            if is_news {
                warn!(address = %self.addresses, purpose = self.keeping.purpose, %error, tries, "cannot reconnect yet");
                last_warning = Some((disconnect_reason.clone(), Instant::now()));
            } else {
                debug!(address = %self.addresses, purpose = self.keeping.purpose, %error, tries, "cannot reconnect yet");
            }
            let ends = self.keeping.ends_when_refused && disconnect_reason.is_refusal();
            let next = if ends {
                LinkState::Closed(Some(disconnect_reason))
            } else {
                LinkState::Down(Some(disconnect_reason))
            };
            if !proceed(&self.state, next) || ends {
                return None;
            }
        }
    }
}
