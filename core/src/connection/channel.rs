//! Channels, opened, asked and closed within time limits.

use std::{error::Error as _, future::Future, sync::Arc, time::Duration};

use lapin::{
    Channel,
    options::QueueDeclareOptions,
    protocol::AMQPErrorKind,
    types::{FieldTable, ShortString},
};
use tokio::{sync::watch, time::timeout};

use super::{
    error_mapping::{Operation, is_a_limit_of_channels, refusal},
    limits::Limits,
    sanitiser::RepairLog,
    timeouts::{ANSWER, GOODBYE},
    transport::SocketHandle,
};
use crate::{Error, ErrorKind, Result};

/// Why a channel could not be opened.
pub(super) enum OpenChannelError {
    /// lapin gave it the number of a channel that the broker had closed, and refuses that as long as the connection lives, with the old
    /// error (lapin fact 20). No broker answers `channel.open` with a channel error.
    SpentNumber,
    /// All numbers are in use, or used up.
    NoNumber,
    Refused,
}

impl OpenChannelError {
    pub(super) fn of(error: &Error) -> Self {
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
    matches!(OpenChannelError::of(error), OpenChannelError::NoNumber)
}

/// Whether the broker closed the connection because of a channel too many, counted with those of other connections.
pub(crate) fn is_one_channel_too_many(error: &Error) -> bool {
    let why = error
        .source()
        .and_then(|source| source.downcast_ref::<lapin::Error>());
    matches!(why.map(lapin::Error::kind), Some(lapin::ErrorKind::ProtocolError(said))
        if is_a_limit_of_channels(said.get_message().as_str()))
}

/// The error for a connection that is hung up because its channel numbers are used up.
pub(super) fn spent(error: Error) -> Error {
    let message = "all channel numbers of this connection are used up (`channel_max`; each refused request costs one); a new \
                   connection has all of them again";
    Error::new(ErrorKind::ConnectionLost, message).with_source(error)
}

/// A channel that cannot take its connection down. Dropping a lapin channel while the broker is closing it sends a second close, and the
/// broker answers that by closing the connection.
pub(crate) struct OpenChannel {
    pub(super) channel: Channel,
    pub(super) socket_handle: Arc<SocketHandle>,
    pub(super) limits: Arc<Limits>,
    pub(super) blocked: watch::Receiver<bool>,
    /// Held until it is closed, for who counts the channels.
    pub(super) count: Option<Arc<()>>,
}

impl OpenChannel {
    /// Holds `count` as long as the broker counts this channel.
    pub(crate) fn counted(mut self, count: Arc<()>) -> Self {
        self.count = Some(count);
        self
    }

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

    pub(crate) fn mended(&self) -> &RepairLog {
        &self.socket_handle.mended
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
            let (channel, count) = (self.channel.clone(), self.count.take());
            runtime.spawn(async move {
                let _count = count;
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
    doing: Operation<'_>,
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
/// [`ErrorKind::TooLarge`] for a name of which the broker could not say that it is missing, without asking. [`ErrorKind::QueueNotFound`], and
/// those of [`ask`]. Then the channel is closed.
pub(crate) async fn passive_declare(
    channel: &OpenChannel,
    queue: ShortString,
) -> Result<lapin::Queue> {
    channel.limits.names().check(queue.as_str())?;
    passive_declare_checked(&channel.channel, queue).await
}

/// The same, for a queue whose name was checked before.
///
/// # Errors
/// As of [`passive_declare`].
pub(crate) async fn passive_declare_checked(
    channel: &Channel,
    queue: ShortString,
) -> Result<lapin::Queue> {
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let looked = channel.queue_declare(queue.clone(), passive, FieldTable::default());
    ask(Operation::Looking(queue.as_str()), looked).await
}
