//! A secret that ends is renewed before that, on the open connection (AMQP `connection.update-secret`). Where that fails
//! the broker closes the connection at the end of the old one, and the next connection asks anew.
//!
//! A broker closes the connection over a bad secret as well, with everything that handlers hold. A token that is torn in its signature, or
//! signed with a key that the broker does not have, looks like any other; so each is tried on a connection of its own first.

use std::{net::SocketAddr, sync::Weak, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use super::{
    Address, Addresses,
    discretion::Discretion,
    login::Login,
    open::Connection,
    patience::{ANSWER, IMPATIENT},
    refusal::{Doing, refusal},
};
use crate::{Error, ErrorKind, Result};

/// Not more often, however short a secret lives.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A token may name any number as its end.
const LONGEST_LIFE: Duration = Duration::from_secs(1_000 * 24 * 60 * 60);

/// What it takes to renew a connection's secret.
pub(super) struct Renewal {
    pub(super) connection: Weak<lapin::Connection>,
    pub(super) addresses: Addresses,
    pub(super) address: Address,
    pub(super) place: SocketAddr,
    /// Who is logged in, which no new secret changes, and the secret of the moment.
    pub(super) login: Login,
    pub(super) purpose: String,
    /// Where it is said that the token is over and there is no other, and why: not every broker ends the connection then.
    pub(super) overdue: watch::Sender<Option<String>>,
}

/// What came of asking for the next secret.
enum Renewed {
    /// Somebody logs in with it from now on.
    With(Login),
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
    pub(super) async fn run(mut self, lifetime: Duration) {
        let mut over = SHORTEST_PAUSE;
        let mut end = Instant::now() + lifetime.min(LONGEST_LIFE);
        let mut told: Option<Instant> = None;
        // By a clock that is ahead, each token is over as soon as it comes.
        let mut was_good = !lifetime.is_zero();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // A broker that does not mind that a secret is over is asked less and less often.
            let pause = if left.is_zero() { over } else { pause(left) };
            sleep(pause).await;
            if left.is_zero() {
                over = (over * 2).min(LONGEST_PAUSE);
            }
            let left = end.saturating_duration_since(Instant::now());
            let renewed = self.renew(left).await;
            // A password's end is known to whoever gave it alone: the broker goes on with a connection that has it.
            if let Err(error) = &renewed
                && was_good
                && self.login.is_token()
                && end <= Instant::now()
            {
                self.overdue.send_replace(Some(error.to_string()));
            }
            match renewed {
                Ok(Renewed::With(next)) => {
                    self.overdue.send_replace(None);
                    let user = std::mem::take(&mut self.login.user);
                    self.login = Login { user, ..next };
                    let Some(lifetime) = self.login.lifetime() else {
                        return;
                    };
                    (end, told) = (Instant::now() + lifetime.min(LONGEST_LIFE), None);
                    was_good = !lifetime.is_zero();
                    if was_good {
                        over = SHORTEST_PAUSE;
                    }
                }
                Ok(Renewed::ForAnother) => {
                    // Asked no more: each answer may be a login that somebody has to make and to end.
                    warn!(
                        address = %self.address,
                        purpose = self.purpose,
                        user = self.login.user,
                        "the credentials are another user's now, and an open connection keeps its user: it ends when the broker ends that \
                         login, and the next one logs in as the other; to renew it in time, give the same user's password or token"
                    );
                    return;
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
        if login.user != self.login.user && !login.is_token() {
            return Ok(Renewed::ForAnother);
        }
        // The old one may be good for a while.
        if self.login.is_token() && !login.is_token() {
            return Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "what came is no JSON Web Token, as the last one was; a file must be replaced whole, by renaming",
            ));
        }
        let soon = left.max(SHORTEST_PAUSE);
        if login.extends(&self.login, soon) {
            return Ok(Renewed::With(login));
        }
        if !login.outlives(&self.login, soon) {
            return Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "it is still the old one, or ends as soon as that",
            ));
        }
        self.check(&login).await?;
        self.tell(login.clone()).await?;
        debug!(address = %self.address, purpose = self.purpose, "the connection's secret is renewed");
        Ok(Renewed::With(login))
    }

    /// Logs in with it elsewhere.
    ///
    /// # Errors
    /// [`ErrorKind::AuthenticationFailed`] and [`ErrorKind::VhostNotFound`]. Whatever else keeps a new connection away says nothing of the secret.
    async fn check(&self, login: &Login) -> Result<()> {
        let (address, purpose) = (&self.address, "renewal");
        match Connection::open_at(address, self.place, IMPATIENT, login, purpose).await {
            Ok(connection) => connection.close().await,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::AuthenticationFailed | ErrorKind::VhostNotFound
                ) =>
            {
                return Err(error);
            }
            Err(error) => {
                debug!(%address, self.purpose, %error, "a new secret could not be tried");
            }
        }
        Ok(())
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
