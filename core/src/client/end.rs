//! The end of a client: closed by its owner, or by itself.

use std::{sync::Weak, time::Duration};

use tokio::{
    sync::RwLockWriteGuard,
    time::{Instant, sleep},
};

use super::Client;
use crate::{
    Error,
    connection::{ANSWER, GOODBYE, Link},
};

impl Client {
    /// The error that ended the client, or `None` if it has not ended by itself. See
    /// [`ClientOptions::end_when_refused`](crate::ClientOptions::end_when_refused).
    #[must_use]
    pub fn end(&self) -> Option<Error> {
        if self.0.fake.is_some() {
            return None;
        }
        self.0.consuming.end().or_else(|| self.0.publishing.end())
    }

    /// Closes both connections. Close the consumers first, so that they drain: unsettled messages of open consumers are requeued, which
    /// counts as a delivery.
    ///
    /// Waits up to 20 seconds for the confirms of publishes in progress, unless the connection is lost, and up to 2 seconds in a memory or disk
    /// alarm. During and after this call, [`publish`](Self::publish) returns [`Closed`](crate::ErrorKind::Closed).
    pub async fn close(&self) {
        if let Some(fake) = &self.0.fake {
            fake.close();
        }
        self.0.probe_connection.close().await;
        self.0.consuming.close().await;
        let _none_begins = self.published().await;
        self.0.publishing.close().await;
    }

    /// Waits for the publishes that have begun. Until the guard is dropped, others are refused.
    async fn published(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let lost = async {
            if let Some(connection) = self.publishing_now() {
                connection.gone().await;
            }
        };
        tokio::select! {
            biased;
            guard = self.0.publishes.write() => Some(guard),
            () = lost => None,
            () = self.blocked_for(GOODBYE) => None,
            () = sleep(ANSWER) => None,
        }
    }

    /// Resolves when the broker has read nothing for that long.
    async fn blocked_for(&self, time: Duration) {
        let mut since = None;
        loop {
            let now = Instant::now();
            since = self.0.publishing.is_blocked().then(|| since.unwrap_or(now));
            if since.is_some_and(|since| now - since >= time) {
                return;
            }
            sleep(time / 10).await;
        }
    }
}

/// When one connection ends by itself, ends the other too: a consumer that cannot publish could settle nothing.
pub(super) async fn end_together(links: [Weak<Link>; 2]) {
    let ended = |link: &Weak<Link>| {
        let link = link.clone();
        async move {
            match link.upgrade().map(|link| link.ends()) {
                Some(end) => end.await,
                None => std::future::pending().await,
            }
        }
    };
    let (error, other) = tokio::select! {
        error = ended(&links[0]) => (error, &links[1]),
        error = ended(&links[1]) => (error, &links[0]),
    };
    if let Some(other) = other.upgrade() {
        other.end_as(&error).await;
    }
}
