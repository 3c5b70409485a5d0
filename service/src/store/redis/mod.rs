//! The store in Redis or Valkey.
//!
//! ```text
//! {name}:due     sorted set   id → when it is due, in ms; with a half while a replica has it in hand
//! {name}:kept    hash         id → when it was to be due, a nonce, head and body
//! {name}:counts  hash         tag of a line → how many messages wait for it
//! {name}:lines   hash         tag of a line → its name
//! {name}:mark    string       written when a message is kept that was there already
//! ```
//! Behind the name stands the virtual host. The braces put all into one slot, so that one script may touch them all. What one script does is one step, and the time that it
//! goes by is Redis' own. See `docs/redis-store.md` for what this store guarantees and what it cannot.

mod certificates;
mod configuration;
mod connection;
mod durability;
mod failure;
mod pool;
mod reply;
mod scripts;
mod secret;
mod server_check;
mod slot_lookup;

use std::{fmt, time::Duration};

use redis::{Cmd, Pipeline};
use tokio::sync::Notify;

pub use configuration::{Configuration, Mode, Tls};

use self::{durability::Durability, pool::Pool, reply::Reply, scripts::Script};
use super::{
    CancelResult, Claim, ClaimRequest, Destination, Exclusion, Id, Lease, ListedMessage, Listing,
    Page, Result, Store, StoreResult, StoredMessage, TakeResult, codec::milliseconds,
    due_dispatcher::IDLE,
};

/// Messages that one script keeps.
const BATCH: usize = 250;

/// Bytes that one script keeps, at least one message: a script blocks Redis, and a command above 1 GiB ends the connection.
const BATCH_BYTES: usize = 4 << 20;

/// Ids that one script looks at, where it may have to pass over some.
const SCAN: usize = 4_096;

/// Messages that one script makes due.
const HASTENED: usize = 1_000;

/// Most messages that are counted again in one script: it blocks Redis for about a second.
const RECOUNTED: usize = 1_000_000;

/// Connections for all that does not wait for a disk.
const BRIEF: usize = 4;

/// A store in Redis. It connects when it is first used, and again whenever it has to.
pub struct RedisStore {
    keys: [String; 5],
    lease: Duration,
    durability: Durability,
    /// Blocked by `WAITAOF` most of the time, so the others have connections of their own.
    keeping: Pool,
    brief: Pool,
    hurry: Notify,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// The keys of a store. The name of the virtual host is among them, because a queue of the same name in another is another queue.
fn keys(name: &str, vhost: &str) -> [String; 5] {
    // A brace would end the part that names the slot.
    let vhost = vhost
        .replace('%', "%25")
        .replace('{', "%7B")
        .replace('}', "%7D");
    ["due", "kept", "counts", "lines", "mark"].map(|key| format!("{{{name}:{vhost}}}:{key}"))
}

impl RedisStore {
    /// A store as configured, for the messages of one virtual host. Nothing is connected yet; [`Store::health`] tells whether it can
    /// be.
    ///
    /// # Errors
    /// [`Error::Configuration`](super::Error::Configuration) with the key to change.
    pub fn new(configuration: &Configuration, vhost: &str) -> Result<Self> {
        configuration.check()?;
        let keys = keys(&configuration.name, vhost);
        Ok(Self {
            lease: configuration.lease,
            durability: Durability::of(configuration),
            keeping: Pool::new(configuration, &keys[0], configuration.connections),
            brief: Pool::new(configuration, &keys[0], BRIEF),
            keys,
            hurry: Notify::new(),
        })
    }

    fn call(&self, script: &Script) -> Cmd {
        let mut call = redis::cmd("EVAL");
        call.arg(script.as_str())
            .arg(self.keys.len())
            .arg(&self.keys);
        call
    }

    /// Runs what may be run twice, if a connection turns out to be closed.
    async fn run(&self, call: Cmd) -> Result<Reply> {
        self.brief.ask(call, true).await
    }

    /// Runs what answers otherwise the second time: a lease that was extended is not ours by its old token.
    async fn run_once(&self, call: Cmd) -> Result<Reply> {
        self.brief.ask(call, false).await
    }

