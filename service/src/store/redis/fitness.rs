//! Whether a Redis is set up so that it loses nothing that it has confirmed. Asked at each connection, because a Redis that comes back
//! may be another.

use crate::store::{Error, Result};

/// The oldest version that has `WAITAOF`.
const OLDEST: (u32, u32) = (7, 2);

/// Asks for the sections that [`judge`] reads. No `CONFIG`, which many providers forbid.
pub(super) const SECTIONS: [&str; 4] = ["server", "memory", "persistence", "replication"];

/// Judges the answer of `INFO`.
///
/// # Errors
/// [`Error::Unfit`] with what to change, or [`Error::Away`] for a replica: its master is elsewhere.
pub(super) fn judge(address: &str, info: &str) -> Result<()> {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let unfit = |what: String| Err(Error::Unfit(format!("Redis at {address} {what}")));
    // Valkey tells in `redis_version` which Redis it can stand in for.
    let version = field("redis_version").unwrap_or("nothing");
    if parse(version).is_none_or(|version| version < OLDEST) {
        return unfit(format!(
            "is version {version}, which cannot say whether a message is on its disk; use Redis 7.2 or later, or Valkey"
        ));
    }
    if field("role") != Some("master") {
        return Err(Error::Away(format!(
            "Redis at {address} is a replica, which takes no messages"
        )));
    }
    if field("aof_enabled") != Some("1") {
        return unfit(
            "has no append-only file, so that a restart would lose messages; set `appendonly yes`"
                .to_owned(),
        );
    }
    match field("maxmemory_policy") {
        Some("noeviction") => Ok(()),
        policy => unfit(format!(
            "has `maxmemory-policy {}`, by which it may throw messages away; set `maxmemory-policy noeviction`",
            policy.unwrap_or("unknown")
        )),
    }
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n\
                        # Persistence\r\naof_enabled:1\r\n# Replication\r\nrole:master\r\n";

    #[test]
    fn what_would_lose_messages_is_named() {
        assert_eq!(judge("a:1", GOOD), Ok(()));
        for (from, to, words) in [
            ("7.2.4", "7.0.15", "version 7.0.15"),
            ("7.2.4", "6.2.14", "version 6.2.14"),
            ("7.2.4", "next", "version next"),
            ("redis_version:7.2.4", "", "version nothing"),
            ("aof_enabled:1", "aof_enabled:0", "appendonly yes"),
            ("noeviction", "allkeys-lru", "`maxmemory-policy allkeys-lru`"),
            ("maxmemory_policy:noeviction", "", "`maxmemory-policy unknown`"),
            ("role:master", "role:slave", "is a replica"),
        ] {
            let why = judge("a:1", &GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(why.contains(words) && why.contains("a:1"), "{why}");
        }
        for version in ["7.4.1", "8.0.2", "10.0"] {
            assert_eq!(judge("a:1", &GOOD.replace("7.2.4", version)), Ok(()));
        }
    }
}
