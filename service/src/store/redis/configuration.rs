//! What an operator writes about the Redis to use.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

use super::secret::Secret;
use crate::store::{Error, Result};

/// Where Redis is, and how safe a message has to be there before its original is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// How Redis is run.
    pub mode: Mode,
    /// `host:port`, one or more: the server, the Sentinels, or some nodes of the cluster. An IPv6 address is in brackets.
    pub addresses: Vec<String>,
    /// The name of the master that the Sentinels watch.
    pub master: Option<String>,
    /// The number of the database; 0 in a cluster.
    pub database: u32,
    /// All keys begin with `{name:VHOST}:`. All services with one
    /// name and virtual host on one Redis share their messages: replicas do, and two RabbitMQ must not.
    pub name: String,
    /// The user; without it the default user.
    pub username: Option<String>,
    /// A file whose first line is the password. It is read again at each connection.
    pub password_file: Option<PathBuf>,
    /// The environment variable that holds the password.
    pub password_env: Option<String>,
    /// The user at the Sentinels.
    pub sentinel_username: Option<String>,
    /// A file whose first line is the password at the Sentinels.
    pub sentinel_password_file: Option<PathBuf>,
    /// The environment variable that holds the password at the Sentinels.
    pub sentinel_password_env: Option<String>,
    /// Present: connections are TLS, and the certificate of the server must be good for its address.
    pub tls: Option<Tls>,
    /// A message is safe once Redis has synced it to its own disk (`WAITAOF 1 …`). Off: once it is in the memory of Redis.
    pub fsync: bool,
    /// You know that Redis has `appendfsync always`, though it does not say so because `CONFIG GET` is forbidden.
    pub appendfsync_always: bool,
    /// A message is safe once as many replicas have it (`WAIT`).
    pub replicas: u32,
    /// Those replicas must have synced it to their disks, too (`WAITAOF … N`).
    pub replicas_fsync: bool,
    /// How long to wait for any answer of Redis, such as `"5s"`. A Redis that syncs once a second needs more than two.
    #[serde(deserialize_with = "duration")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// How long a replica has a claimed message before it is due for the others again. It is extended while the broker is asked.
    #[serde(deserialize_with = "duration")]
    #[schemars(with = "String")]
    pub lease: Duration,
    /// How many batches can wait to be synced at once; each has a connection of its own.
    pub connections: usize,
}

/// How Redis is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One server, at the first of the addresses that answers as a master.
    #[default]
    Single,
    /// A master that Sentinels at the addresses know.
    Sentinel,
    /// A cluster that the addresses are nodes of.
    Cluster,
}

/// What TLS needs beyond the system's authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// A PEM file with the authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// A PEM file with the certificate to show.
    pub certificate_file: Option<PathBuf>,
    /// A PEM file with the key of that certificate.
    pub key_file: Option<PathBuf>,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            mode: Mode::Single,
            addresses: vec!["localhost:6379".to_owned()],
            master: None,
            database: 0,
            name: "retryrmq".to_owned(),
            username: None,
            password_file: None,
            password_env: None,
            sentinel_username: None,
            sentinel_password_file: None,
            sentinel_password_env: None,
            tls: None,
            fsync: true,
            appendfsync_always: false,
            replicas: 0,
            replicas_fsync: false,
            timeout: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            connections: 4,
        }
    }
}

fn duration<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    retryrmq::parse_duration(&text).map_err(serde::de::Error::custom)
}

impl Configuration {
    /// Checks what needs no Redis.
    ///
    /// # Errors
    /// [`Error::Configuration`] with the key to change. A password is never in it.
    pub fn check(&self) -> Result<()> {
        self.hosts()?;
        let second = Duration::from_secs(1);
        let wrong = match self {
            _ if self.name.is_empty() || self.name.contains(['{', '}', ':']) => {
                "`name` needs at least one letter, and has no braces and no colon: the keys of the store begin with it"
            }
            _ if self.mode == Mode::Sentinel && self.master.is_none() => {
                "`master` is missing: the name under which the Sentinels know the master"
            }
            _ if self.mode != Mode::Sentinel && self.master.is_some() => {
                "`master` is for `mode = \"sentinel\"` only"
            }
            _ if self.mode == Mode::Cluster && self.database != 0 => {
                "`database` is 0 in a cluster, which has no other"
            }
            _ if self.password_file.is_some() && self.password_env.is_some() => {
                "give `password_file` or `password_env`, not both"
            }
            _ if self.sentinel_password_file.is_some() && self.sentinel_password_env.is_some() => {
                "give `sentinel_password_file` or `sentinel_password_env`, not both"
            }
            // Without a password nobody logs in, and the default user would do the work.
            _ if self.username.is_some()
                && self.password_file.is_none()
                && self.password_env.is_none() =>
            {
                "`username` needs `password_file` or `password_env`"
            }
            _ if self.sentinel_username.is_some()
                && self.sentinel_password_file.is_none()
                && self.sentinel_password_env.is_none() =>
            {
                "`sentinel_username` needs `sentinel_password_file` or `sentinel_password_env`"
            }
            _ if self.replicas_fsync && self.replicas == 0 => {
                "`replicas_fsync` needs `replicas`: how many of them have to sync"
            }
            _ if !(second..=second * 600).contains(&self.lease) => "`lease` is from 1s to 10m",
            _ if !(second / 10..=second * 60).contains(&self.timeout) => {
                "`timeout` is from 100ms to 1m"
            }
            _ if !(1..=64).contains(&self.connections) => "`connections` is from 1 to 64",
            Self { tls: Some(tls), .. }
                if tls.certificate_file.is_some() != tls.key_file.is_some() =>
            {
                "`certificate_file` and `key_file` go together"
            }
            _ => return Ok(()),
        };
        Err(Error::Configuration(format!("[store.redis] {wrong}")))
    }

