//! Whether a Redis is set up so that it loses nothing that it has confirmed. Asked at each connection, because a Redis that comes back
//! may be another.

use redis::{Pipeline, Value, from_redis_value};

use super::{configuration::Configuration, failure};
use crate::store::{Error, Result};

/// The oldest version that has `WAITAOF`.
const OLDEST: (u32, u32) = (7, 2);

/// The oldest Redis that answers `WAITAOF` only after a sync while it syncs once a second. Those before, and all of Valkey up to 9.1,
/// answer once it is written (<https://github.com/redis/redis/pull/13793>).
const TRUE_EVERYSEC: (u32, u32) = (8, 0);

/// Asks for what [`check`] reads. `CONFIG` last: many providers forbid it, and most can be seen without.
pub(super) fn questions() -> Pipeline {
    let mut questions = Pipeline::new();
    questions
        .cmd("INFO")
        .arg(&["server", "memory", "persistence", "replication"])
        .cmd("CONFIG")
        .arg("GET")
        .arg("appendfsync");
    questions
}

/// Judges the answers.
///
/// # Errors
/// [`Error::Unfit`] with what to change, or [`Error::Away`] for a replica: its master is elsewhere.
pub(super) fn check(
    configuration: &Configuration,
    address: &str,
    answers: Vec<Value>,
) -> Result<()> {
    let mut answers = answers.into_iter();
    let info: String = match answers.next() {
        Some(Value::ServerError(why)) => return Err(failure::refused(address, &why)),
        Some(value) => from_redis_value(value).map_err(|_| failure::unexpected(address))?,
        None => return Err(failure::unexpected(address)),
    };
    let sync = match answers.next() {
        // Forbidden, or unknown.
        None | Some(Value::ServerError(_)) => None,
        Some(value) => {
            let pair: Vec<String> =
                from_redis_value(value).map_err(|_| failure::unexpected(address))?;
            pair.into_iter().nth(1)
        }
    };
    let server = ServerInfo::read(&info);
    server.takes_messages(address)?;
    if configuration.fsync {
        let assumed = configuration.appendfsync_always.then_some("always");
        server.syncs_when_it_says(address, sync.as_deref().or(assumed))?;
    }
    Ok(())
}

/// What a server says of itself.
struct ServerInfo<'a> {
    version: &'a str,
    valkey: bool,
    role: Option<&'a str>,
    aof: Option<&'a str>,
    loading: Option<&'a str>,
    policy: Option<&'a str>,
}

impl<'a> ServerInfo<'a> {
    fn read(info: &'a str) -> Self {
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        Self {
            // Valkey tells here which Redis it can stand in for.
            version: field("redis_version").unwrap_or("nothing"),
            valkey: field("server_name") == Some("valkey") || field("valkey_version").is_some(),
            role: field("role"),
            aof: field("aof_enabled"),
            loading: field("loading"),
            policy: field("maxmemory_policy"),
        }
    }

    fn is_since(&self, oldest: (u32, u32)) -> bool {
        let mut parts = self.version.split('.').map(|part| part.parse().ok());
        matches!((parts.next(), parts.next()), (Some(Some(major)), Some(Some(minor))) if (major, minor) >= oldest)
    }

    fn takes_messages(&self, address: &str) -> Result<()> {
        if !self.is_since(OLDEST) {
            return unfit(
                address,
                &format!(
                    "is version {}, which cannot say whether a message is on its disk; use Redis 7.2 or later, or Valkey",
                    self.version
                ),
            );
        }
        if self.role != Some("master") {
            return Err(Error::Away(format!(
                "Redis at {address} is a replica, which takes no messages"
            )));
        }
        // Until it has read its file, it also says that it has none.
        if self.loading == Some("1") {
            return Err(Error::Away(format!(
                "Redis at {address} is still reading its file"
            )));
        }
        if self.aof != Some("1") {
            return unfit(
                address,
                "has no append-only file, so that a restart would lose messages; set `appendonly yes`",
            );
        }
        match self.policy {
            Some("noeviction") => Ok(()),
            policy => unfit(
                address,
                &format!(
                    "has `maxmemory-policy {}`, by which it may throw messages away; set `maxmemory-policy noeviction`",
                    policy.unwrap_or("unknown")
                ),
            ),
        }
    }

