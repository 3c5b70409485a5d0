//! The open connections of one client. All must lead to the same cluster: a message that is consumed at one broker and copied to another
//! would wait where nobody looks for it.
//!
//! The name of a cluster is only a hint: unless somebody sets it, it is the name of a node. If names differ, the broker is asked: an
//! exclusive queue of one connection is known to every other connection in the same cluster and virtual host (`docs/broker-facts.md`, 60).

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lapin::{
    Channel, ErrorKind as Cause,
    options::{QueueDeclareOptions, QueueDeleteOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{
    Addresses, Connection, OpenChannel,
    error_mapping::{Operation, refusal},
    timeouts::IMPATIENT,
    weak_connection::WeakConnection,
};
use crate::{Error, ErrorKind, Result};

/// How long it may take to find out whether two connections lead to the same cluster.
const ASKING: Duration = Duration::from_secs(10);
/// How long a node may take to open a channel, for which it needs no other node. A node that takes longer has stopped reading, and its
/// connection is useless.
const SILENT: Duration = Duration::from_secs(5);
/// The pauses before a queue that is not seen is looked for again: one node may hear of it a moment after another.
const LATER: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];
/// How long the queue lives if nobody deletes it.
const FORGOTTEN: i32 = 60_000;

/// The connections that are open.
#[derive(Clone, Default)]
pub(super) struct ClusterCheck(Arc<Mutex<Group>>);

#[derive(Default)]
struct Group {
    open: Vec<WeakConnection>,
    /// The cluster names that any of them has reported.
    names: BTreeSet<String>,
}

impl Group {
    fn forget_closed(&mut self) {
        self.open.retain(|line| !line.is_gone());
        if self.open.is_empty() {
            self.names.clear();
        }
    }

    fn take(&mut self, new: &Connection) {
        self.open.push(new.line());
        self.names.insert(new.server().cluster.clone());
    }

    /// One to ask, preferably one that the broker reads from.
    fn representative(&self) -> Option<WeakConnection> {
        let reads = self.open.iter().find(|line| !line.is_blocked());
        reads.or(self.open.first()).cloned()
    }
}

/// What is known of two connections.
enum Relation {
    SameCluster,
    /// Another one, or another virtual host.
    Other,
    /// It may not be asked for, for this reason.
    Unknown(String),
}

impl ClusterCheck {
    fn group(&self) -> MutexGuard<'_, Group> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. Clusters with the same name count as one. If names differ, the broker is asked; if that is not allowed, the
    /// connection is accepted with a warning.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`] if an open connection leads to another cluster; [`ErrorKind::Timeout`] if there is no answer;
    /// [`ErrorKind::ConnectionLost`].
    pub(super) async fn join(&self, new: &Connection, addresses: &Addresses) -> Result<()> {
        let name = &new.server().cluster;
        loop {
            let other = {
                let mut group = self.group();
                group.forget_closed();
                let stranger = !group.names.contains(name);
                match group.representative().filter(|_| stranger) {
                    Some(other) => other,
                    None => {
                        group.take(new);
                        return Ok(());
                    }
                }
            };
            let asked = async {
                if let Some(channel) = channel(&other).await? {
                    return relation(channel, &new.line()).await;
                }
                // A publishing connection is not read during an alarm, which only consuming ones can end.
                let double = double(&other, addresses).await?;
                let relation = relation(double.channel().await?, &new.line()).await;
                double.close().await;
                relation
            };
            let asked = timeout(ASKING, asked).await;
            let mut group = self.group();
            group.forget_closed();
            // All open ones lead to one cluster. After the one that was asked is gone, that may be another.
            if other.is_gone() {
                continue;
            }
            match asked {
                Ok(Ok(Relation::SameCluster)) => {}
                Ok(Ok(Relation::Other)) => return Err(mixed(name, &group.names)),
                Ok(Ok(Relation::Unknown(why))) => warn!(
                    %name,
                    others = ?group.names,
                    why,
                    "the hosts of the URL call their cluster differently, and whether it is one cannot be asked; make sure that it is, or \
                     give it one name (rabbitmqctl set_cluster_name)"
                ),
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        format!(
                            "whether the hosts of the URL are one cluster was not answered within {} s",
                            ASKING.as_secs()
                        ),
                    ));
                }
            }
            group.take(new);
            return Ok(());
        }
    }
}

