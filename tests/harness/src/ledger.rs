//! The ledger of a test in which things are killed: what was published must have been handled, be parked, or still be
//! in a queue.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts messages by id. Clones write into the same ledger.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<LedgerEntries>>);

#[derive(Debug, Default)]
struct LedgerEntries {
    published: BTreeSet<String>,
    handled: BTreeMap<String, u64>,
    parked: BTreeMap<String, u64>,
    queued: BTreeMap<String, u64>,
}

/// The balance of a [`Ledger`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages whose publication was confirmed.
    pub published: usize,
    /// Messages that were handled at least once.
    pub handled: usize,
    /// Messages that were parked at least once.
    pub parked: usize,
    /// Messages that still are in a queue.
    pub queued: usize,
    /// How often a message was seen that had been seen before: handled again, or parked after it was handled, …
    pub duplicates: u64,
    /// Messages that were seen but whose publication was not recorded, such as one whose confirm was lost.
    pub unrecorded: usize,
    /// Messages that were confirmed and are nowhere.
    pub lost: Vec<String>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// The broker has confirmed this message. To be called after the confirm, not before.
    pub fn published(&self, id: impl Into<String>) {
        self.ledger().published.insert(id.into());
    }

    /// A handler has succeeded with this message.
    pub fn handled(&self, id: impl Into<String>) {
        *self.ledger().handled.entry(id.into()).or_default() += 1;
    }

    /// This message was found in a parking queue.
    pub fn parked(&self, id: impl Into<String>) {
        *self.ledger().parked.entry(id.into()).or_default() += 1;
    }

    /// This message was found in a work queue or retry queue at the end.
    pub fn queued(&self, id: impl Into<String>) {
        *self.ledger().queued.entry(id.into()).or_default() += 1;
    }

    /// Whether every confirmed message has been handled or parked, that is, whether to stop waiting.
    pub fn is_settled(&self) -> bool {
        self.unsettled().is_empty()
    }

    /// The confirmed messages that have been neither handled nor parked so far.
    pub fn unsettled(&self) -> Vec<String> {
        let ledger = self.ledger();
        let settled =
            |id: &&String| ledger.handled.contains_key(*id) || ledger.parked.contains_key(*id);
        let all = ledger.published.iter();
        all.filter(|id| !settled(id)).cloned().collect()
    }

    /// The balance.
    pub fn report(&self) -> Report {
        let ledger = self.ledger();
        let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, count) in ledger
            .handled
            .iter()
            .chain(&ledger.parked)
            .chain(&ledger.queued)
        {
            *seen.entry(id).or_default() += count;
        }
        let lost = ledger
            .published
            .iter()
            .filter(|id| !seen.contains_key(id.as_str()))
            .cloned()
            .collect();
        Report {
            published: ledger.published.len(),
            handled: ledger.handled.len(),
            parked: ledger.parked.len(),
            queued: ledger.queued.len(),
            duplicates: seen.values().map(|count| count - 1).sum(),
            unrecorded: seen
                .keys()
                .filter(|id| !ledger.published.contains(**id))
                .count(),
            lost,
        }
    }

    /// Prints the balance.
    ///
    /// # Panics
    /// When a confirmed message is nowhere, or when there was none to lose.
    pub fn assert_nothing_lost(&self, what: &str) -> Report {
        let report = self.report();
        println!("{what}: {report}");
        assert!(
            report.published > 0,
            "{what}: nothing was published, so nothing was tried"
        );
        assert!(
            report.lost.is_empty(),
            "{what}: {} of {} lost: {:?}",
            report.lost.len(),
            report.published,
            report.lost
        );
        report
    }

    fn ledger(&self) -> MutexGuard<'_, LedgerEntries> {
        // A test that failed elsewhere still wants its balance.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            published,
            handled,
            parked,
            queued,
            duplicates,
            unrecorded,
            lost,
        } = self;
        write!(
            f,
            "{published} published, {handled} handled, {parked} parked, {queued} queued, {duplicates} duplicates, \
             {unrecorded} unrecorded, {} lost",
            lost.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_nowhere_is_lost_and_one_that_comes_twice_is_a_duplicate() {
        let ledger = Ledger::new();
        for id in ["a", "b", "c", "d"] {
            ledger.published(id);
        }
        ledger.handled("a");
        ledger.handled("a");
        ledger.parked("b");
        ledger.queued("b");
        ledger.handled("stranger");
        assert!(!ledger.is_settled());
        let report = ledger.report();
        assert_eq!(report.lost, ["c", "d"]);
        assert_eq!((report.duplicates, report.unrecorded), (2, 1));
        assert_eq!((report.handled, report.parked, report.queued), (2, 1, 1));
    }

    #[test]
    #[should_panic(expected = "1 of 1 lost: [\"a\"]")]
    fn a_lost_message_fails_the_test() {
        let ledger = Ledger::new();
        ledger.published("a");
        ledger.assert_nothing_lost("here");
    }

    #[test]
    #[should_panic(expected = "nothing was tried")]
    fn empty_books_prove_nothing() {
        Ledger::new().assert_nothing_lost("here");
    }
}
