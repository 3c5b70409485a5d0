//! One AMQP connection: opened, used and closed within time limits, and never closed by accident.

use std::{
    error::Error as _,
    fmt,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use lapin::{
    Channel, ConnectionProperties, Event,
    options::QueueDeclareOptions,
    protocol::AMQPErrorKind,
    types::{FieldTable, ShortString},
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo, SASLMechanism},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, warn};

use super::{
    Address, Addresses,
    discretion::Discretion,
    limits::FRAME_MAX,
    limits::Limits,
    login::Login,
    patience::{ANSWER, IMPATIENT},
    places::Places,
    pulse::{Pulse, beat},
    refusal::{Doing, refusal},
    renewal::Renewal,
    sanitiser::MendedLog,
    server::Server,
    transport::{self, Kit, Lifeline},
};
use crate::{Error, ErrorKind, Result};

const GOODBYE: Duration = Duration::from_secs(2);

/// Hangs up when it is dropped. Without it, a connection that nobody waits for any more would stay open: lapin's thread completes an
/// abandoned handshake, and then answers heartbeats as long as the process lives.
struct Hangup(Arc<Lifeline>);

impl Drop for Hangup {
    fn drop(&mut self) {
        self.0.cut();
    }
}

/// An open connection. Dropping it closes the socket; [`close`](Self::close) closes it in AMQP first.
pub(crate) struct Connection {
    lapin: Arc<lapin::Connection>,
    lifeline: Hangup,
    server: Server,
    /// Where it leads.
    at: Arc<(Address, SocketAddr)>,
    limits: Arc<Limits>,
    /// Whether the broker has said that it currently reads nothing (`connection.blocked`).
    blocked: watch::Receiver<bool>,
    /// Whether channel numbers were used up for good.
    is_spent: Arc<AtomicBool>,
    /// Why its expired token could not be renewed.
    overdue: watch::Sender<Option<String>>,
    pulse: Pulse,
}

impl Connection {
    /// Opens a connection to any of the addresses. `purpose` becomes part of the name shown in the management UI.
    ///
    /// # Errors
    /// As [`transport::open`], and [`ErrorKind::AuthenticationFailed`], [`ErrorKind::VhostNotFound`]. With several hosts, the error of the
    /// host that got farthest.
    pub(crate) async fn open(addresses: &Addresses, purpose: &str) -> Result<Self> {
        let mut worst: Option<Error> = None;
        let asked = addresses.asked().await?;
        let mut places = Places::of(addresses.shuffled(), transport::resolve);
        while let Some(next) = places.next().await {
            let (address, place) = match next {
                Ok(place) => place,
                Err(error) => {
                    worst = Some(farther(worst, error));
                    continue;
                }
            };
            // A host that does not answer must not keep us from the others.
            let hurries = !places.is_empty();
            let patience = if hurries {
                address.timeout.min(IMPATIENT)
            } else {
                address.timeout
            };
            let opened = async {
                let login = match asked.clone() {
                    Some(login) => login,
                    None => address.login().await?,
                };
                login.check()?;
                let opened = Self::open_at(address, place, patience, &login, purpose).await?;
                addresses.join(&opened).await?;
                opened.keep_fresh(addresses, address, &login, purpose);
                Ok::<_, Error>(opened)
            };
            match opened.await {
                Ok(opened) => return Ok(opened),
                Err(error) => {
                    debug!(%address, %place, purpose, %error, "cannot connect there");
                    if hurries && error.kind() == ErrorKind::Timeout {
                        places.was_hurried(address, place);
                    }
                    worst = Some(farther(worst, error));
                }
            }
        }
        Err(worst.unwrap_or_else(|| Error::new(ErrorKind::Unreachable, "there is no address")))
    }

