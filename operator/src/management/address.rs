//! Where the management API is, and who asks: said, or derived from the AMQP URL.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use reqwest::Url;

use super::{Error, ManagementErrorKind, Result};

/// Where the management API is, and as whom to ask. `Debug` and `Display` do not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(super) base: Url,
    pub(super) user: String,
    pub(super) secret: String,
    pub(super) authority: Option<PathBuf>,
}

impl Address {
    /// The address that goes with an AMQP URL: the same host, user and password, port 15672, or 15671 and `https` with `amqps`; of several hosts the first.
    /// `userfile`, `passwordfile` and `cacertfile` of the URL are heeded. `management` says another one; a user in it takes the place of the
    /// AMQP URL's. `authority` is a file with the CA (PEM) to trust alone.
    ///
    /// # Errors
    /// [`ManagementErrorKind::InvalidUrl`] for a URL that makes no sense, or a file that cannot be read.
    pub fn new(amqp: &str, management: Option<&str>, authority: Option<&Path>) -> Result<Self> {
        let broker = UrlParts::of(amqp)?;
        let mut base = match management {
            Some(text) => parse_url(text)?,
            None => broker.derived()?,
        };
        let own_user = decoded(base.username());
        let own_secret = base.password().map(decoded);
        let (user, secret) = match (own_user.as_str(), own_secret) {
            ("", None) => broker.login()?,
            (_, Some(secret)) => (own_user, secret),
            (_, None) => {
                return Err(invalid_management("there is a user and no password"));
            }
        };
        // Kept apart, so that no error of a library shows them.
        let _ = base.set_username("");
        let _ = base.set_password(None);
        base.set_query(None);
        base.set_fragment(None);
        Ok(Self {
            base,
            user,
            secret,
            authority: authority
                .map(Path::to_owned)
                .or_else(|| broker.parameter("cacertfile").map(PathBuf::from)),
        })
    }