fn mixed(name: &str, others: &BTreeSet<String>) -> Error {
    let others: Vec<_> = others.iter().map(String::as_str).collect();
    let others = others.join("`, `");
    Error::new(
        ErrorKind::InvalidUrl,
        format!(
            "the hosts of the URL are not one cluster: one says that it is `{name}`, and the others `{others}`; a message \
             that is consumed at one would be retried at the other; name the hosts of one cluster only"
        ),
    )
}

/// Opens another connection to the same host, with the login that is valid there now.
///
/// # Errors
/// Those of [`Connection::open`].
async fn double(other: &WeakConnection, addresses: &Addresses) -> Result<Connection> {
    let (address, place) = &*other.at;
    let login = addresses.login(address).await?;
    Connection::open_at(address, *place, IMPATIENT, &login, "hosts").await
}

/// A channel on an open connection, to ask on; `None` if the broker does not read from it.
///
/// # Errors
/// Those of a connection that is lost. A connection whose node is silent is hung up: it would keep the others away until its heartbeats are
/// missed.
async fn channel(other: &WeakConnection) -> Result<Option<OpenChannel>> {
    if other.is_blocked() {
        return Ok(None);
    }
    match timeout(SILENT, other.channel()).await {
        Ok(channel) => channel.map(Some),
        Err(_) if other.is_blocked() => Ok(None),
        Err(_) => {
            warn!("a node has stopped answering on an open connection, which is hung up");
            other.hang_up().await;
            Err(Error::new(
                ErrorKind::ConnectionLost,
                "a node has stopped answering",
            ))
        }
    }
}

/// Finds out whether two open connections lead to the same cluster, with a channel on one of them.
///
/// # Errors
/// Those of a connection that is lost, or cannot open a channel.
async fn relation(asked: OpenChannel, new: &WeakConnection) -> Result<Relation> {
    let mark = match mark(asked.lapin()).await {
        Ok(mark) => mark,
        Err(why) => return unknown(why),
    };
    for pause in LATER {
        let channel = new.channel().await?;
        match declare_marker_passive(channel.lapin(), mark.clone()).await {
            // A broker that treats it as ownerless knows it all the same.
            Ok(()) => {
                channel.close().await;
                forget(asked.lapin(), mark).await;
                asked.close().await;
                return Ok(Relation::SameCluster);
            }
            Err(why) => match soft(&why) {
                Some(AMQPSoftError::RESOURCELOCKED) => {
                    forget(asked.lapin(), mark).await;
                    asked.close().await;
                    return Ok(Relation::SameCluster);
                }
                Some(AMQPSoftError::NOTFOUND) => sleep(pause).await,
                _ => return unknown(why),
            },
        }
    }
    // It still exists, and is not seen from elsewhere.
    match declare_marker_passive(asked.lapin(), mark.clone()).await {
        Ok(()) => {
            forget(asked.lapin(), mark).await;
            asked.close().await;
            Ok(Relation::Other)
        }
        Err(why) => Err(refusal(&Operation::Opening, why)),
    }
}

/// What a refused question means: an error of the connection says nothing about clusters.
fn unknown(why: lapin::Error) -> Result<Relation> {
    match soft(&why) {
        Some(_) => Ok(Relation::Unknown(why.to_string())),
        None => Err(refusal(&Operation::Opening, why)),
    }
}

fn soft(why: &lapin::Error) -> Option<AMQPSoftError> {
    match why.kind() {
        Cause::ProtocolError(said) => match said.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft.clone()),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// Declares a queue that the broker names and that no other connection may use.
async fn mark(channel: &Channel) -> lapin::Result<ShortString> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-expires".into(), AMQPValue::LongInt(FORGOTTEN));
    let options = QueueDeclareOptions {
        exclusive: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(ShortString::default(), options, arguments);
    Ok(declared.await?.name().clone())
}

async fn declare_marker_passive(channel: &Channel, mark: ShortString) -> lapin::Result<()> {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let seen = channel.queue_declare(mark, options, FieldTable::default());
    seen.await.map(drop)
}

async fn forget(channel: &Channel, mark: ShortString) {
    // If that fails, it expires.
    let _ = channel
        .queue_delete(mark, QueueDeleteOptions::default())
        .await;
}

/// Which connections are open does not distinguish two sets of addresses.
impl PartialEq for ClusterCheck {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for ClusterCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Companions")
    }
}
