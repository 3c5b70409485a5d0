//! Where the broker is: an `amqp://` or `amqps://` URL, parsed by a URL library. Its password is never shown.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::login::{Login, read};
use crate::{Error, ErrorKind, Result};

/// The query parameters that are known.
const PARAMETERS: &str = "heartbeat, connection_timeout, cacertfile, certfile, keyfile, server_name_indication, auth_mechanism, userfile, passwordfile and name";

/// A broker's address, parsed from a URL: `amqp://user:password@host:5672/vhost?heartbeat=10`, or `amqps://` for TLS.
///
/// The defaults are those of RabbitMQ's own clients: user and password `guest`, port 5672 (5671 with TLS), virtual host `/`. The virtual
/// host is percent-encoded: `%2f` is `/`. These are the query parameters:
///
/// | parameter | value |
/// |---|---|
/// | `heartbeat` | seconds |
/// | `connection_timeout` | milliseconds |
/// | `cacertfile`, `certfile`, `keyfile` | PEM files |
/// | `server_name_indication` | the host name in the server's certificate |
/// | `name` | the connection's name in the management UI |
/// | `userfile`, `passwordfile` | files that are read for every connection, instead of the user and password of the URL; a file with a token is read again before the token expires |
/// | `auth_mechanism` | `external`: the client certificate names the user; RabbitMQ needs the plugin `rabbitmq_auth_mechanism_ssl` |
///
/// Neither `Debug` nor `Display` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) user_file: Option<PathBuf>,
    pub(super) password_file: Option<PathBuf>,
    /// The client's certificate names the user.
    pub(super) external: bool,
    pub(super) vhost: String,
    pub(super) heartbeat: u16,
    pub(super) timeout: Duration,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) cert_file: Option<PathBuf>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) server_name: Option<String>,
    pub(super) name: Option<String>,
}

impl FromStr for Address {
    type Err = Error;