    fn syncs_when_it_says(&self, address: &str, sync: Option<&str>) -> Result<()> {
        let tells_the_truth = !self.valkey && self.is_since(TRUE_EVERYSEC);
        match sync {
            Some("always") => Ok(()),
            Some("everysec") | None if tells_the_truth => Ok(()),
            Some("no") => unfit(
                address,
                "has `appendfsync no` and never syncs by itself; set `appendfsync always`, or `fsync = false` in [store.redis] if a \
                 power cut may lose messages",
            ),
            None => unfit(
                address,
                "does not tell how it syncs its append-only file, because `CONFIG GET` is forbidden; allow that, or set \
                 `appendfsync_always = true` in [store.redis] if you know that it has `appendfsync always`",
            ),
            Some(_) => unfit(
                address,
                "has `appendfsync everysec`, with which this version confirms before it has synced; set `appendfsync always`, use \
                 Redis 8, or set `fsync = false` in [store.redis] if a power cut may lose the last two seconds",
            ),
        }
    }
}

fn unfit(address: &str, what: &str) -> Result<()> {
    Err(Error::Unfit(format!("Redis at {address} {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:8.0.2\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n\
                        # Persistence\r\naof_enabled:1\r\n# Replication\r\nrole:master\r\n";

    fn judged(
        configuration: &Configuration,
        info: &str,
        sync: Option<&str>,
    ) -> std::result::Result<(), String> {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let mut answers = vec![text(info)];
        if let Some(sync) = sync {
            answers.push(Value::Array(vec![text("appendfsync"), text(sync)]));
        }
        check(configuration, "a:1", answers).map_err(|why| why.to_string())
    }

    #[test]
    fn what_would_lose_messages_is_named() {
        let usual = Configuration::default();
        for (from, to, words) in [
            ("8.0.2", "7.0.15", "version 7.0.15"),
            ("8.0.2", "6.2.14", "version 6.2.14"),
            ("8.0.2", "next", "version next"),
            ("redis_version:8.0.2", "", "version nothing"),
            ("aof_enabled:1", "aof_enabled:0", "appendonly yes"),
            (
                "noeviction",
                "allkeys-lru",
                "`maxmemory-policy allkeys-lru`",
            ),
            (
                "maxmemory_policy:noeviction",
                "",
                "`maxmemory-policy unknown`",
            ),
            ("role:master", "role:slave", "is a replica"),
            (
                "aof_enabled:1",
                "loading:1\r\naof_enabled:0",
                "still reading",
            ),
        ] {
            let why = judged(&usual, &GOOD.replace(from, to), Some("always")).unwrap_err();
            assert!(why.contains(words) && why.contains("a:1"), "{why}");
        }
    }

    #[test]
    fn a_sync_once_a_second_is_believed_of_few() {
        let usual = Configuration::default();
        let unsynced = Configuration {
            fsync: false,
            ..Configuration::default()
        };
        let told = Configuration {
            appendfsync_always: true,
            ..Configuration::default()
        };
        let valkey = GOOD.replace(
            "8.0.2",
            "7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2",
        );
        for old in [
            GOOD.replace("8.0.2", "7.4.1"),
            GOOD.replace("8.0.2", "7.2.5"),
            valkey,
        ] {
            assert_eq!(judged(&usual, &old, Some("always")), Ok(()));
            let why = judged(&usual, &old, Some("everysec")).unwrap_err();
            assert!(why.contains("`appendfsync always`"), "{why}");
            let why = judged(&usual, &old, None).unwrap_err();
            assert!(why.contains("`appendfsync_always = true`"), "{why}");
            assert_eq!(judged(&told, &old, None), Ok(()));
            assert!(
                judged(&told, &old, Some("everysec")).is_err(),
                "what is seen counts"
            );
            assert_eq!(judged(&unsynced, &old, Some("everysec")), Ok(()));
        }
        for sync in [Some("always"), Some("everysec"), None] {
            assert_eq!(judged(&usual, GOOD, sync), Ok(()));
            assert_eq!(judged(&usual, &GOOD.replace("8.0.2", "10.0"), sync), Ok(()));
        }
        assert!(
            judged(&usual, GOOD, Some("no"))
                .unwrap_err()
                .contains("appendfsync no")
        );
    }

    #[test]
    fn what_answers_otherwise_is_no_redis() {
        let usual = Configuration::default();
        for answers in [vec![], vec![Value::Nil], vec![Value::Array(vec![])]] {
            assert!(check(&usual, "a:1", answers).is_err());
        }
    }
}
