//! Where a cluster is: one URL with several hosts, or several URLs.

use std::{fmt, str::FromStr};

use super::{
    Address, Connection,
    login::{Credentials, Login},
    same_cluster::ClusterCheck,
};
use crate::{Error, ErrorKind, Result};

/// The addresses of one broker or cluster. For each connection they are tried in random order.
///
/// `amqp://user:password@one:5672,two,three/vhost` names several hosts. Several URLs are separated by commas. If a host name has several IP
/// addresses, all are tried. All addresses must lead to the same cluster: while a connection to one cluster is open, an address of another
/// cluster is not used.
///
/// Neither `Debug` nor `Display` shows a password.
#[derive(Clone, PartialEq)]
pub struct Addresses {
    all: Vec<Address>,
    credentials: Option<Credentials>,
    cluster_check: ClusterCheck,
}

impl FromStr for Addresses {
    type Err = Error;

    /// Parses one or more URLs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`]. The error message does not contain a password.
    fn from_str(text: &str) -> Result<Self> {
        let urls: Vec<_> = urls(text.trim()).into_iter().flat_map(hosts).collect();
        if urls.len() > 1 && urls.iter().any(|url| has_no_host(url)) {
            return Err(invalid("a host is missing beside a comma"));
        }
        let all = urls
            .into_iter()
            .map(|url| url.parse())
            .collect::<Result<Vec<Address>>>()?;
        let (first, others) = all.split_first().ok_or_else(|| invalid("there is none"))?;
        if others.iter().any(|other| other.vhost != first.vhost) {
            return Err(invalid(
                "they name different virtual hosts, which hold different queues",
            ));
        }
        Ok(Self {
            all,
            credentials: None,
            cluster_check: ClusterCheck::default(),
        })
    }
}

fn invalid(why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidUrl,
        format!(
            "cannot use these broker URLs: {why}; write them like amqp://user:password@one,two,three/vhost"
        ),
    )
}

/// Splits a list of URLs. A comma alone does not end a URL: it may separate hosts, or be part of a password.
fn urls(text: &str) -> Vec<&str> {
    let mut urls = Vec::new();
    let (mut begin, mut from) = (0, 0);
    while let Some(comma) = text[from..].find(',').map(|at| from + at) {
        let rest = text[comma + 1..].trim_start();
        if ["amqp://", "amqps://"]
            .iter()
            .any(|scheme| rest.starts_with(scheme))
        {
            urls.push(text[begin..comma].trim_end());
            begin = text.len() - rest.len();
        }
        from = comma + 1;
    }
    urls.push(&text[begin..]);
    urls
}

/// A URL's scheme, login with its `@`, hosts, and the rest; `None` without a scheme.
fn parts(url: &str) -> Option<(&str, &str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let login = authority.rfind('@').map_or(0, |at| at + 1);
    let (login, hosts) = authority.split_at(login);
    Some((scheme, login, hosts, tail))
}

/// One URL per host of a URL.
fn hosts(url: &str) -> Vec<String> {
    let Some((scheme, login, hosts, tail)) = parts(url) else {
        return vec![url.to_owned()];
    };
    hosts
        .split(',')
        .map(|host| format!("{scheme}://{login}{}{tail}", host.trim()))
        .collect()
}

/// Whether a URL in a list has no host. A single URL without one means `localhost`.
fn has_no_host(url: &str) -> bool {
    parts(url).is_some_and(|(_, _, host, _)| host.is_empty() || host.starts_with(':'))
}

/// The environment variable with the URL, for programs that give none.
const VARIABLE: &str = "RETRYRMQ_URL";
/// Their broker, if the variable is not set either. The other languages have it, too.
const DEFAULT: &str = "amqp://localhost";

impl Addresses {
    /// The addresses in the environment variable `RETRYRMQ_URL`. If it is not set or empty, `amqp://localhost`. The command and every other
    /// language use the same default.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`]. The error message does not contain a password.
    pub fn from_env() -> Result<Self> {
        let url = std::env::var_os(VARIABLE).unwrap_or_default();
        let url = url
            .to_str()
            .ok_or_else(|| invalid(&format!("what {VARIABLE} holds is not valid UTF-8")))?;
        Self::from_env_value(url)
    }