    /// Parses a URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`]. The sentence does not contain the password.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::new(
                ErrorKind::InvalidUrl,
                format!(
                    "cannot use this broker URL: {why}; write it like amqp://user:password@host:5672/vhost"
                ),
            )
        };
        let text = text.trim();
        let Some((_, rest)) = text.split_once("://") else {
            return Err(bad("it has no scheme"));
        };
        // Checked before any part of it could be taken for a host and be shown.
        let beyond = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        if rest[beyond..].contains('@') {
            return Err(bad(
                "the user or password seems to hold `/`, `?`, `#` or `@`: percent-encode it (`%2f`, `%3f`, `%23`, `%40`)",
            ));
        }
        let url = Url::parse(text).map_err(|why| bad(&why.to_string()))?;
        let tls = match url.scheme() {
            "amqp" => false,
            "amqps" => true,
            other => return Err(bad(&format!("the scheme is `{other}`, not amqp or amqps"))),
        };
        let host = match url.host() {
            Some(Host::Domain("")) | None => "localhost".to_owned(),
            Some(Host::Domain(name)) => {
                decoded(name).ok_or_else(|| bad("the host is not UTF-8"))?
            }
            Some(Host::Ipv4(ip)) => ip.to_string(),
            Some(Host::Ipv6(ip)) => ip.to_string(),
        };
        let (user, password) = (url.username(), url.password());
        let user = if user.is_empty() { "guest" } else { user };
        let path = url.path();
        let vhost = match path.strip_prefix('/').unwrap_or(path) {
            "" => "/".to_owned(),
            path if path.contains('/') => {
                return Err(bad("the virtual host holds a `/`, which is written %2f"));
            }
            path => decoded(path).ok_or_else(|| bad("the virtual host is not UTF-8"))?,
        };
        let mut address = Self {
            tls,
            host,
            port: url.port().unwrap_or(if tls { 5671 } else { 5672 }),
            user: decoded(user).ok_or_else(|| bad("the user is not UTF-8"))?,
            password: decoded(password.unwrap_or("guest"))
                .ok_or_else(|| bad("the password is not UTF-8"))?,
            user_file: None,
            password_file: None,
            external: false,
            vhost,
            heartbeat: 30,
            timeout: Duration::from_secs(10),
            ca_file: None,
            cert_file: None,
            key_file: None,
            server_name: None,
            name: None,
        };
        if address.port == 0 {
            return Err(bad("port 0 is no port"));
        }
        if [&address.vhost, &address.user]
            .iter()
            .any(|name| name.len() > 255)
        {
            return Err(bad("the virtual host or the user is longer than 255 bytes"));
        }
        for (index, (name, value)) in url.query_pairs().enumerate() {
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|_| bad(&format!("`{name}` is not a number")))
            };
            match &*name {
                "heartbeat" => {
                    address.heartbeat =
                        u16::try_from(number()?).map_err(|_| bad("`heartbeat` is above 65535"))?;
                }
                "connection_timeout" => {
                    address.timeout = Duration::from_millis(number()?.max(1).into())
                }
                "cacertfile" => address.ca_file = Some(value.into_owned().into()),
                "certfile" => address.cert_file = Some(value.into_owned().into()),
                "keyfile" => address.key_file = Some(value.into_owned().into()),
                "server_name_indication" => address.server_name = Some(value.into_owned()),
                "name" => address.name = Some(value.into_owned()),
                "userfile" => address.user_file = Some(value.into_owned().into()),
                "passwordfile" => address.password_file = Some(value.into_owned().into()),
                // We choose these ourselves. URLs for other clients have them, and they do no harm.
                "channel_max" | "frame_max" => {}
                "auth_mechanism" if value.eq_ignore_ascii_case("plain") => {}
                "verify" if value == "verify_peer" => {}
                "verify" => {
                    return Err(bad(
                        "`verify` can only be verify_peer: an unverified server may be anyone",
                    ));
                }
                "auth_mechanism" if value.eq_ignore_ascii_case("external") => {
                    address.external = true;
                }
                "auth_mechanism" => {
                    return Err(bad("`auth_mechanism` can only be plain or external"));
                }
                _ => {
                    let which = match is_shown(&name, &value) {
                        true => format!("`{name}`"),
                        false => (index + 1).to_string(),
                    };
                    return Err(bad(&format!(
                        "parameter {which} is not known; there are {PARAMETERS}"
                    )));
                }
            }
        }
        let names_a_user = !url.username().is_empty() && user != "guest";
        if password.is_none() && names_a_user && address.password_file.is_none() {
            return Err(bad("there is a user and no password"));
        }
        if address.external && address.cert_file.is_none() {
            return Err(bad(
                "`auth_mechanism=external` takes a client certificate: `certfile` and `keyfile`",
            ));
        }
        if address.cert_file.is_some() != address.key_file.is_some() {
            return Err(bad("`certfile` and `keyfile` go together"));
        }
        if !tls && (address.ca_file.is_some() || address.cert_file.is_some()) {
            return Err(bad(
                "certificates are given but the scheme is amqp, not amqps",
            ));
        }
        Ok(address)
    }
}

impl Address {
    /// `host:port`, with brackets around an IPv6 address.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The login for a connection that is made now.
    ///
    /// # Errors
    /// [`ErrorKind::AuthenticationFailed`] if a file cannot be read.
    pub(super) async fn login(&self) -> Result<Login> {
        let said = async |file: &Option<PathBuf>, said: &str| match file {
            Some(file) => read(file).await,
            None => Ok(said.to_owned()),
        };
        Ok(Login::new(
            said(&self.user_file, &self.user).await?,
            said(&self.password_file, &self.password).await?,
        ))
    }

    /// The user of the URL.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The virtual host, decoded.
    #[must_use]
    pub fn vhost(&self) -> &str {
        &self.vhost
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "amqps" } else { "amqp" };
        let vhost =
            percent_encoding::utf8_percent_encode(&self.vhost, percent_encoding::NON_ALPHANUMERIC);
        write!(f, "{scheme}://{}@{}/{vhost}", self.user, self.authority())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// Whether the name of an unknown parameter is shown. What does not look like one may be part of a password that was not encoded.
fn is_shown(name: &str, value: &str) -> bool {
    let is_word = name.len() <= 40
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphabetic() || b"_-".contains(&byte));
    !name.is_empty() && is_word && !value.is_empty()
}

fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text)
        .decode_utf8()
        .ok()
        .map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Address {
        url.parse().unwrap()
    }

    #[test]
    fn what_is_left_out_is_assumed() {
        for url in [
            "amqp://localhost",
            "amqp://localhost/",
            "amqp://localhost/%2f",
            "amqp://guest:guest@localhost:5672/%2F",
        ] {
            assert_eq!(read(url), read("amqp://localhost"), "{url}");
        }
        assert_eq!(read("amqps://h").port, 5671);
        assert_eq!(read("amqp://h").vhost(), "/");
        assert_eq!(read("amqp://h/a%2fb").vhost(), "a/b");
        assert_eq!(read("amqp://a%40b:p%2f@h").user(), "a@b");
    }

    #[test]
    fn ipv6_hosts_are_hosts() {
        let address = read("amqp://u:p@[2001:db8::7]:5673");
        assert_eq!((address.host.as_str(), address.port), ("2001:db8::7", 5673));
        assert_eq!(address.authority(), "[2001:db8::7]:5673");
    }

    #[test]
    fn no_password_is_ever_shown() {
        let address = read("amqp://maria:s3cret@h/v");
        assert_eq!(address.to_string(), "amqp://maria@h:5672/v");
        assert!(!format!("{address:?}").contains("s3cret"));
        for url in [
            "amqp://maria:s3cret@h:99999",
            "http://maria:s3cret@h",
            "amqp://maria:s3cret@h/a/b",
            "amqp://maria:s3cret@h?colour=red",
            "amqp://h/v?heartbeat=5&s3cret=1",
            "amqp://h/v?s3cret",
            "amqp://maria:s3cret@[::1",
            "maria:s3cret@h",
        ] {
            let error = url.parse::<Address>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
            assert!(
                !format!("{error} {error:?}").contains("s3cret"),
                "{error:?}"
            );
        }
    }

    #[test]
    fn an_unknown_parameter_is_named_if_it_looks_like_one() {
        for (url, said) in [
            (
                "amqp://h?heartbeat=5&colour=red",
                "parameter `colour` is not known",
            ),
            (
                "amqp://h?channel-max=red",
                "parameter `channel-max` is not known",
            ),
            (
                "amqp://h?heartbeat=5&part_of_it",
                "parameter 2 is not known",
            ),
            ("amqp://h:12?part", "parameter 1 is not known"),
            ("amqp://h?p4rt=x", "parameter 1 is not known"),
        ] {
            let error = url.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(said), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_that_is_not_encoded_is_never_taken_for_a_host() {
        for url in [
            "amqp://guest:12/34@127.0.0.1",
            "amqp://guest:p@12/34@127.0.0.1",
            "amqp://guest:12?34@127.0.0.1",
            "amqp://guest:12#34@127.0.0.1",
            "amqp://12/34:x@h",
        ] {
            let error = url.parse::<Address>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("percent-encode"), "{url}: {shown}");
            assert!(
                !shown.contains("12") && !shown.contains("34"),
                "{url}: {shown}"
            );
        }
        let address = read("amqp://guest:p@ss%2fw%3f@h/v%40w");
        assert_eq!(
            (address.password.as_str(), address.vhost()),
            ("p@ss/w?", "v@w")
        );
    }

    #[test]
    fn what_is_no_url_says_so() {
        for text in ["", "nonsense", "localhost:5672"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("it has no scheme"), "{error}");
        }
    }

    #[test]
    fn rubbish_is_refused_with_a_sentence() {
        for url in [
            "",
            "localhost",
            "amqp://h:0",
            "amqp://maria@h",
            "amqp://h?heartbeat=x",
            "amqp://h?certfile=a",
            "amqp://h?cacertfile=a",
            "amqps://h?verify=verify_none",
        ] {
            assert_eq!(
                url.parse::<Address>().unwrap_err().kind(),
                ErrorKind::InvalidUrl,
                "{url}"
            );
        }
    }
}