    /// Keeps messages and waits for their safety on the same connection: the answer of another says nothing about them.
    async fn keep_all(&self, batch: &[StoredMessage]) -> Result<Vec<StoreResult>> {
        let mut commands = Pipeline::new();
        for part in parts(batch) {
            let mut call = self.call(&scripts::KEEP);
            for kept in part {
                let draft = kept.draft();
                call.arg(kept.id().as_str())
                    .arg(kept.twin().as_str())
                    .arg(kept.nonce())
                    .arg(u8::from(kept.is_known_again()))
                    .arg(milliseconds(draft.delay))
                    .arg(kept.destination().key())
                    .arg(kept.head())
                    .arg(&draft.body);
            }
            commands.add_command(call);
        }
        let stores = commands.len();
        let waits = self.durability.commands();
        for wait in &waits {
            commands.add_command(wait.clone());
        }
        let (address, mut answers) = self.keeping.ask_all(&commands, true).await?;
        let waited = answers.split_off(stores);
        let mut arrivals = Vec::with_capacity(batch.len());
        for answer in answers {
            for flag in Reply::new(&address, answer)?.flags()? {
                arrivals.push(if flag {
                    StoreResult::New
                } else {
                    StoreResult::Known
                });
            }
        }
        self.durability.check(&address, &waited)?;
        if arrivals.len() == batch.len() {
            Ok(arrivals)
        } else {
            Err(failure::unexpected(&address))
        }
    }

    async fn leases(&self, mut call: Cmd, leases: &[Lease]) -> Result<Reply> {
        for lease in leases {
            call.arg(lease.id.as_str()).arg(&lease.token);
        }
        self.run_once(call).await
    }
}

/// Splits a batch by number and size.
fn parts(mut batch: &[StoredMessage]) -> Vec<&[StoredMessage]> {
    let mut parts = Vec::new();
    while !batch.is_empty() {
        let mut bytes = 0;
        let fits = batch
            .iter()
            .take(BATCH)
            .take_while(|kept| {
                bytes += kept.size();
                bytes <= BATCH_BYTES
            })
            .count()
            .max(1);
        let (part, rest) = batch.split_at(fits);
        parts.push(part);
        batch = rest;
    }
    parts
}

impl Store for RedisStore {
    async fn keep(&self, batch: &[StoredMessage]) -> Result<Vec<StoreResult>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let arrivals = self.keep_all(batch).await;
        if batch.iter().any(|kept| kept.draft().delay <= IDLE) {
            self.hurry.notify_one();
        }
        arrivals
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claim> {
        let scan = if request.exclusions.is_empty() {
            request.limit
        } else {
            SCAN
        };
        let mut call = self.call(&scripts::CLAIM);
        call.arg(request.limit)
            .arg(request.bytes)
            .arg(scan)
            .arg(milliseconds(self.lease));
        for Exclusion { destination, pause } in &request.exclusions {
            call.arg(destination.tag());
            match pause {
                Some(pause) => call.arg(milliseconds(*pause)),
                None => call.arg(-1),
            };
        }
        self.run(call).await?.claim()
    }

    async fn delete(&self, leases: &[Lease]) -> Result<Vec<bool>> {
        let reply = self.leases(self.call(&scripts::DELETE), leases).await?;
        reply.flags_of(leases.len())
    }

    async fn extend(&self, leases: &[Lease]) -> Result<Vec<Option<Lease>>> {
        let mut call = self.call(&scripts::MOVE);
        call.arg(milliseconds(self.lease)).arg(1);
        let (token, held) = self.leases(call, leases).await?.moved(leases.len())?;
        let extended = leases.iter().zip(held).map(|(lease, held)| {
            held.then(|| Lease {
                id: lease.id.clone(),
                token: token.clone(),
            })
        });
        Ok(extended.collect())
    }

    async fn release(&self, leases: &[Lease], pause: Duration) -> Result<Vec<bool>> {
        let mut call = self.call(&scripts::MOVE);
        call.arg(milliseconds(pause)).arg(0);
        Ok(self.leases(call, leases).await?.moved(leases.len())?.1)
    }