    fn from_env_value(url: &str) -> Result<Self> {
        match url.trim() {
            "" => DEFAULT.parse(),
            url => url.parse(),
        }
    }

    /// None, for a client without a broker.
    pub(crate) fn none() -> Self {
        Self {
            all: Vec::new(),
            credentials: None,
            cluster_check: ClusterCheck::default(),
        }
    }

    /// Whether [`from_env`](Self::from_env) reads addresses from the environment.
    pub(crate) fn are_in_env() -> bool {
        std::env::var_os(VARIABLE).is_some_and(|url| !url.to_string_lossy().trim().is_empty())
    }

    /// The error of a first connection. If nothing answers at the default address, it says where another address would come from.
    /// `are_in_env` is asked last: reading the environment races with a host language that sets it.
    pub(crate) fn explained(&self, error: Error, are_in_env: impl FnOnce() -> bool) -> Error {
        let is_default = || DEFAULT.parse().is_ok_and(|default| self.all == [default]);
        if error.kind() != ErrorKind::Unreachable || !is_default() || are_in_env() {
            return error;
        }
        let said = format!("{error}; this is the default address, and {VARIABLE} is not set");
        error.saying(said)
    }

    /// The virtual host, the same for all of them.
    #[must_use]
    pub fn vhost(&self) -> &str {
        self.all.first().map_or("/", Address::vhost)
    }

    /// Sets a function that returns the login for each connection. It replaces the logins of the URLs.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Option<Credentials>) -> Self {
        self.credentials = credentials;
        self
    }

    /// All addresses, in random order.
    pub(super) fn shuffled(&self) -> Vec<&Address> {
        let mut all: Vec<_> = self.all.iter().collect();
        fastrand::shuffle(&mut all);
        all
    }

    /// Adds a connection to one of the addresses.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`] if it leads to another cluster than the open connections; those of a lost connection.
    pub(super) async fn join(&self, new: &Connection) -> Result<()> {
        // A single name may lead to another broker later, once all of its connections move there.
        match self.all.len() {
            1 => Ok(()),
            _ => self.cluster_check.join(new, self).await,
        }
    }

    /// The login from the function, for all addresses; `None` if there is no function.
    pub(super) async fn asked(&self) -> Result<Option<Login>> {
        match &self.credentials {
            Some(credentials) => credentials.ask().await.map(Some),
            None => Ok(None),
        }
    }

    /// The login for one address now.
    pub(super) async fn login(&self, address: &Address) -> Result<Login> {
        match self.asked().await? {
            Some(login) => Ok(login),
            None => address.login().await,
        }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.all.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Addresses({self})")
    }
}

#[cfg(test)]
mod tests {
    use retryrmq_harness::fuzz::{fuzz, gist};

    use super::*;

    fn shown(text: &str) -> String {
        text.parse::<Addresses>().unwrap().to_string()
    }

    #[test]
    fn an_empty_variable_is_one_that_is_not_set() {
        let shown = |value| Addresses::from_env_value(value).map(|all| all.to_string());
        for empty in ["", " \n"] {
            assert_eq!(shown(empty).unwrap(), "amqp://guest@localhost:5672/%2F");
        }
        assert_eq!(
            shown(" amqp://one,two/v ").unwrap(),
            "amqp://guest@one:5672/v, amqp://guest@two:5672/v"
        );
        let error = shown("http://u:secret@h").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl);
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn only_the_default_address_is_explained() {
        let explained = |url: &str, kind, is_set: Option<bool>| {
            let all: Addresses = url.parse().unwrap();
            let asked = || is_set.expect("the environment is not read");
            let error = all.explained(Error::new(kind, "it failed"), asked);
            assert_eq!(error.kind(), kind);
            error.to_string()
        };
        let silent = ErrorKind::Unreachable;
        assert_eq!(
            explained(DEFAULT, silent, Some(false)),
            "it failed; this is the default address, and RETRYRMQ_URL is not set"
        );
        let refused = ErrorKind::AuthenticationFailed;
        for said in [
            explained(DEFAULT, silent, Some(true)),
            explained(DEFAULT, refused, None),
            explained("amqp://localhost:5673", silent, None),
            explained("amqp://localhost,other", silent, None),
        ] {
            assert_eq!(said, "it failed");
        }
    }

