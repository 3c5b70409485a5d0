//! What was repaired in a message, for those who handle it later.
//!
//! lapin cannot pass a remark along with a delivery, so it is stored here, by channel and delivery tag of this connection. It is stored
//! before lapin sees the first byte of the frame, so it is there when the delivery arrives.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    ops::BitOrAssign,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// The most remarks. Beyond it the oldest is dropped, because nobody may ever ask for it.
const CAPACITY: usize = 65_536;

/// What was repaired in one message. `Display` is a remark for people: "message_id is not UTF-8".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repaired(u32);

impl Repaired {
    pub(super) const NAME: Self = Self(1 << 0);
    pub(super) const EXCHANGE: Self = Self(1 << 1);
    pub(super) const ROUTING_KEY: Self = Self(1 << 2);
    pub(super) const CONTENT_TYPE: Self = Self(1 << 3);
    pub(super) const CONTENT_ENCODING: Self = Self(1 << 4);
    pub(super) const CORRELATION_ID: Self = Self(1 << 5);
    pub(super) const REPLY_TO: Self = Self(1 << 6);
    pub(super) const EXPIRATION: Self = Self(1 << 7);
    pub(super) const MESSAGE_ID: Self = Self(1 << 8);
    pub(super) const TYPE: Self = Self(1 << 9);
    pub(super) const USER_ID: Self = Self(1 << 10);
    pub(super) const APP_ID: Self = Self(1 << 11);
    pub(super) const CLUSTER_ID: Self = Self(1 << 12);
    pub(super) const HEADER_KEY: Self = Self(1 << 13);
    pub(super) const TOO_DEEP: Self = Self(1 << 14);
    pub(super) const MALFORMED_TABLE: Self = Self(1 << 15);
    pub(super) const MALFORMED_PROPERTIES: Self = Self(1 << 16);
    pub(super) const OVERSIZE: Self = Self(1 << 17);

    /// Whether anything was repaired.
    pub(crate) fn any(self) -> bool {
        self != Self::default()
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOrAssign for Repaired {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

const REMARKS: [(Repaired, &str); 18] = [
    (Repaired::NAME, "a name is not UTF-8"),
    (Repaired::EXCHANGE, "the exchange name is not UTF-8"),
    (Repaired::ROUTING_KEY, "the routing key is not UTF-8"),
    (Repaired::CONTENT_TYPE, "content_type is not UTF-8"),
    (Repaired::CONTENT_ENCODING, "content_encoding is not UTF-8"),
    (Repaired::CORRELATION_ID, "correlation_id is not UTF-8"),
    (Repaired::REPLY_TO, "reply_to is not UTF-8"),
    (Repaired::EXPIRATION, "expiration is not UTF-8"),
    (Repaired::MESSAGE_ID, "message_id is not UTF-8"),
    (Repaired::TYPE, "type is not UTF-8"),
    (Repaired::USER_ID, "user_id is not UTF-8"),
    (Repaired::APP_ID, "app_id is not UTF-8"),
    (Repaired::CLUSTER_ID, "cluster_id is not UTF-8"),
    (Repaired::HEADER_KEY, "a header key is not UTF-8"),
    (Repaired::TOO_DEEP, "tables nested deeper than 32"),
    (
        Repaired::MALFORMED_TABLE,
        "a malformed table within the headers",
    ),
    (Repaired::MALFORMED_PROPERTIES, "malformed properties"),
    (
        Repaired::OVERSIZE,
        "headers above the frame size, the largest left out",
    ),
];

impl fmt::Display for Repaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (_, remark) in REMARKS.iter().filter(|(kind, _)| self.has(*kind)) {
            write!(f, "{separator}{remark}")?;
            separator = "; ";
        }
        Ok(())
    }
}

/// The remarks of one connection, shared by its guard and its consumers.
#[derive(Debug, Default)]
pub(crate) struct RepairLog {
    total: AtomicU64,
    /// The number of entries, so that a lookup takes no lock if there are none.
    waiting: AtomicUsize,
    entries: Mutex<Entries>,
}

type Key = (u16, u64);

#[derive(Debug, Default)]
struct Entries {
    by_delivery: HashMap<Key, Repaired>,
    /// Oldest first; also contains keys that were taken since.
    order: VecDeque<Key>,
}

impl RepairLog {
    /// What was repaired in this delivery; returned once. It costs a relaxed load while no repaired message waits for its consumer: the
    /// entry was made before lapin could make the delivery, so whoever has the delivery sees the entry.
    pub(crate) fn take(&self, channel: u16, delivery_tag: u64) -> Option<Repaired> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut entries = self.entries();
        let mended = entries.by_delivery.remove(&(channel, delivery_tag));
        self.settle(&mut entries);
        mended
    }

    /// How many messages, and frames that belong to no message, were repaired so far.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Stores what was repaired. A delivery tag of 0 is not a delivery, and only counts.
    pub(super) fn record(&self, channel: u16, delivery_tag: u64, mended: Repaired) {
        if delivery_tag == 0 {
            self.total.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut entries = self.entries();
        let key = (channel, delivery_tag);
        if let Some(known) = entries.by_delivery.get_mut(&key) {
            *known |= mended;
            return;
        }
        self.total.fetch_add(1, Ordering::Relaxed);
        if entries.order.len() == CAPACITY
            && let Some(oldest) = entries.order.pop_front()
        {
            entries.by_delivery.remove(&oldest);
        }
        entries.order.push_back(key);
        entries.by_delivery.insert(key, mended);
        self.settle(&mut entries);
    }

    /// A channel was opened: tags start at 1 again, and entries of old tags are useless.
    pub(super) fn forget(&self, channel: u16) {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut entries = self.entries();
        entries.by_delivery.retain(|key, _| key.0 != channel);
        entries.order.retain(|key| key.0 != channel);
        self.settle(&mut entries);
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, entries: &mut Entries) {
        let waiting = entries.by_delivery.len();
        if waiting == 0 {
            entries.order.clear();
        }
        self.waiting.store(waiting, Ordering::Relaxed);
    }
}