    /// The addresses, as host and port.
    pub(super) fn hosts(&self) -> Result<Vec<(String, u16)>> {
        if self.addresses.is_empty() {
            return Err(Error::Configuration(
                "[store.redis] `addresses` is empty: write at least one `host:port`".to_owned(),
            ));
        }
        let hosts = self.addresses.iter().enumerate().map(|(at, address)| {
            host_and_port(address).ok_or_else(|| {
                // Not quoted: people write passwords into addresses.
                Error::Configuration(format!(
                    "[store.redis] number {} of `addresses` is not `host:port`; user, password, TLS and database have keys of \
                     their own",
                    at + 1
                ))
            })
        });
        hosts.collect()
    }

    pub(super) fn secret(&self) -> Secret<'_> {
        Secret {
            username: self.username.as_deref(),
            file: self.password_file.as_deref(),
            variable: self.password_env.as_deref(),
        }
    }

    pub(super) fn sentinel_secret(&self) -> Secret<'_> {
        Secret {
            username: self.sentinel_username.as_deref(),
            file: self.sentinel_password_file.as_deref(),
            variable: self.sentinel_password_env.as_deref(),
        }
    }
}

fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let fits = |letter: char| letter.is_alphanumeric() || ".-_:%".contains(letter);
    (!host.is_empty() && host.chars().all(fits)).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> std::result::Result<Configuration, String> {
        let read: Configuration = toml::from_str(text).map_err(|why| why.to_string())?;
        read.check().map_err(|why| why.to_string())?;
        Ok(read)
    }

    #[test]
    fn the_defaults_are_safe() {
        let read = read("").unwrap();
        assert_eq!(read, Configuration::default());
        assert!(read.fsync);
    }

    #[test]
    fn every_key_is_read() {
        let read = read(
            r#"
            mode = "sentinel"
            addresses = ["one:26379", "10.0.0.2:26379", "[::1]:26379"]
            master = "main"
            database = 3
            name = "shop"
            username = "serve"
            password_file = "/run/secrets/redis"
            sentinel_username = "watch"
            sentinel_password_env = "SENTINEL"
            fsync = false
            appendfsync_always = true
            replicas = 1
            replicas_fsync = true
            timeout = "2s"
            lease = "1m"
            connections = 2
            [tls]
            ca_file = "ca.pem"
            certificate_file = "c.pem"
            key_file = "k.pem"
            "#,
        )
        .unwrap();
        assert_eq!(read.hosts().unwrap()[2], ("::1".to_owned(), 26379));
        assert_eq!(read.lease, Duration::from_secs(60));
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_key_to_change() {
        for (text, words) in [
            ("colour = 1", "unknown field"),
            ("mode = \"ring\"", "unknown variant"),
            ("addresses = []", "`addresses`"),
            ("addresses = [\"a\"]", "not `host:port`"),
            ("addresses = [\"a:1\", \"::1:2\"]", "number 2"),
            ("addresses = [\"a:0\"]", "not `host:port`"),
            ("name = \"{a}\"", "`name`"),
            ("name = \"\"", "`name`"),
            ("name = \"a:b\"", "`name`"),
            ("mode = \"sentinel\"", "`master` is missing"),
            ("master = \"m\"", "`master` is for"),
            ("mode = \"cluster\"\ndatabase = 1", "`database`"),
            (
                "password_env = \"A\"\npassword_file = \"b\"",
                "`password_file`",
            ),
            ("username = \"a\"", "`username` needs"),
            ("sentinel_username = \"a\"", "`sentinel_username` needs"),
            ("replicas_fsync = true", "`replicas`"),
            ("lease = \"10ms\"", "`lease`"),
            ("timeout = \"1ms\"", "`timeout`"),
            ("timeout = \"soon\"", "soon"),
            ("connections = 0", "`connections`"),
            ("[tls]\nkey_file = \"k\"", "`certificate_file`"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_not_repeated() {
        for address in [
            "redis://user:hunter2@host:6379",
            "user:hunter2@host:6379",
            "host:6379/hunter2",
        ] {
            let why = read(&format!("addresses = [\"{address}\"]")).unwrap_err();
            assert!(!why.contains("hunter2"), "{why}");
        }
    }

    #[test]
    fn there_is_a_schema_of_every_key() {
        let schema = schemars::schema_for!(Configuration).to_value().to_string();
        for key in ["addresses", "replicas_fsync", "lease", "password_file"] {
            assert!(schema.contains(&format!("\"{key}\"")), "{key}");
        }
    }
}