    pub(super) async fn open_at(
        address: &Address,
        place: SocketAddr,
        patience: Duration,
        login: &Login,
        purpose: &str,
    ) -> Result<Self> {
        let (stream, lifeline) = transport::open(address, place, patience).await?;
        let lifeline = Hangup(Arc::new(lifeline));
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
        let discretion = Discretion::now();
        let connecting = lapin::Connection::connector(
            uri(address, login),
            Kit::runtime(tokio::runtime::Handle::current(), discretion.clone()),
            async move |_, _| {
                discretion.keep(); // in lapin's own thread, which calls this
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
        let doing = Doing::Connecting(address, &login.user);
        let lapin = match timeout(patience.max(GOODBYE), connecting).await {
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
        let limits = Arc::new(Limits::new(lapin.configuration().frame_max()));
        let server = Server::read(lifeline.0.server());
        debug!(%address, purpose, version = server.version, "connected");
        Ok(Self {
            lapin: Arc::new(lapin),
            lifeline,
            server,
            at: Arc::new((address.clone(), place)),
            limits,
            blocked,
            is_spent: Arc::default(),
            overdue: watch::Sender::new(None),
            pulse: Pulse::default(),
        })
    }

    /// Renews a secret that expires, as long as the connection lives.
    fn keep_fresh(&self, addresses: &Addresses, address: &Address, login: &Login, purpose: &str) {
        let Some(lifetime) = login.lifetime() else {
            return;
        };
        let renewal = Renewal {
            connection: Arc::downgrade(&self.lapin),
            addresses: addresses.clone(),
            address: address.clone(),
            place: self.at.1,
            login: login.clone(),
            purpose: purpose.to_owned(),
            overdue: self.overdue.clone(),
        };
        let lifeline = Arc::clone(&self.lifeline.0);
        tokio::spawn(async move {
            tokio::select! {
                () = renewal.run(lifetime) => {}
                () = lifeline.gone() => {}
            }
        });
    }

    /// What the broker said about itself.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Resolves when the connection is gone, however it ended.
    pub(crate) async fn gone(&self) {
        self.lifeline.0.gone().await;
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
                format!("the token of the connection is over, and cannot be renewed: {why}"),
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
            self.pulse.feel(beat(self.line())).await
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
    pub(super) fn line(&self) -> Line {
        Line {
            lapin: Arc::downgrade(&self.lapin),
            lifeline: Arc::downgrade(&self.lifeline.0),
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
        self.lifeline.0.cut();
    }

    /// Hangs up.
    pub(crate) fn cut(&self) {
        self.lifeline.0.cut();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// An open connection, for users that do not keep it open.
#[derive(Clone)]
pub(super) struct Line {
    lapin: Weak<lapin::Connection>,
    lifeline: Weak<Lifeline>,
    at: Arc<(Address, SocketAddr)>,
    limits: Arc<Limits>,
    blocked: watch::Receiver<bool>,
    is_spent: Arc<AtomicBool>,
}

impl Line {
    /// Opens another connection to the same host, with the login that is valid there now.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub(super) async fn double(&self, addresses: &Addresses) -> Result<Connection> {
        let (address, place) = &*self.at;
        let login = addresses.login(address).await?;
        Connection::open_at(address, *place, IMPATIENT, &login, "hosts").await
    }

    /// Whether the connection has ended.
    pub(super) fn is_gone(&self) -> bool {
        let lifeline = self.lifeline.upgrade();
        lifeline.is_none_or(|lifeline| lifeline.is_gone())
    }

    /// Whether the broker has stopped reading from it.
    pub(super) fn is_blocked(&self) -> bool {
        *self.blocked.borrow()
    }

    /// Waits until the broker reads, or the connection is gone.
    pub(super) async fn unblocked(&self) {
        let Some(lifeline) = self.lifeline.upgrade() else {
            return;
        };
        let mut blocked = self.blocked.clone();
        tokio::select! {
            _ = blocked.wait_for(|blocked| !blocked) => {}
            () = lifeline.gone() => {}
        }
    }

    /// Ends it for everyone who uses it.
    pub(super) async fn hang_up(&self) {
        if let Some(lifeline) = self.lifeline.upgrade() {
            lifeline.cut();
            let _ = timeout(GOODBYE, lifeline.gone()).await;
        }
    }

    /// Opens a channel. If refusals have used up all channel numbers, the connection is hung up; the next one has all of them.
    ///
    /// # Errors
    /// As [`Connection::channel`], and [`ErrorKind::ConnectionLost`].
    pub(super) async fn channel(&self) -> Result<OpenChannel> {
        let (Some(lapin), Some(lifeline)) = (self.lapin.upgrade(), self.lifeline.upgrade()) else {
            return Err(Error::new(
                ErrorKind::ConnectionLost,
                "the connection was lost",
            ));
        };
        let channel = loop {
            let error = match ask(Doing::Opening, lapin.create_channel()).await {
                Ok(channel) => break channel,
                Err(error) => error,
            };
            match Unopened::of(&error) {
                // Each number only once: lapin then treats it as in use.
                Unopened::SpentNumber => self.is_spent.store(true, Ordering::Relaxed),
                Unopened::NoNumber if self.is_spent.load(Ordering::Relaxed) => {
                    self.hang_up().await;
                    return Err(spent(error));
                }
                Unopened::NoNumber | Unopened::Refused => return Err(error),
            }
        };
        Ok(OpenChannel {
            channel,
            lifeline,
            limits: Arc::clone(&self.limits),
            blocked: self.blocked.clone(),
        })
    }
}

/// Why a channel could not be opened.
enum Unopened {
    /// lapin gave it the number of a channel that the broker had closed, and refuses that as long as the connection lives, with the old
    /// error (lapin fact 20). No broker answers `channel.open` with a channel error.
    SpentNumber,
    /// All numbers are in use, or used up.
    NoNumber,
    Refused,
}

impl Unopened {
    fn of(error: &Error) -> Self {
        let why = error
            .source()
            .and_then(|source| source.downcast_ref::<lapin::Error>());
        match why.map(lapin::Error::kind) {
            Some(lapin::ErrorKind::ProtocolError(said))
                if matches!(said.kind(), AMQPErrorKind::Soft(_)) =>
            {
                Self::SpentNumber
            }
            Some(lapin::ErrorKind::ChannelsLimitReached) => Self::NoNumber,
            _ => Self::Refused,
        }
    }
}

/// Whether a connection has as many channels as the broker allows; waiting alone does not change that.
pub(crate) fn is_out_of_channels(error: &Error) -> bool {
    matches!(Unopened::of(error), Unopened::NoNumber)
}

/// The error for a connection that is hung up because its channel numbers are used up.
fn spent(error: Error) -> Error {
    let message = "the connection has no channel left: each request that the broker refuses costs one for good, of those that it \
                   allows (`channel_max`); a new connection has all of them again";
    Error::new(ErrorKind::ConnectionLost, message).with_source(error)
}

/// A channel that cannot take its connection down. Dropping a lapin channel while the broker is closing it sends a second close, and the
/// broker answers that by closing the connection.
pub(crate) struct OpenChannel {
    channel: Channel,
    lifeline: Arc<Lifeline>,
    limits: Arc<Limits>,
    blocked: watch::Receiver<bool>,
}

impl OpenChannel {
    pub(crate) fn lapin(&self) -> &Channel {
        &self.channel
    }

    pub(crate) fn is_open(&self) -> bool {
        self.channel.status().connected()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the broker has stopped reading from this channel's connection, and when that changes.
    pub(crate) fn blocked(&self) -> watch::Receiver<bool> {
        self.blocked.clone()
    }

    pub(crate) fn mended(&self) -> &MendedLog {
        &self.lifeline.mended
    }

    /// Closes the channel and waits for it.
    pub(crate) async fn close(self) {
        if self.is_open() {
            let _ = timeout(
                GOODBYE,
                self.channel.close(200, ShortString::from("closed")),
            )
            .await;
        }
    }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        if !self.channel.status().connected() && !self.channel.status().closing() {
            return;
        }
        // The broker may be closing this channel now. Our half is kept until that is done.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let channel = self.channel.clone();
            runtime.spawn(async move {
                for _ in 0..40 {
                    if !channel.status().connected() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(25)).await;
                }
                // Otherwise lapin would keep a channel with a consumer, which would hold messages as long as the connection lives.
                let goodbye = channel.close(200, ShortString::from("closed"));
                let _ = timeout(GOODBYE, goodbye).await;
            });
        }
    }
}

/// How long a channel stays open after its last settlement. If a quorum queue is some 30 settlements behind, RabbitMQ keeps further ones in
/// the channel and drops them with it: the messages settled last would come again.
pub(crate) const LINGER: Duration = Duration::from_millis(250);

/// Asks the broker something, within [`ANSWER`].
pub(crate) async fn ask<T>(
    doing: Doing<'_>,
    question: impl Future<Output = lapin::Result<T>>,
) -> Result<T> {
    match timeout(ANSWER, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(why)) => Err(refusal(&doing, why)),
        Err(_) => Err(Error::new(
            ErrorKind::Timeout,
            format!(
                "the broker did not answer within {} s while {doing}",
                ANSWER.as_secs()
            ),
        )),
    }
}

/// Asks for a queue that should exist: how many messages are ready, and how many consumers it has (`queue.declare`, passive).
///
/// # Errors
/// [`ErrorKind::QueueNotFound`], and those of [`ask`]. Then the channel is closed.
pub(crate) async fn look(channel: &Channel, queue: ShortString) -> Result<lapin::Queue> {
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let looked = channel.queue_declare(queue.clone(), passive, FieldTable::default());
    ask(Doing::Looking(queue.as_str()), looked).await
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

/// The error of the host that got farther: a refused password says more than a host that does not answer.
fn farther(one: Option<Error>, other: Error) -> Error {
    fn way(error: &Error) -> u8 {
        match error.kind() {
            ErrorKind::Unreachable => 0,
            ErrorKind::Timeout => 1,
            ErrorKind::ConnectionLost => 2,
            ErrorKind::TlsFailed => 3,
            _ => 4,
        }
    }
    match one {
        Some(one) if way(&one) >= way(&other) => one,
        _ => other,
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