    #[test]
    fn hosts_and_urls_are_told_apart() {
        assert_eq!(shown("amqp://h"), "amqp://guest@h:5672/%2F");
        assert_eq!(
            shown("amqp://u:p@one:1,two,[::1]:3/v?heartbeat=5"),
            "amqp://u@one:1/v, amqp://u@two:5672/v, amqp://u@[::1]:3/v"
        );
        assert_eq!(
            shown("amqp://u:p@one/v, amqps://w:q@two/v"),
            "amqp://u@one:5672/v, amqps://w@two:5671/v"
        );
        assert_eq!(shown("amqp://u:p,w@one/v"), "amqp://u@one:5672/v");
    }

    #[tokio::test]
    async fn a_password_with_commas_is_a_password() {
        let addresses: Addresses = "amqp://u:a,b@one,two".parse().unwrap();
        assert_eq!(addresses.all.len(), 2);
        for address in &addresses.all {
            assert_eq!(address.login().await.unwrap(), Login::new("u", "a,b"));
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_a_password() {
        for text in [
            "",
            "amqp://u:s3cret@one/v,amqp://u:s3cret@two/w",
            "amqp://u:s3cret@one,two:99999",
            "amqp://u:s3cret@one,/v",
            "amqp://one,:5673",
            "amqp://,one?passwordfile=x",
            "amqp://u:s3cret@one,amqp://u:s3cret@two:0",
        ] {
            let error = text.parse::<Addresses>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{text}");
            assert!(!format!("{error:?} {error}").contains("s3cret"), "{error}");
        }
    }

    /// Whatever is mistyped, text in the place of a password is never shown.
    #[test]
    fn any_text_is_refused_or_addresses_without_their_password() {
        const SECRET: &str = "s3cr3t";
        let seeds: [&[u8]; 5] = [
            b"amqp://guest:s3cr3t@one,two:5673,three/vhost",
            b"amqps://bob:s3cr3t@host/%2f?cacertfile=ca.pem&heartbeat=10&connection_timeout=500",
            b"amqp://bob:s3cr3t@one,amqp://bob:s3cr3t@two",
            b"amqp://u:s3cr3t@[::1]:5672?auth_mechanism=plain&passwordfile=/x",
            b"localhost",
        ];
        let words = [
            "amqp://",
            "amqps://",
            "amqp:",
            "@",
            ":",
            "/",
            "?",
            "&",
            "=",
            ",",
            "%2f",
            "%",
            "#",
            "[::1]",
            "127.0.0.1",
            "heartbeat=",
            "name=",
            "verify=verify_peer",
            "auth_mechanism=external",
            "certfile=a&keyfile=b",
        ];
        fuzz(&seeds, &words, |text| {
            let text = String::from_utf8_lossy(text);
            let read = text.parse::<Addresses>();
            let shown = match &read {
                Ok(addresses) => format!("{addresses} {addresses:?}"),
                Err(refused) => format!("{refused} {refused:?}"),
            };
            let elsewhere = read.as_ref().is_ok_and(|addresses| {
                addresses.all.iter().any(|one| {
                    [&one.host, &one.vhost, &one.user]
                        .iter()
                        .any(|part| part.contains(SECRET))
                })
            });
            // Text before the first colon is a scheme or a user, and a wrong scheme is shown.
            let scheme = text.split(':').next().unwrap_or_default().contains(SECRET);
            assert!(elsewhere || scheme || !shown.contains(SECRET), "{shown}");
            match read {
                Ok(addresses) => format!("{} {}", addresses.all.len(), addresses.all[0].tls),
                Err(refused) => gist(&refused.to_string()),
            }
        });
    }
}
