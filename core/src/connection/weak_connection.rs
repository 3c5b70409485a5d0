//! An open connection for those that do not keep it open.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{sync::watch, time::timeout};

use super::{
    Address,
    channel::{OpenChannel, OpenChannelError, ask, spent},
    error_mapping::Operation,
    limits::Limits,
    timeouts::GOODBYE,
    transport::SocketHandle,
};
use crate::{Error, ErrorKind, Result};

/// Ends nothing when it is dropped, and is of no use once the connection has ended.
#[derive(Clone)]
pub(super) struct WeakConnection {
    pub(super) lapin: Weak<lapin::Connection>,
    pub(super) socket_handle: Weak<SocketHandle>,
    pub(super) at: Arc<(Address, SocketAddr)>,
    pub(super) limits: Arc<Limits>,
    pub(super) blocked: watch::Receiver<bool>,
    pub(super) is_spent: Arc<AtomicBool>,
}

impl WeakConnection {
    /// Whether the connection has ended.
    pub(super) fn is_gone(&self) -> bool {
        let socket_handle = self.socket_handle.upgrade();
        socket_handle.is_none_or(|socket_handle| socket_handle.is_gone())
    }

    /// Whether the broker has stopped reading from it.
    pub(super) fn is_blocked(&self) -> bool {
        *self.blocked.borrow()
    }

    /// Waits until the broker reads, or the connection is gone.
    pub(super) async fn unblocked(&self) {
        let Some(socket_handle) = self.socket_handle.upgrade() else {
            return;
        };
        let mut blocked = self.blocked.clone();
        tokio::select! {
            _ = blocked.wait_for(|blocked| !blocked) => {}
            () = socket_handle.gone() => {}
        }
    }

    /// Ends it for everyone who uses it.
    pub(super) async fn hang_up(&self) {
        if let Some(socket_handle) = self.socket_handle.upgrade() {
            socket_handle.cut();
            let _ = timeout(GOODBYE, socket_handle.gone()).await;
        }
    }

    /// Opens a channel. If refusals have used up all channel numbers, the connection is hung up; the next one has all of them.
    ///
    /// # Errors
    /// Those of [`ask`], and [`ErrorKind::ConnectionLost`].
    pub(super) async fn channel(&self) -> Result<OpenChannel> {
        let (Some(lapin), Some(socket_handle)) =
            (self.lapin.upgrade(), self.socket_handle.upgrade())
        else {
            return Err(Error::new(
                ErrorKind::ConnectionLost,
                "the connection was lost",
            ));
        };
        let channel = loop {
            let error = match ask(Operation::Opening, lapin.create_channel()).await {
                Ok(channel) => break channel,
                Err(error) => error,
            };
            match OpenChannelError::of(&error) {
                // Each number only once: lapin then treats it as in use.
                OpenChannelError::SpentNumber => self.is_spent.store(true, Ordering::Relaxed),
                OpenChannelError::NoNumber if self.is_spent.load(Ordering::Relaxed) => {
                    self.hang_up().await;
                    return Err(spent(error));
                }
                OpenChannelError::NoNumber | OpenChannelError::Refused => return Err(error),
            }
        };
        Ok(OpenChannel {
            channel,
            socket_handle,
            limits: Arc::clone(&self.limits),
            blocked: self.blocked.clone(),
            count: None,
        })
    }
}
