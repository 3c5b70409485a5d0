//! Opens a connection to whichever of several hosts takes it.

use std::sync::Arc;

use tracing::debug;

use super::{
    Address, Addresses, Connection, login::Login, resolver::Resolver,
    secret_refresh::SecretRefresh, timeouts::IMPATIENT, transport,
};
use crate::{Error, ErrorKind, Result};

impl Connection {
    /// Opens a connection to any of the addresses. `purpose` becomes part of the name shown in the management UI.
    ///
    /// # Errors
    /// Those of [`transport::open`], and [`ErrorKind::AuthenticationFailed`], [`ErrorKind::VhostNotFound`]. With several hosts, the error
    /// of the host that got farthest.
    pub(crate) async fn open(addresses: &Addresses, purpose: &str) -> Result<Self> {
        let mut worst: Option<Error> = None;
        let asked = addresses.asked().await?;
        let mut resolver = Resolver::of(addresses.shuffled(), transport::resolve);
        while let Some(next) = resolver.next().await {
            let (address, place) = match next {
                Ok(place) => place,
                Err(error) => {
                    worst = Some(farther(worst, error));
                    continue;
                }
            };
            // A host that does not answer must not keep us from the others.
            let is_short = !resolver.is_empty();
            let time_limit = if is_short {
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
                let opened = Self::open_at(address, place, time_limit, &login, purpose).await?;
                addresses.join(&opened).await?;
                opened.keep_fresh(addresses, address, &login, purpose);
                Ok::<_, Error>(opened)
            };
            match opened.await {
                Ok(opened) => return Ok(opened),
                Err(error) => {
                    debug!(%address, %place, purpose, %error, "cannot connect there");
                    if is_short && error.kind() == ErrorKind::Timeout {
                        resolver.had_short_timeout(address, place);
                    }
                    worst = Some(farther(worst, error));
                }
            }
        }
        Err(worst.unwrap_or_else(no_broker))
    }

    /// Renews a secret that expires, as long as the connection lives.
    fn keep_fresh(&self, addresses: &Addresses, address: &Address, login: &Login, purpose: &str) {
        let Some(lifetime) = login.lifetime() else {
            return;
        };
        let renewal = SecretRefresh {
            connection: Arc::downgrade(&self.lapin),
            addresses: addresses.clone(),
            address: address.clone(),
            place: self.at.1,
            login: login.clone(),
            purpose: purpose.to_owned(),
            overdue: self.overdue.clone(),
        };
        let socket_handle = Arc::clone(&self.socket_handle.0);
        tokio::spawn(async move {
            tokio::select! {
                () = renewal.run(lifetime) => {}
                () = socket_handle.gone() => {}
            }
        });
    }
}

/// The error of what needs a broker, for the client that has none: only that of a test has no addresses.
pub(crate) fn no_broker() -> Error {
    Error::new(
        ErrorKind::Closed,
        "this needs a broker, and a fake client has none",
    )
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
