//! One connection through the proxy: bytes in both directions under the rules of the moment.

use super::Direction;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// What happens to bytes and connections now.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// Grows with each cut; a connection that sees it grow ends.
    pub(super) resets: u64,
    pub(super) closes: u64,
    pub(super) refuse: bool,
    to_broker: Way,
    to_client: Way,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    pub(super) stalled: bool,
    pub(super) delay: Duration,
    /// Grows with each cut that is to come in the middle of what flows.
    pub(super) cuts: u64,
    /// How many bytes still pass before it.
    pub(super) bytes: usize,
}

impl Way {
    /// What outlives [`Rules::resume`]: a cut that has been asked for comes.
    fn resumed(self) -> Self {
        Way {
            cuts: self.cuts,
            bytes: self.bytes,
            ..Way::default()
        }
    }
}

impl Rules {
    pub(super) fn each(&mut self, direction: Direction, change: impl Fn(&mut Way)) {
        if direction.covers(Direction::ToBroker) {
            change(&mut self.to_broker);
        }
        if direction.covers(Direction::ToClient) {
            change(&mut self.to_client);
        }
    }

    pub(super) fn resume(&mut self) {
        self.refuse = false;
        self.each(Direction::Both, |way| *way = way.resumed());
    }

    fn way(&self, direction: Direction) -> Way {
        if direction == Direction::ToBroker {
            self.to_broker
        } else {
            self.to_client
        }
    }
}

pub(super) struct Link {
    pub(super) client: TcpStream,
    pub(super) broker: TcpStream,
    pub(super) rules: watch::Receiver<Rules>,
    /// The rules when the connection came; what was cut before does not concern it.
    pub(super) since: Rules,
    /// With which codes the broker has closed connections.
    pub(super) closes: Arc<Mutex<Vec<u16>>>,
}

enum End {
    Closed,
    Reset,
}

impl Link {
    /// Until one side closes or the rules end it.
    pub(super) async fn run(mut self) {
        let (from_client, to_client) = self.client.split();
        let (from_broker, to_broker) = self.broker.split();
        let end = tokio::select! {
            ended = pump(from_client, to_broker, Direction::ToBroker, self.rules.clone(), None) => as_seen(ended),
            ended = pump(from_broker, to_client, Direction::ToClient, self.rules.clone(), Some(self.closes)) => as_seen(ended),
            end = ended_by_rule(self.rules.clone(), &self.since) => end,
        };
        if matches!(end, End::Reset) {
            reset(&self.client);
            reset(&self.broker);
        }
    }
}

/// Makes the socket's end, when it is dropped, a reset.
pub(super) fn reset(socket: &TcpStream) {
    // A socket that the peer has reset already cannot be told.
    let _ = socket.set_zero_linger();
}

fn as_seen(ended: io::Result<()>) -> End {
    if ended.is_ok() {
        End::Closed
    } else {
        End::Reset
    }
}

async fn ended_by_rule(mut rules: watch::Receiver<Rules>, since: &Rules) -> End {
    let end = |now: &Rules| now.resets > since.resets || now.closes > since.closes;
    let changed = rules.wait_for(end).await;
    // No rules any more means that the proxy is gone.
    if changed.is_ok_and(|now| now.resets == since.resets) {
        End::Closed
    } else {
        End::Reset
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    direction: Direction,
    mut rules: watch::Receiver<Rules>,
    closes: Option<Arc<Mutex<Vec<u16>>>>,
) -> io::Result<()> {
    let mut piece = vec![0; 64 * 1024];
    let mut close_codes = CloseCodes::default();
    let mut left = BytesUntilCut::new(&rules.borrow().way(direction));
    loop {
        // While stalled nothing is read, so that the sender's buffers fill as they would with a dead peer.
        flowing(&mut rules, direction).await;
        let read = from.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        if let Some(closes) = &closes {
            let found = close_codes.in_next(&piece[..read]);
            closes.lock().expect("no connection panicked").extend(found);
        }
        let delay = rules.borrow().way(direction).delay;
        tokio::time::sleep(delay).await;
        flowing(&mut rules, direction).await; // the stall may have come while we waited for bytes
        let passing = left.pass(&rules.borrow().way(direction), read);
        to.write_all(&piece[..passing]).await?;
        if passing < read {
            // A clean close, so that the first half of what was cut surely arrives.
            return to.shutdown().await;
        }
    }
}

/// The method `connection.close` (10, 50).
const CONNECTION_CLOSE: [u8; 4] = [0, 10, 0, 50];

/// Finds the codes of `connection.close` in what a broker sends, whose pieces may end anywhere.
#[derive(Default)]
struct CloseCodes {
    /// The end of the last piece, in which a method may have begun.
    tail: Vec<u8>,
}

impl CloseCodes {
    fn in_next(&mut self, piece: &[u8]) -> Vec<u16> {
        const LENGTH: usize = CONNECTION_CLOSE.len() + 2;
        self.tail.extend_from_slice(piece);
        let found = self
            .tail
            .windows(LENGTH)
            .filter(|bytes| bytes.starts_with(&CONNECTION_CLOSE))
            .map(|bytes| u16::from_be_bytes([bytes[4], bytes[5]]))
            .collect();
        let behind = self.tail.len().saturating_sub(LENGTH - 1);
        self.tail.drain(..behind);
        found
    }
}

/// How many bytes may still pass before a cut that was asked for.
struct BytesUntilCut {
    cuts: u64,
    bytes: usize,
}

impl BytesUntilCut {
    /// For a connection that opens under this rule: cuts asked for earlier do not concern it.
    fn new(way: &Way) -> Self {
        BytesUntilCut {
            cuts: way.cuts,
            bytes: usize::MAX,
        }
    }

    /// How many of `read` bytes pass; fewer than all means that the cut has come.
    fn pass(&mut self, way: &Way, read: usize) -> usize {
        if way.cuts > self.cuts {
            *self = BytesUntilCut {
                cuts: way.cuts,
                bytes: way.bytes,
            };
        }
        let passing = read.min(self.bytes);
        if self.bytes != usize::MAX {
            self.bytes -= passing;
        }
        passing
    }
}

async fn flowing(rules: &mut watch::Receiver<Rules>, direction: Direction) {
    if rules
        .wait_for(|rules| !rules.way(direction).stalled)
        .await
        .is_err()
    {
        std::future::pending::<()>().await; // the proxy is gone, and ends this from outside
    }
}
