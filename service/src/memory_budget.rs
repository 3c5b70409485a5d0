//! How much memory the bodies of messages may take while they are decoded and told of, those of all messages together. Any publisher chooses what
//! is in a body, and 31 KB of it may unpack to 32 MiB.

use std::{fs, sync::Arc, time::Duration};

use retryrmq_operator::decoding::may_be_packed;
use serde_json::Value;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

const MIB: u64 = 1 << 20;
/// What a body may take that unpacks to as much as the decoder allows, beside itself.
const PACKED: u64 = 128 * MIB;
/// How many bytes the values of a body may take for each of its own.
const VALUES: u64 = 40;
/// For bodies that are decoded and cannot unpack to much.
const PLAIN: u64 = 32 * MIB;
/// For what was decoded, until it is told.
const KEPT: u64 = 32 * MIB;
/// The largest budget that is derived from the memory of the machine or the container.
const MOST: u64 = 512 * MIB;
/// The smallest budget: one body that unpacks to a lot, and the others beside it.
const LEAST: u64 = PACKED + PLAIN + KEPT;
/// How many bodies wait to be unpacked. Each holds up its message.
const WAITING: usize = 4;
/// How long a body waits for memory. After that it is told without.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// The bytes of a permit.
const UNIT: u64 = 1 << 10;

/// Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    /// Bodies that may unpack to a lot, by their number: those that are decoded, and those that wait for it as well.
    packed: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    plain: Arc<Semaphore>,
    kept: Arc<Semaphore>,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(MOST)
    }
}

/// Memory that is reserved until it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl MemoryBudget {
    pub(crate) fn new(bytes: u64) -> Self {
        let packed = (bytes.max(LEAST) - PLAIN - KEPT) / PACKED;
        let packed = usize::try_from(packed).unwrap_or(usize::MAX);
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            packed: semaphore(packed.min(Semaphore::MAX_PERMITS / 2)),
            waiting: semaphore(packed.min(Semaphore::MAX_PERMITS / 2) + WAITING),
            plain: semaphore(units(PLAIN) as usize),
            kept: semaphore(units(KEPT) as usize),
        }
    }

    /// As much as a quarter of what this process may have: the rest is for bodies on their way to their queues.
    pub(crate) fn of_this_machine() -> Self {
        Self::new((memory_limit().unwrap_or(u64::MAX) / 4).min(MOST))
    }

    /// Memory to decode this body in. `None` if there is none within a second, or if others wait for it already.
    pub(crate) async fn to_decode(
        &self,
        body: &[u8],
        is_declared_packed: bool,
    ) -> Option<Reserved> {
        let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
        let values = length.saturating_mul(VALUES);
        let permits = if is_declared_packed || values > PLAIN || may_be_packed(body) {
            let turn = Arc::clone(&self.waiting).try_acquire_owned().ok()?;
            let packed = Arc::clone(&self.packed).acquire_owned();
            [
                Some(turn),
                Some(timeout(TIME_LIMIT, packed).await.ok()?.ok()?),
            ]
        } else {
            let plain = Arc::clone(&self.plain).acquire_many_owned(units(values));
            [Some(timeout(TIME_LIMIT, plain).await.ok()?.ok()?), None]
        };
        Some(Reserved { _permits: permits })
    }

    /// Memory for what was decoded, if there is some.
    pub(crate) fn to_keep(&self, value: &Value) -> Option<Reserved> {
        let bytes = u64::try_from(weigh(value)).unwrap_or(u64::MAX);
        let kept = Arc::clone(&self.kept).try_acquire_many_owned(units(bytes));
        Some(Reserved {
            _permits: [Some(kept.ok()?), None],
        })
    }
}

/// About how much memory a value takes.
pub(crate) fn weigh(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weigh).sum(),
        Value::Object(map) => map
            .iter()
            .map(|(name, value)| name.len() + 40 + weigh(value))
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    inner + size_of::<Value>()
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT))
        .unwrap_or(u32::MAX)
        .max(1)
}

/// The memory that this process may have: of its control group (versions 2 and 1), or of the machine.
fn memory_limit() -> Option<u64> {
    let number = |path: String| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        match controllers {
            "" => number(format!("/sys/fs/cgroup{path}/memory.max"))
                // In a container, its own group is the root.
                .or_else(|| number("/sys/fs/cgroup/memory.max".to_owned())),
            "memory" => number(format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"))
                .or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned())),
            _ => None,
        }
    });
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    limits.chain(machine.map(|kib| kib << 10)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bodies_that_may_unpack_to_a_lot_are_decoded_one_after_the_other() {
        let memory = MemoryBudget::new(0);
        let packed = [0x1f, 0x8b, 8, 0];
        let first = memory.to_decode(&packed, false).await.unwrap();
        let began = tokio::time::Instant::now();
        let more = (0..100).map(|_| memory.to_decode(b"anything", true));
        let more = futures_util::future::join_all(more).await;
        assert!(more.iter().all(Option::is_none));
        assert_eq!(
            began.elapsed(),
            TIME_LIMIT,
            "only a few wait, and at the same time"
        );
        // Others do not wait behind them.
        let plain = (0..100).map(|_| memory.to_decode(b"{\"id\": 7}", false));
        let plain = futures_util::future::join_all(plain).await;
        assert!(plain.iter().all(Option::is_some));
        let large = vec![b' '; 1 << 20];
        assert!(memory.to_decode(&large, false).await.is_none());
        drop(first);
        assert!(memory.to_decode(&packed, false).await.is_some());
        assert!(memory.to_decode(&large, false).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_larger_budget_decodes_more_at_the_same_time() {
        let memory = MemoryBudget::new(MOST);
        let all = (0..10).map(|_| memory.to_decode(b"", true));
        let all = futures_util::future::join_all(all).await;
        assert_eq!(all.iter().flatten().count(), 3);
    }

    #[test]
    fn what_is_kept_has_its_own_limit() {
        let memory = MemoryBudget::new(0);
        let large = Value::from("x".repeat(10 << 20));
        let kept: Vec<_> = (0..10).filter_map(|_| memory.to_keep(&large)).collect();
        assert_eq!(kept.len(), 3);
        assert!(memory.to_keep(&Value::from("small")).is_some());
        drop(kept);
        assert!(memory.to_keep(&large).is_some());
    }

    #[test]
    fn this_machine_has_a_limit() {
        assert!(memory_limit().is_some_and(|limit| limit > 0));
    }
}
