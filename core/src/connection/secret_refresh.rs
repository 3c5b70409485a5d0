//! Renews a secret that expires on the open connection (AMQP `connection.update-secret`). If that fails, the broker closes the connection
//! when the old secret expires, and the next connection asks anew.
//!
//! A broker also closes the connection for a bad secret, and all unsettled messages with it. A token with a damaged signature, or one
//! signed with an unknown key, looks like any other. So each token is first tried on a connection of its own.

use std::{net::SocketAddr, sync::Weak, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use super::{
    Address, Addresses, Connection,
    error_mapping::{Operation, refusal},
    log_redaction::LogRedaction,
    login::Login,
    timeouts::{ANSWER, IMPATIENT},
};
use crate::{Error, ErrorKind, Result, doubling_pause::DoublingPause};

/// Not more often, however short a secret's lifetime is.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A token may contain any number as its end.
const LONGEST_LIFE: Duration = Duration::from_secs(1_000 * 24 * 60 * 60);

/// What is needed to renew a connection's secret.
pub(super) struct SecretRefresh {
    pub(super) connection: Weak<lapin::Connection>,
    pub(super) addresses: Addresses,
    pub(super) address: Address,
    pub(super) place: SocketAddr,
    /// The current login. A new secret must be for the same user.
    pub(super) login: Login,
    pub(super) purpose: String,
    /// Set if the token has expired and there is no other, with the reason: not every broker closes the connection then.
    pub(super) overdue: watch::Sender<Option<String>>,
}

/// The result of asking for the next secret.
enum RefreshResult {
    /// The connection has this login from now on.
    With(Login),
    /// It is for another user.
    ForAnother,
}

/// How long to wait before a secret that expires in `left` is renewed. The last quarter of its time is for late answers, and is tried in
/// smaller and smaller steps.
fn pause(left: Duration) -> Duration {
    left.mul_f64(0.75).max(SHORTEST_PAUSE)
}

/// How long a new secret may be tried on another connection while the old one is valid for `left`. If the broker is too slow for that, the
/// old one must not end meanwhile. Once it has ended, there is nothing to be late for.
fn trial(left: Duration) -> Duration {
    if left.is_zero() { ANSWER } else { left / 2 }
}

fn until(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

impl SecretRefresh {
    /// Runs until the connection is gone, or has a secret that does not expire.
    pub(super) async fn run(mut self, lifetime: Duration) {
        let mut over = DoublingPause::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let mut end = Instant::now() + lifetime.min(LONGEST_LIFE);
        let mut last_warning: Option<Instant> = None;
        // With a clock that is ahead, each token is expired on arrival.
        let mut was_good = !lifetime.is_zero();
        loop {
            let left = until(end);
            // A broker that accepts an expired secret is asked less and less often.
            let pause = if left.is_zero() {
                over.next_pause()
            } else {
                pause(left)
            };
            sleep(pause).await;
            let renewed = self.renew(end).await;
            // Only its source knows that a password has expired; the broker continues with a connection that has it.
            if let Err(error) = &renewed
                && was_good
                && self.login.is_token()
                && end <= Instant::now()
            {
                self.overdue.send_replace(Some(error.to_string()));
            }
            match renewed {
                Ok(RefreshResult::With(next)) => {
                    self.overdue.send_replace(None);
                    let user = std::mem::take(&mut self.login.user);
                    self.login = Login { user, ..next };
                    let Some(lifetime) = self.login.lifetime() else {
                        return;
                    };
                    (end, last_warning) = (Instant::now() + lifetime.min(LONGEST_LIFE), None);
                    was_good = !lifetime.is_zero();
                    if was_good {
                        over.reset();
                    }
                }
                Ok(RefreshResult::ForAnother) => {
                    // It is not asked for again: each answer may be a login that somebody must create and delete.
                    warn!(
                        address = %self.address,
                        purpose = self.purpose,
                        user = self.login.user,
                        "the credentials are another user's now, and an open connection keeps its user: it ends when the broker ends that \
                         login, and the next one logs in as the other; to renew it in time, give the same user's password or token"
                    );
                    return;
                }
                Err(error) if last_warning.is_some_and(|at| at.elapsed() < LONGEST_PAUSE) => {
                    debug!(address = %self.address, purpose = self.purpose, %error, "the connection's secret cannot be renewed yet");
                }
                Err(error) => {
                    last_warning = Some(Instant::now());
                    warn!(address = %self.address, purpose = self.purpose, %error, "the connection's secret cannot be renewed yet");
                }
            }
        }
    }

    /// Gives the connection its next secret. The current one is valid until `end`.
    async fn renew(&self, end: Instant) -> Result<RefreshResult> {
        let left = until(end);
        let login = self.addresses.login(&self.address).await?;
        // A token itself names the user.
        if login.user != self.login.user && !login.is_token() {
            return Ok(RefreshResult::ForAnother);
        }
        // The old one may be valid for a while.
        if self.login.is_token() && !login.is_token() {
            return Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "the new secret is not a JSON Web Token, but the old one is; replace token files atomically (write, then rename)",
            ));
        }
        let soon = left.max(SHORTEST_PAUSE);
        if login.extends(&self.login, soon) {
            return Ok(RefreshResult::With(login));
        }
        if !login.outlives(&self.login, soon) {
            return Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "the secret is still the old one, or one that ends no later; renew it earlier",
            ));
        }
        self.check(&login, trial(until(end))).await?;
        self.send_secret(login.clone()).await?;
        debug!(address = %self.address, purpose = self.purpose, "the connection's secret is renewed");
        Ok(RefreshResult::With(login))
    }

    /// Tries the login on another connection.
    ///
    /// # Errors
    /// [`ErrorKind::AuthenticationFailed`] and [`ErrorKind::VhostNotFound`]. Other errors of the new connection say nothing about the
    /// secret.
    async fn check(&self, login: &Login, time_limit: Duration) -> Result<()> {
        let (address, purpose) = (&self.address, "renewal");
        let trying = async {
            let opened = Connection::open_at(address, self.place, IMPATIENT, login, purpose);
            opened.await?.close().await;
            Ok::<_, Error>(())
        };
        match timeout(time_limit, trying).await {
            Ok(Ok(())) => {}
            Err(_) => {
                debug!(%address, self.purpose, "a new secret could not be tried in time");
            }
            Ok(Err(error))
                if matches!(
                    error.kind(),
                    ErrorKind::AuthenticationFailed | ErrorKind::VhostNotFound
                ) =>
            {
                return Err(error);
            }
            Ok(Err(error)) => {
                debug!(%address, self.purpose, %error, "a new secret could not be tried");
            }
        }
        Ok(())
    }

    async fn send_secret(&self, login: Login) -> Result<()> {
        let Some(connection) = self.connection.upgrade() else {
            return Ok(());
        };
        let user = login.user.clone();
        let updated = connection.update_secret(login.secret.into(), "renewed".into());
        // lapin logs the command where it is called.
        match timeout(
            ANSWER,
            LogRedaction::now(std::sync::Arc::default()).of(updated),
        )
        .await
        {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(refusal(&Operation::Connecting(&self.address, &user), why)),
            Err(_) => Err(Error::new(
                ErrorKind::Timeout,
                "the broker did not confirm the new secret in time",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_is_renewed_before() {
        assert_eq!(pause(Duration::from_secs(400)), Duration::from_secs(300));
        assert_eq!(pause(Duration::from_secs(1)), SHORTEST_PAUSE);
        assert_eq!(pause(Duration::ZERO), SHORTEST_PAUSE);
    }

    #[test]
    fn no_secret_ends_while_the_next_is_tried() {
        assert_eq!(trial(Duration::from_secs(2)), Duration::from_secs(1));
        assert_eq!(trial(Duration::ZERO), ANSWER);
    }
}