    async fn list(&self, page: &Page) -> Result<Listing> {
        let mut call = self.call(&scripts::LIST);
        let (score, id) = match &page.from {
            Some(last) => (last.score.as_str(), last.id.as_str()),
            None => ("", ""),
        };
        call.arg(score)
            .arg(id)
            .arg(page.limit.min(SCAN))
            .arg(SCAN)
            .arg(
                page.destination
                    .as_ref()
                    .map_or_else(String::new, Destination::tag),
            );
        self.run(call).await?.listing()
    }

    async fn find(&self, id: &Id) -> Result<Option<ListedMessage>> {
        let mut call = self.call(&scripts::FIND);
        call.arg(id.as_str());
        self.run(call).await?.found()
    }

    async fn cancel(&self, id: &Id) -> Result<CancelResult> {
        let mut call = self.call(&scripts::CANCEL);
        call.arg(id.as_str());
        self.run_once(call).await?.cancelled()
    }

    async fn take(&self, id: &Id) -> Result<TakeResult> {
        let mut call = self.call(&scripts::TAKE);
        call.arg(id.as_str()).arg(milliseconds(self.lease));
        self.run_once(call).await?.taken(id)
    }

    async fn hasten(&self, ids: &[Id]) -> Result<Vec<CancelResult>> {
        let mut answers = Vec::with_capacity(ids.len());
        for part in ids.chunks(HASTENED) {
            let mut call = self.call(&scripts::HASTEN);
            for id in part {
                call.arg(id.as_str());
            }
            answers.extend(self.run(call).await?.hastened(part.len())?);
        }
        Ok(answers)
    }

    async fn count(&self) -> Result<Vec<(Destination, u64)>> {
        let (total, counts) = self.run(self.call(&scripts::COUNT)).await?.counts()?;
        if counts.iter().map(|(_, count)| count).sum::<u64>() == total {
            return Ok(counts);
        }
        // A crash of the server may do this; see scripts/keep.lua.
        let mut call = self.call(&scripts::RECOUNT);
        call.arg(RECOUNTED);
        self.run(call).await?;
        Ok(self.run(self.call(&scripts::COUNT)).await?.counts()?.1)
    }

    async fn health(&self) -> Result<()> {
        if let Err(why) = self.brief.prove().await {
            // Those that keep messages prove the settings again before they keep any more.
            self.keeping.forget();
            return Err(why);
        }
        self.run(self.call(&scripts::PROBE)).await.map(drop)
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    async fn hurry(&self) {
        self.hurry.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::MessageDraft, *};

    fn kept(size: usize) -> StoredMessage {
        StoredMessage::new(MessageDraft {
            body: vec![0; size],
            ..MessageDraft::default()
        })
        .unwrap()
    }

    #[test]
    fn a_batch_is_split_by_number_and_size() {
        let sizes = |batch: &[StoredMessage]| {
            parts(batch)
                .iter()
                .map(|part| part.len())
                .collect::<Vec<_>>()
        };
        assert!(sizes(&[]).is_empty());
        assert_eq!(sizes(&vec![kept(1); BATCH * 2 + 1]), [BATCH, BATCH, 1]);
        let half = kept(BATCH_BYTES / 2);
        let (small, large) = (kept(1), kept(BATCH_BYTES * 3));
        let batch = [
            small.clone(),
            half.clone(),
            half,
            small.clone(),
            large,
            small,
        ];
        assert_eq!(sizes(&batch), [2, 2, 1, 1]);
    }

    #[test]
    fn all_keys_share_a_tag() {
        assert!(
            keys("shop", "/")
                .iter()
                .all(|key| key.starts_with("{shop:/}:"))
        );
        let odd = keys("shop", "{a}%7B");
        assert!(
            odd.iter()
                .all(|key| key.starts_with("{shop:%7Ba%7D%257B}:")),
            "{odd:?}"
        );
        assert_ne!(keys("shop", "{"), keys("shop", "%7B"));
    }
}
