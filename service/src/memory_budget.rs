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
/// The largest budget that is derived from the memory of the machine or the container.
const MOST: u64 = 512 * MIB;
/// The smallest budget: one body that unpacks to a lot.
const LEAST: u64 = PACKED;
/// How long a body waits for memory. After that it is told without.
const PATIENCE: Duration = Duration::from_secs(1);
/// The bytes of a permit.
const UNIT: u64 = 1 << 10;

/// Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    permits: Arc<Semaphore>,
    all: u32,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(MOST)
    }
}

/// Memory that is reserved until it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved(OwnedSemaphorePermit);

impl Reserved {
    /// Keeps so many bytes, and gives the others back.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let unneeded = self.0.num_permits().saturating_sub(units(bytes) as usize);
        drop(self.0.split(unneeded));
    }
}

impl MemoryBudget {
    pub(crate) fn new(bytes: u64) -> Self {
        let all = units(bytes.max(LEAST));
        Self {
            permits: Arc::new(Semaphore::new(all as usize)),
            all,
        }
    }

    /// As much as a quarter of what this process may have: the rest is for bodies on their way to their queues.
    pub(crate) fn of_this_machine() -> Self {
        Self::new((memory_limit().unwrap_or(u64::MAX) / 4).min(MOST))
    }

    /// Memory to decode this body in. `None` if there is none within a second.
    pub(crate) async fn to_decode(
        &self,
        body: &[u8],
        is_declared_packed: bool,
    ) -> Option<Reserved> {
        let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
        let values = length.saturating_mul(VALUES).min(PACKED);
        let needed = match is_declared_packed || may_be_packed(body) {
            true => PACKED,
            false => values,
        };
        let wanted = Arc::clone(&self.permits).acquire_many_owned(units(needed).min(self.all));
        Some(Reserved(timeout(PATIENCE, wanted).await.ok()?.ok()?))
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
        let memory = MemoryBudget::new(200 * MIB);
        let packed = [0x1f, 0x8b, 8, 0];
        let first = memory.to_decode(&packed, false).await.unwrap();
        assert!(memory.to_decode(&packed, false).await.is_none());
        assert!(memory.to_decode(b"anything", true).await.is_none());
        let plain: Vec<_> = futures_util::future::join_all(
            (0..100).map(|_| memory.to_decode(b"{\"id\": 7}", false)),
        )
        .await;
        assert!(plain.iter().all(Option::is_some));
        drop(first);
        assert!(memory.to_decode(&packed, false).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_takes_only_what_it_needs() {
        let memory = MemoryBudget::new(0);
        let mut kept = Vec::new();
        for _ in 0..100 {
            let mut reserved = memory.to_decode(b"{}", false).await.unwrap();
            reserved.shrink(100);
            kept.push(reserved);
        }
        assert!(
            memory.to_decode(b"", true).await.is_none(),
            "something is kept"
        );
        kept.clear();
        assert!(memory.to_decode(b"", true).await.is_some());
    }

    #[test]
    fn this_machine_has_a_limit() {
        assert!(memory_limit().is_some_and(|limit| limit > 0));
    }
}
