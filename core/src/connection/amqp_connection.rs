//! One AMQP connection: opened, used and closed within time limits, and never closed by accident.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::StreamExt;
use lapin::{
    ConnectionProperties, Event,
    types::ShortString,
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo, SASLMechanism},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, warn};

use super::{
    Address,
    channel::OpenChannel,
    error_mapping::{Operation, refusal},
    limits::FRAME_MAX,
    limits::Limits,
    liveness::{LivenessCheck, beat},
    log_redaction::LogRedaction,
    login::Login,
    name_limit::NameLimit,
    server::Server,
    timeouts::GOODBYE,
    transport::{self, LapinRuntime, SocketHandle},
    weak_connection::WeakConnection,
};
use crate::{Error, ErrorKind, Result};

/// Hangs up when it is dropped. Without it, a connection that nobody waits for any more would stay open: lapin's thread completes an
/// abandoned handshake, and then answers heartbeats as long as the process lives.
pub(super) struct CloseOnDrop(pub(super) Arc<SocketHandle>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.cut();
    }
}

/// An open connection. Dropping it closes the socket; [`close`](Self::close) closes it in AMQP first.
pub(crate) struct Connection {
    pub(super) lapin: Arc<lapin::Connection>,
    pub(super) socket_handle: CloseOnDrop,
    server: Server,
    /// Where it leads.
    pub(super) at: Arc<(Address, SocketAddr)>,
    limits: Arc<Limits>,
    /// Whether the broker has said that it currently reads nothing (`connection.blocked`).
    blocked: watch::Receiver<bool>,
    /// Whether channel numbers were used up for good.
    is_spent: Arc<AtomicBool>,
    /// Why its expired token could not be renewed.
    pub(super) overdue: watch::Sender<Option<String>>,
    liveness: LivenessCheck,
}

