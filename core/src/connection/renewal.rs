//! A secret that ends is renewed before that, on the open connection (AMQP `connection.update-secret`). Where that fails
//! the broker closes the connection at the end of the old one, and the next connection asks anew.

use std::{sync::Weak, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::{
    Address, Addresses,
    discretion::Discretion,
    login::Login,
    open::ANSWER,
    refusal::{Doing, refusal},
};
use crate::{Error, ErrorKind, Result};

/// Not more often, however short a secret lives.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What it takes to renew a connection's secret.
pub(super) struct Renewal {
    pub(super) connection: Weak<lapin::Connection>,
    pub(super) addresses: Addresses,
    pub(super) address: Address,
    /// Who is logged in, which no new secret changes.
    pub(super) user: String,
    /// Whether the secret is a JSON Web Token. What follows it then is one, too.
    pub(super) is_token: bool,
    pub(super) purpose: String,
}

/// What came of asking for the next secret.
enum Renewed {
    /// It is good for so long, where that has an end.
    For(Option<Duration>),
    /// It is somebody else's.
    ForAnother,
}

/// How long to wait before a secret that ends in `left` is asked for anew: the last quarter is for those who answer late, and
/// is tried in smaller and smaller steps.
fn pause(left: Duration) -> Duration {
    left.mul_f64(0.75).max(SHORTEST_PAUSE)
}

impl Renewal {
    /// Until the connection is gone, or has a secret without an end.
    pub(super) async fn run(&self, lifetime: Duration) {
        let (mut left, mut over) = (lifetime, SHORTEST_PAUSE);
        let mut told: Option<Instant> = None;
        loop {
            // A broker that does not mind that a secret is over is asked less and less often.
            let pause = if left.is_zero() { over } else { pause(left) };
            sleep(pause).await;
            if left.is_zero() {
                over = (over * 2).min(LONGEST_PAUSE);
            }
            left = left.saturating_sub(pause);
            match self.renew(left).await {
                Ok(Renewed::For(None)) => return,
                Ok(Renewed::ForAnother) => {
                    // Asked no more: each answer may be a login that somebody has to make and to end.
                    warn!(
                        address = %self.address,
                        purpose = self.purpose,
                        user = self.user,
                        "the credentials are another user's now, and an open connection keeps its user: it ends when the broker ends that \
                         login, and the next one logs in as the other; to renew it in time, give the same user's password or token"
                    );
                    return;
                }
                Ok(Renewed::For(Some(lifetime))) => {
                    (left, over, told) = (lifetime, SHORTEST_PAUSE, None)
                }
                Err(error) if told.is_some_and(|told| told.elapsed() < LONGEST_PAUSE) => {
                    debug!(address = %self.address, purpose = self.purpose, %error, "the connection's secret cannot be renewed yet");
                }
                Err(error) => {
                    told = Some(Instant::now());
                    warn!(address = %self.address, purpose = self.purpose, %error, "the connection's secret cannot be renewed yet");
                }
            }
        }
    }

    /// Gives the connection its next secret.
    async fn renew(&self, left: Duration) -> Result<Renewed> {
        let login = self.addresses.login(&self.address).await?;
        // A token says by itself who it is for.
        if login.user != self.user && !login.is_token() {
            return Ok(Renewed::ForAnother);
        }
        // The broker closes the connection over a bad secret, and the old one may be good for a while.
        if self.is_token && !login.is_token() {
            return Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "what came is no JSON Web Token, as the last one was; a file must be replaced whole, by renaming",
            ));
        }
        let lifetime = login.lifetime();
        if lifetime.is_some_and(|lifetime| lifetime <= left.max(SHORTEST_PAUSE)) {
            return Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "it is still the old one, or ends as soon as that",
            ));
        }
        self.tell(login).await?;
        debug!(address = %self.address, purpose = self.purpose, "the connection's secret is renewed");
        Ok(Renewed::For(lifetime))
    }

    async fn tell(&self, login: Login) -> Result<()> {
        let Some(connection) = self.connection.upgrade() else {
            return Ok(());
        };
        let user = login.user.clone();
        let updated = connection.update_secret(login.secret.into(), "renewed".into());
        // lapin writes the command down where it is given.
        match timeout(ANSWER, Discretion::now().of(updated)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(refusal(&Doing::Connecting(&self.address, &user), why)),
            Err(_) => Err(Error::new(
                ErrorKind::Timeout,
                "the broker did not answer to a new secret",
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
}