    /// A path below `/api/`, each part a name that may hold anything.
    pub(super) fn at(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty();
            if self.base.path().trim_end_matches('/').ends_with("/api") {
                segments.extend(path);
            } else {
                segments.push("api").extend(path);
            }
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    /// Whether the secret is a token: a JSON Web Token begins with its header, which is a JSON object.
    pub(super) fn is_token(&self) -> bool {
        let mut parts = self.secret.split('.');
        let (Some(head), Some(_), Some(_), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        BASE64_URL_SAFE_NO_PAD
            .decode(head)
            .ok()
            .and_then(|head| serde_json::from_slice::<serde_json::Value>(&head).ok())
            .is_some_and(|head| head.is_object())
    }

    /// The user that is named.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// The virtual host that an AMQP URL names, decoded.
///
/// # Errors
/// [`ManagementErrorKind::InvalidUrl`].
pub fn vhost_of(amqp: &str) -> Result<String> {
    let parts = UrlParts::of(amqp)?;
    let path = parts.tail.split(['?', '#']).next().unwrap_or_default();
    Ok(match path.strip_prefix('/').unwrap_or(path) {
        "" => "/".to_owned(),
        path => decoded(path),
    })
}

/// The pieces of the first AMQP URL of a list, for its first host.
struct UrlParts<'a> {
    tls: bool,
    login: &'a str,
    host: &'a str,
    tail: &'a str,
}

impl<'a> UrlParts<'a> {
    fn of(amqp: &'a str) -> Result<Self> {
        let bad = |why: &str| {
            Error::new(
                ManagementErrorKind::InvalidUrl,
                format!(
                    "cannot use this broker URL: {why}; write it like amqp://user:password@host:5672/vhost"
                ),
            )
        };
        let (scheme, rest) = amqp
            .trim()
            .split_once("://")
            .ok_or_else(|| bad("it has no scheme"))?;
        let tls = match scheme {
            "amqp" => false,
            "amqps" => true,
            _ => return Err(bad("its scheme is not amqp or amqps")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        // Another URL of the list may follow.
        let tail = tail.split(",amqp").next().unwrap_or_default();
        // Each URL of a list has its own login: that of the first stands before its first `,amqp…`.
        let authority = authority.split(",amqp").next().unwrap_or_default();
        let (login, hosts) = match authority.rfind('@') {
            Some(at) => (&authority[..at], &authority[at + 1..]),
            None => ("", authority),
        };
        Ok(Self {
            tls,
            login,
            host: hosts.split(',').next().unwrap_or_default().trim(),
            tail,
        })
    }

    fn derived(&self) -> Result<Url> {
        let (scheme, port) = if self.tls {
            ("https", 15671)
        } else {
            ("http", 15672)
        };
        // An IPv6 address stands in brackets, and only what follows them is a port.
        let name = match self.host.rfind(':') {
            Some(colon) if !self.host[colon..].contains(']') => &self.host[..colon],
            _ => self.host,
        };
        let name = if name.is_empty() { "localhost" } else { name };
        Url::parse(&format!("{scheme}://{name}:{port}/")).map_err(|why| {
            Error::new(
                ManagementErrorKind::InvalidUrl,
                format!("the host of the broker URL makes no sense: {why}"),
            )
        })
    }

    fn parameter(&self, name: &str) -> Option<String> {
        let query = self.tail.split_once('?')?.1;
        let query = query.split('#').next().unwrap_or_default();
        let url = Url::parse(&format!("http://h/?{query}")).ok()?;
        let found = url.query_pairs().find(|(key, _)| key == name);
        found.map(|(_, value)| value.into_owned())
    }

    fn login(&self) -> Result<(String, String)> {
        let (user, secret) = match self.login.split_once(':') {
            Some((user, secret)) => (user, Some(secret)),
            None => (self.login, None),
        };
        let user = if user.is_empty() { "guest" } else { user };
        let user = match self.parameter("userfile") {
            Some(file) => read(&file)?,
            None => decoded(user),
        };
        if self.parameter("auth_mechanism").as_deref() == Some("external") {
            return Err(invalid_management(
                "the broker is asked with a certificate, and the management API wants a user: say https://user:password@host:15671",
            ));
        }
        let secret = match self.parameter("passwordfile") {
            Some(file) => read(&file)?,
            None => secret.map_or_else(|| "guest".to_owned(), decoded),
        };
        Ok((user, secret))
    }
}

fn read(file: &str) -> Result<String> {
    let text = std::fs::read_to_string(file).map_err(|why| {
        Error::new(
            ManagementErrorKind::InvalidUrl,
            format!("the file {file} that the URL names cannot be read: {why}"),
        )
    })?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned()
}

fn invalid_management(why: &str) -> Error {
    Error::new(
        ManagementErrorKind::InvalidUrl,
        format!(
            "cannot use the management URL: {why}; write it like http://host:15672 or https://user:password@host:15671"
        ),
    )
}

fn parse_url(text: &str) -> Result<Url> {
    let text = text.trim();
    // A password that is not encoded must not be taken for a host and shown as one.
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if rest[end..].contains('@') {
        return Err(invalid_management(
            "the user or password seems to hold `/`, `?`, `#` or `@`: percent-encode it (`%2f`, `%3f`, `%23`, `%40`)",
        ));
    }
    let url = Url::parse(text).map_err(|why| invalid_management(&why.to_string()))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        "amqp" | "amqps" => Err(invalid_management("this is the broker's AMQP address")),
        _ => Err(invalid_management("its scheme is not http or https")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(amqp: &str) -> Address {
        Address::new(amqp, None, None).unwrap()
    }

    #[test]
    fn it_is_derived_from_the_broker() {
        for (amqp, base, user, secret) in [
            (
                "amqp://localhost",
                "http://localhost:15672",
                "guest",
                "guest",
            ),
            ("amqp://", "http://localhost:15672", "guest", "guest"),
            ("amqp://u:p%2f@h:5673/v", "http://h:15672", "u", "p/"),
            (
                "amqps://u:p@h/v?cacertfile=/ca.pem",
                "https://h:15671",
                "u",
                "p",
            ),
            ("amqp://u:p@[::1]:5672", "http://[::1]:15672", "u", "p"),
            ("amqp://u:p@[::1]", "http://[::1]:15672", "u", "p"),
            ("amqp://u:p@one:1,two:2/v", "http://one:15672", "u", "p"),
            ("amqp://u:p,q@one,two", "http://one:15672", "u", "p,q"),
            (
                "amqp://u:p@one,amqp://x:y@two",
                "http://one:15672",
                "u",
                "p",
            ),
        ] {
            let address = derived(amqp);
            assert_eq!(
                (
                    address.to_string().as_str(),
                    address.user(),
                    address.secret.as_str()
                ),
                (base, user, secret),
                "{amqp}"
            );
        }
        assert_eq!(
            derived("amqps://h?cacertfile=/ca.pem").authority,
            Some("/ca.pem".into())
        );
    }

    #[test]
    fn what_is_said_wins_and_takes_the_login_of_the_broker_where_it_has_none() {
        let said = |management| Address::new("amqp://u:p@h/v", Some(management), None).unwrap();
        assert_eq!(said("https://m:8443").user(), "u");
        let own = said("https://a:b%40@m:8443/rabbit/?x=1");
        assert_eq!((own.user(), own.secret.as_str()), ("a", "b@"));
        let url = own.at(&["queues", "a/b", "c d?#"], &[("page", "1")]);
        assert_eq!(
            url.as_str(),
            "https://m:8443/rabbit/api/queues/a%2Fb/c%20d%3F%23?page=1"
        );
        assert_eq!(
            said("http://m/api/").at(&["overview"], &[]).path(),
            "/api/overview"
        );
    }

    #[test]
    fn the_virtual_host_is_that_of_the_first_url() {
        for (amqp, vhost) in [
            ("amqp://h", "/"),
            ("amqp://h/", "/"),
            ("amqp://h/%2f", "/"),
            ("amqp://h/a%2fb?heartbeat=1", "a/b"),
            ("amqp://one/v,amqp://two/v", "v"),
        ] {
            assert_eq!(vhost_of(amqp).unwrap(), vhost, "{amqp}");
        }
    }

    #[test]
    fn no_error_and_no_debug_shows_a_password() {
        for (amqp, management) in [
            ("amqp://u:s3cret@h", Some("ftp://u:s3cret@h")),
            ("amqp://u:s3cret@h", Some("http://u:s3cret@h:99999")),
            ("amqp://u:s3cret@h", Some("http://u:12/s3cret@h")),
            ("http://u:s3cret@h", None),
            ("u:s3cret@h", None),
            ("amqp://u:s3cret@[::1", None),
        ] {
            let error = Address::new(amqp, management, None).unwrap_err();
            assert_eq!(error.kind(), ManagementErrorKind::InvalidUrl);
            assert!(
                !format!("{error} {error:?}").contains("s3cret"),
                "{error:?}"
            );
        }
        let address = derived("amqp://u:s3cret@h");
        assert!(!format!("{address} {address:?}").contains("s3cret"));
    }

    #[test]
    fn a_token_is_known_by_its_header() {
        let head = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256"}"#);
        assert!(derived(&format!("amqp://u:{head}.e30.sig@h")).is_token());
        assert!(!derived("amqp://u:a.b.c@h").is_token());
        assert!(!derived("amqp://u:p@h").is_token());
    }
}
