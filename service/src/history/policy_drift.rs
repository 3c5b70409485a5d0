//! Whether the services of this virtual host decide by the same policy: which of them takes a message is chance.
//!
//! Each says its policy's digest in the stream again and again, so whoever falls silent is gone, without a clock that all agree on.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use retryrmq::terminal_escape;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Event, HistoryAction, who};

/// How often a service says its digest.
pub(super) const BEAT: Duration = Duration::from_secs(20);
/// A file that is rolled out reaches one service after the other: only what lasts is a difference.
const LASTED: Duration = Duration::from_secs(60);
/// Who says nothing for so long is gone.
const GONE: Duration = Duration::from_secs(70);
/// The stream also has what was said in the past. Clocks may differ by less.
const PAST: Duration = Duration::from_secs(600);
/// Anybody who may write to the stream may write anything.
const MOST: usize = 100;

/// This service and the others.
#[derive(Debug)]
pub(super) struct PolicyDrift {
    /// This service, another name after each start.
    me: String,
    pub(super) differ: Gauge,
    known: Mutex<PeerState>,
}

#[derive(Debug, Default)]
struct PeerState {
    mine: Option<(String, Instant)>,
    others: BTreeMap<String, Peer>,
}

#[derive(Debug)]
struct Peer {
    who: String,
    digest: String,
    /// When it was first heard with this digest.
    since: Instant,
    heard: Instant,
}

impl Default for PolicyDrift {
    fn default() -> Self {
        Self {
            me: format!("{:016x}", fastrand::u64(..)),
            differ: Gauge::default(),
            known: Mutex::default(),
        }
    }
}

impl PolicyDrift {
    /// What this service says, now that it decides by the policy with this digest.
    pub(super) fn says(&self, digest: &str) -> Event {
        let mut known = self.known();
        if known.mine.as_ref().is_none_or(|(said, _)| said != digest) {
            known.mine = Some((digest.to_owned(), Instant::now()));
        }
        Event {
            at: Timestamp::now(),
            who: who(),
            event: HistoryAction::Policy,
            replica: Some(self.me.clone()),
            policy: Some(digest.to_owned()),
            ..Event::default()
        }
    }

    /// Hears what any of them says.
    pub(super) fn hear(&self, event: &Event, clock: Timestamp) {
        let (HistoryAction::Policy, Some(replica), Some(digest)) =
            (event.event, &event.replica, &event.policy)
        else {
            return;
        };
        if *replica == self.me || clock.duration_since(event.at).unsigned_abs() > PAST {
            return;
        }
        let now = Instant::now();
        let mut known = self.known();
        known.forget(now);
        if let Some(peer) = known.others.get_mut(replica) {
            if peer.digest != *digest {
                peer.digest.clone_from(digest);
                peer.since = now;
            }
            peer.heard = now;
        } else if known.others.len() < MOST {
            let peer = Peer {
                who: terminal_escape::line(&event.who)
                    .chars()
                    .take(100)
                    .collect(),
                digest: digest.clone(),
                since: now,
                heard: now,
            };
            known.others.insert(replica.clone(), peer);
        }
    }

    /// Looks whether all decide alike, and says in the log when that changes.
    pub(super) fn compare(&self) {
        let other = self.known().differing(Instant::now());
        let differed = self.differ.set(i64::from(other.is_some())) != 0;
        match other {
            Some(other) if !differed => warn!(
                other,
                "another service in this virtual host uses a different policy, so the outcome of a message depends on which of them takes it: give both the same [defaults], [[rules]] and [delayed], or stop one of them"
            ),
            None if differed => {
                info!("no other service in this virtual host uses a different policy any more")
            }
            _ => {}
        }
    }

    fn known(&self) -> MutexGuard<'_, PeerState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerState {
    /// Who decides otherwise, and has said so for long enough. It counts what was said, and not the silence of one that has ended.
    fn differing(&mut self, now: Instant) -> Option<String> {
        self.forget(now);
        let (mine, since) = self.mine.as_ref()?;
        let differs = |peer: &&Peer| {
            let both = peer.since.max(*since);
            peer.digest != *mine && peer.heard.saturating_duration_since(both) >= LASTED
        };
        let peer = self.others.values().find(differs)?;
        Some(peer.who.clone())
    }

    fn forget(&mut self, now: Instant) {
        self.others
            .retain(|_, peer| now.saturating_duration_since(peer.heard) < GONE);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    struct Two {
        here: PolicyDrift,
        there: PolicyDrift,
    }

    impl Two {
        fn new() -> Self {
            let (here, there) = (PolicyDrift::default(), PolicyDrift::default());
            Self { here, there }
        }

        /// A beat of both. Whether `here` sees a difference.
        async fn beat(&self, mine: &str, theirs: Option<&str>) -> bool {
            self.here.hear(&self.here.says(mine), Timestamp::now());
            if let Some(theirs) = theirs {
                self.here.hear(&self.there.says(theirs), Timestamp::now());
            }
            self.here.compare();
            let differ = self.here.differ.get() == 1;
            advance(BEAT).await;
            differ
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_difference_that_lasts_is_one_and_it_is_over_when_they_agree() {
        let two = Two::new();
        for differs in [false, false, false, true, true] {
            assert_eq!(two.beat("a", Some("b")).await, differs);
        }
        assert!(!two.beat("b", Some("b")).await);
        // A file that reaches one before the other.
        assert!(!two.beat("c", Some("b")).await);
        assert!(!two.beat("c", Some("b")).await);
        assert!(!two.beat("c", Some("c")).await);
        for differs in [false, false, false, true] {
            assert_eq!(two.beat("c", Some("d")).await, differs);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_ended_differs_no_more_and_one_that_ends_in_a_roll_out_never_did() {
        let two = Two::new();
        for differs in [false, false, false, true] {
            assert_eq!(two.beat("a", Some("b")).await, differs);
        }
        for _ in 0..3 {
            two.beat("a", None).await;
        }
        assert!(!two.beat("a", None).await, "it is silent for too long");
        let two = Two::new();
        assert!(!two.beat("a", Some("b")).await);
        for _ in 0..5 {
            assert!(!two.beat("a", None).await, "nothing said that it lasts");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_in_the_past_and_what_strangers_write_is_bounded() {
        let here = PolicyDrift::default();
        here.says("a");
        let mut old = PolicyDrift::default().says("b");
        old.at = Timestamp::UNIX_EPOCH;
        here.hear(&old, Timestamp::now());
        here.hear(&Event::default(), Timestamp::now());
        assert!(here.known().others.is_empty());
        for _ in 0..MOST + 5 {
            here.hear(&PolicyDrift::default().says("b"), Timestamp::now());
        }
        assert_eq!(here.known().others.len(), MOST);
    }
}
