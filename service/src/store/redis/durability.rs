//! How safe a message must be before its original is acknowledged.

use std::time::Duration;

use redis::{Cmd, Value};

use super::{configuration::Configuration, failure};
use crate::store::{Error, Result};

/// What is waited for after a write, and what has to come of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Durability {
    local: bool,
    replicas: i64,
    replicas_sync: bool,
    timeout: Duration,
}

impl Durability {
    pub(super) fn of(configuration: &Configuration) -> Self {
        Self {
            local: configuration.fsync,
            replicas: configuration.replicas.into(),
            replicas_sync: configuration.replicas_fsync,
            timeout: configuration.timeout,
        }
    }

    fn synced_replicas(self) -> i64 {
        if self.replicas_sync { self.replicas } else { 0 }
    }

    /// What to send behind the write, on its connection.
    pub(super) fn commands(self) -> Vec<Cmd> {
        let timeout = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let mut commands = Vec::new();
        if self.local || self.synced_replicas() > 0 {
            let mut wait = redis::cmd("WAITAOF");
            wait.arg(u8::from(self.local))
                .arg(self.synced_replicas())
                .arg(timeout);
            commands.push(wait);
        }
        if self.replicas > self.synced_replicas() {
            let mut wait = redis::cmd("WAIT");
            wait.arg(self.replicas).arg(timeout);
            commands.push(wait);
        }
        commands
    }

    /// Checks the counts: both commands answer after their time, too, with what came of it by then.
    pub(super) fn check(self, address: &str, answers: &[Value]) -> Result<()> {
        let less = |reached: i64, wanted: i64, what: &str| {
            (reached < wanted).then(|| {
                Error::NotDurable(format!(
                    "{reached} of {wanted} {what} have a batch of messages after {} ms, says Redis at {address}",
                    self.timeout.as_millis()
                ))
            })
        };
        for answer in answers {
            let wrong = match answer {
                Value::ServerError(why) => Some(failure::refused(address, why)),
                // WAITAOF
                Value::Array(counts) => match counts[..] {
                    [Value::Int(local), Value::Int(replicas)] => {
                        less(local, self.local.into(), "disks of the master")
                            .or_else(|| less(replicas, self.synced_replicas(), "disks of replicas"))
                    }
                    _ => Some(failure::unexpected(address)),
                },
                // WAIT
                Value::Int(replicas) => less(*replicas, self.replicas, "replicas"),
                _ => Some(failure::unexpected(address)),
            };
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durability(local: bool, replicas: u32, replicas_sync: bool) -> Durability {
        Durability::of(&Configuration {
            fsync: local,
            replicas,
            replicas_fsync: replicas_sync,
            ..Configuration::default()
        })
    }

    fn sent(durability: Durability) -> Vec<String> {
        let texts = durability.commands().into_iter().map(|command| {
            let words = command.args_iter().map(|word| match word {
                redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            });
            words.collect::<Vec<_>>().join(" ")
        });
        texts.collect()
    }

    #[test]
    fn what_is_configured_is_waited_for() {
        for (local, replicas, synced, commands) in [
            (true, 0, false, vec!["WAITAOF 1 0 5000"]),
            (false, 0, false, vec![]),
            (true, 2, false, vec!["WAITAOF 1 0 5000", "WAIT 2 5000"]),
            (true, 2, true, vec!["WAITAOF 1 2 5000"]),
            (false, 2, true, vec!["WAITAOF 0 2 5000"]),
            (false, 2, false, vec!["WAIT 2 5000"]),
        ] {
            assert_eq!(sent(durability(local, replicas, synced)), commands);
        }
    }

    #[test]
    fn every_count_is_checked() {
        let aof = |local, replicas| Value::Array(vec![Value::Int(local), Value::Int(replicas)]);
        let check = |durability: Durability, answers: &[Value]| {
            durability
                .check("a:1", answers)
                .map_err(|why| why.to_string())
        };
        let strict = durability(true, 2, true);
        assert_eq!(check(strict, &[aof(1, 2)]), Ok(()));
        assert_eq!(check(strict, &[aof(1, 3)]), Ok(()));
        assert!(
            check(strict, &[aof(0, 2)])
                .unwrap_err()
                .contains("0 of 1 disks of the master")
        );
        assert!(
            check(strict, &[aof(1, 1)])
                .unwrap_err()
                .contains("1 of 2 disks of replicas")
        );
        let both = durability(true, 2, false);
        assert_eq!(check(both, &[aof(1, 0), Value::Int(2)]), Ok(()));
        assert!(
            check(both, &[aof(1, 0), Value::Int(1)])
                .unwrap_err()
                .contains("1 of 2 replicas")
        );
        assert!(check(both, &[aof(0, 9), Value::Int(2)]).is_err());
        for odd in [
            Value::Nil,
            Value::Okay,
            Value::Array(vec![]),
            aof(1, 2).clone(),
        ] {
            let fine = odd == aof(1, 2);
            assert_eq!(check(strict, &[odd]).is_ok(), fine);
        }
    }
}