impl Connection {
    pub(super) async fn open_at(
        address: &Address,
        place: SocketAddr,
        time_limit: Duration,
        login: &Login,
        purpose: &str,
    ) -> Result<Self> {
        let (stream, socket_handle) = transport::open(address, place, time_limit).await?;
        let socket_handle = CloseOnDrop(Arc::new(socket_handle));
        let stream = std::sync::Mutex::new(Some(stream));
        let name = address
            .name
            .clone()
            .unwrap_or_else(crate::telemetry::process_name);
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("{name} ({purpose})").into())
            .with_client_property(ShortString::from("product"), "retryrmq".into())
            .with_client_property(
                ShortString::from("version"),
                env!("CARGO_PKG_VERSION").into(),
            );
        let log_redaction = LogRedaction::now(Arc::clone(&socket_handle.0.is_cut));
        let connecting = lapin::Connection::connector(
            uri(address, login),
            LapinRuntime::runtime(tokio::runtime::Handle::current(), log_redaction.clone()),
            async move |_, _| {
                log_redaction.keep(); // in lapin's own thread, which calls this
                let stream = stream
                    .lock()
                    .unwrap_or_else(|poison| poison.into_inner())
                    .take();
                // Taken once: a second call would be lapin's own recovery, which is turned off.
                stream
                    .map(lapin::tcp::AsyncTcpStream::Plain)
                    .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected).into())
            },
            properties,
        );
        let doing = Operation::Connecting(address, &login.user);
        let lapin = match timeout(time_limit.max(GOODBYE), connecting).await {
            Ok(Ok(lapin)) => lapin,
            Ok(Err(why)) => {
                let error = refusal(&doing, why);
                return Err(match login.too_large_for(&error) {
                    Some(too_large) => too_large,
                    None => login.too_old_for(error),
                });
            }
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "{} took the connection but did not answer in AMQP; is it RabbitMQ?",
                        address.authority()
                    ),
                ));
            }
        };
        let (block, blocked) = watch::channel(false);
        tokio::spawn(drain_events(
            lapin.events_listener(),
            purpose.to_owned(),
            block,
        ));
        let server = Server::read(socket_handle.0.server());
        let names = NameLimit::new(&server, &address.vhost);
        let limits = Limits::new(lapin.configuration().frame_max()).with_names(names);
        let limits = Arc::new(limits);
        debug!(%address, purpose, version = server.version, "connected");
        Ok(Self {
            lapin: Arc::new(lapin),
            socket_handle,
            server,
            at: Arc::new((address.clone(), place)),
            limits,
            blocked,
            is_spent: Arc::default(),
            overdue: watch::Sender::new(None),
            liveness: LivenessCheck::default(),
        })
    }

    /// What the broker said about itself.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Resolves when the connection is gone, however it ended.
    pub(crate) async fn gone(&self) {
        self.socket_handle.0.gone().await;
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lapin.status().connected()
    }

    /// Whether its token is still valid, as far as is known.
    ///
    /// # Errors
    /// [`ErrorKind::AuthenticationFailed`] if it has expired and no other came in time.
    pub(super) fn is_logged_in(&self) -> Result<()> {
        match &*self.overdue.borrow() {
            None => Ok(()),
            Some(why) => Err(Error::new(
                ErrorKind::AuthenticationFailed,
                format!("the connection's token has expired and cannot be renewed: {why}"),
            )),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the broker has stopped reading because of a memory or disk alarm.
    pub(crate) fn is_blocked(&self) -> bool {
        *self.blocked.borrow()
    }

    /// Waits until the broker reads, or the connection is gone.
    pub(crate) async fn unblocked(&self) {
        if self.is_blocked() {
            self.line().unblocked().await;
        }
    }

    /// Waits until `moment`, and then for an answer of the broker: it lived until then, and all that it had confirmed before is as old.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`], [`ErrorKind::Timeout`], and those of opening a channel.
    pub(crate) async fn lives_until(&self, moment: Instant) -> Result<()> {
        let answered = async {
            sleep_until(moment).await;
            self.liveness.feel(beat(self.line())).await
        };
        tokio::select! {
            biased;
            () = self.gone() => {
                Err(Error::new(ErrorKind::ConnectionLost, "the connection was lost"))
            }
            answered = answered => answered,
        }
    }

    /// How many channels it may have at a time.
    pub(crate) fn channels(&self) -> usize {
        self.lapin.configuration().channel_max().into()
    }

    /// Opens a channel.
    pub(crate) async fn channel(&self) -> Result<OpenChannel> {
        self.line().channel().await
    }

    /// A way to open channels on it as long as it lives.
    pub(super) fn line(&self) -> WeakConnection {
        WeakConnection {
            lapin: Arc::downgrade(&self.lapin),
            socket_handle: Arc::downgrade(&self.socket_handle.0),
            at: Arc::clone(&self.at),
            limits: Arc::clone(&self.limits),
            blocked: self.blocked.clone(),
            is_spent: Arc::clone(&self.is_spent),
        }
    }

    /// Closes it in AMQP, and hangs up if that is not answered soon.
    pub(crate) async fn close(&self) {
        if self.is_open() {
            let _ = timeout(GOODBYE, self.lapin.close(200, ShortString::from("closed"))).await;
        }
        self.socket_handle.0.cut();
    }

    /// Hangs up.
    pub(crate) fn cut(&self) {
        self.socket_handle.0.cut();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// lapin's listeners compete for events, so there must be exactly one, and it must always be drained.
async fn drain_events(
    events: impl futures_util::Stream<Item = Event>,
    purpose: String,
    block: watch::Sender<bool>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Event::ConnectionBlocked(reason) => {
                block.send_replace(true);
                warn!(
                    purpose,
                    reason,
                    "the broker has stopped reading from this connection: memory or disk alarm"
                );
            }
            Event::ConnectionUnblocked => {
                block.send_replace(false);
                warn!(purpose, "the broker reads from this connection again");
            }
            other => debug!(purpose, ?other, "connection event"),
        }
    }
}

fn uri(address: &Address, login: &Login) -> AMQPUri {
    AMQPUri {
        // Plain AMQP for lapin; TLS is below it, in our transport.
        scheme: AMQPScheme::AMQP,
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: login.user.clone(),
                password: login.secret.clone(),
            },
            host: address.host.clone(),
            port: address.port,
        },
        vhost: address.vhost.clone(),
        query: AMQPQueryString {
            frame_max: Some(FRAME_MAX),
            channel_max: None,
            heartbeat: Some(address.heartbeat),
            connection_timeout: None,
            auth_mechanism: address.external.then_some(SASLMechanism::External),
        },
    }
}
