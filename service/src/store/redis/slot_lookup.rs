//! Where the server is that has our slot. All keys of a store lie in one slot, so it is always one server, and commands need no
//! router: a connection to it is what `WAITAOF` needs, too, which speaks only of writes of its own connection.

use redis::{Value, from_redis_value};

use super::{
    configuration::{Configuration, Mode},
    connection::{Connection, RedisLogin, open},
    failure,
};
use crate::store::{Error, Result};

/// Connects to the master that has our slot.
pub(super) async fn reach(configuration: &Configuration, key: &str) -> Result<Connection> {
    let mut last = Error::Away("no address of Redis answers".to_owned());
    for (host, port) in configuration.hosts()? {
        let reached = match configuration.mode {
            Mode::Single => open(configuration, &host, port, RedisLogin::Server).await,
            Mode::Sentinel => by_sentinel(configuration, &host, port).await,
            Mode::Cluster => by_cluster(configuration, &host, port, key).await,
        };
        match reached {
            Ok(connection) => match connection.prove(configuration).await {
                Ok(()) => return Ok(connection),
                Err(why) => last = why,
            },
            Err(why) => last = why,
        }
    }
    Err(last)
}

async fn by_sentinel(configuration: &Configuration, host: &str, port: u16) -> Result<Connection> {
    let sentinel = open(configuration, host, port, RedisLogin::Sentinel).await?;
    let master = configuration.master.as_deref().unwrap_or_default();
    let mut asked = redis::cmd("SENTINEL");
    asked.arg("get-master-addr-by-name").arg(master);
    let address: Option<(String, u16)> = read(&sentinel, sentinel.ask(asked).await?)?;
    let Some((host, port)) = address else {
        return Err(Error::Configuration(format!(
            "the Sentinel at {} knows no master `{master}`; change `master`",
            sentinel.address()
        )));
    };
    open(configuration, &host, port, RedisLogin::Server).await
}

async fn by_cluster(
    configuration: &Configuration,
    host: &str,
    port: u16,
    key: &str,
) -> Result<Connection> {
    let node = open(configuration, host, port, RedisLogin::Server).await?;
    let mut asked = redis::cmd("CLUSTER");
    asked.arg("KEYSLOT").arg(key);
    let slot: u64 = read(&node, node.ask(asked).await?)?;
    let mut asked = redis::cmd("CLUSTER");
    asked.arg("SLOTS");
    let slots = node.ask(asked).await?;
    match owner(&slots, slot) {
        // A node that does not know its own name is where it was reached.
        Some((owner, port)) => {
            let owner = if owner.is_empty() { host } else { &owner };
            open(configuration, owner, port, RedisLogin::Server).await
        }
        None => Err(Error::Away(format!(
            "no node of the cluster has slot {slot} now, says the one at {}",
            node.address()
        ))),
    }
}

/// The master of a slot, by the answer of `CLUSTER SLOTS`.
fn owner(slots: &Value, slot: u64) -> Option<(String, u16)> {
    let Value::Array(ranges) = slots else {
        return None;
    };
    ranges.iter().find_map(|range| {
        let Value::Array(range) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(master),
            ..,
        ] = &range[..]
        else {
            return None;
        };
        let slot = i64::try_from(slot).ok()?;
        if !(*first..=*last).contains(&slot) {
            return None;
        }
        let [host, Value::Int(port), ..] = &master[..] else {
            return None;
        };
        let host: Option<String> = from_redis_value(host.clone()).ok()?;
        let host = host.filter(|host| host != "?").unwrap_or_default();
        Some((host, u16::try_from(*port).ok()?))
    })
}

fn read<T: redis::FromRedisValue>(from: &Connection, value: Value) -> Result<T> {
    from_redis_value(value).map_err(|_| failure::unexpected(from.address()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let master = vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())];
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            Value::Array(master),
        ])
    }

    #[test]
    fn the_master_of_a_slot_is_found() {
        let named = |name: &str| Value::BulkString(name.as_bytes().to_vec());
        let slots = Value::Array(vec![
            range(0, 99, named("a"), 1),
            range(100, 100, Value::Nil, 2),
            range(101, 200, named("?"), 3),
            range(201, 300, named("b"), 99_999),
        ]);
        assert_eq!(owner(&slots, 99), Some(("a".to_owned(), 1)));
        assert_eq!(owner(&slots, 100), Some((String::new(), 2)));
        assert_eq!(owner(&slots, 101), Some((String::new(), 3)));
        for missing in [201, 301, u64::MAX] {
            assert_eq!(owner(&slots, missing), None);
        }
        assert_eq!(owner(&Value::Nil, 1), None);
    }
}
