//! Originals that wait for their copies while nothing can be published, in an alarm for example.
//!
//! A quorum queue counts each time that an original goes back, by us or by `consumer_timeout`, and past its delivery limit it drops the
//! message or dead-letters it. Consuming should go on all the same: where messages raised the alarm, consuming them ends it. So originals go
//! back in time, one by one; and when one of them has been counted often, nothing is consumed until publishing works again.

use tracing::{info, warn};

use super::{
    super::Token,
    Command, Commands, Engine, Now, Return,
    copies::LONGEST_WAY,
    delivery_state::{PendingCopy, Phase},
};
use crate::{
    mutants::{self, Mutant},
    retry::is_near_its_limit,
};

impl Engine {
    /// Whether it matters now whether publishing makes progress.
    pub(crate) fn watches_copies(&self) -> bool {
        self.stall_check.is_some()
    }

    /// Whether publishing makes no progress.
    pub(crate) fn set_stalled(&mut self, stalled: bool) {
        self.stalled = stalled;
    }

    /// A copy was published: looks after it in time.
    pub(super) fn watch_copy(&mut self, now: Now) {
        let soon = now.at + self.consumer_timeout.way(LONGEST_WAY);
        self.stall_check.get_or_insert(soon);
    }

    /// Gives back originals whose copies are held up, before the broker takes them, and stops consuming before that happens too often.
    pub(super) fn check_stalled_originals(&mut self, now: Now, out: &mut Commands) {
        if self.stall_check.is_none_or(|look| now.at < look) {
            return;
        }
        self.stall_check = None;
        if !self.stalled && std::mem::take(&mut self.halted) {
            info!(queue = %self.name, "publishing works again; taking messages");
        }
        let session = self.channel.as_ref().map(|channel| channel.session);
        let way = self.consumer_timeout.way(LONGEST_WAY);
        let is_held_up = |pending_copy: &PendingCopy| {
            pending_copy.under_way && now.at >= pending_copy.published + way
        };
        let (mut late, mut is_near, mut waits) = (Vec::new(), false, false);
        for (token, entry) in self.entries.iter() {
            let Phase::Copying(pending_copy) = &entry.phase else {
                continue;
            };
            if Some(entry.session) != session || !pending_copy.under_way {
                continue;
            }
            waits = true;
            if is_held_up(pending_copy) {
                is_near |= is_near_its_limit(&entry.received.state);
                if now.at >= entry.since + self.consumer_timeout.longest() {
                    late.push((entry.tag, token));
                }
            }
        }
        if waits || self.halted {
            self.watch_copy(now);
        }
        // Classic queues count nothing.
        let is_left_alone = self.is_classic || self.drain.is_some();
        if !self.stalled || is_left_alone || mutants::has(Mutant::ConsumesOn) {
            return;
        }
        if is_near && !self.nack_is_uncounted && !std::mem::replace(&mut self.halted, true) {
            warn!(
                queue = %self.name,
                "nothing can be published (a memory or disk alarm?), and failed messages wait for their copies: their queue has counted so many \
                 deliveries of them that nothing is consumed from it until publishing works again; past its delivery limit it would drop them"
            );
        }
        self.requeue_originals(late, out);
    }

    /// Without their copies: they would be published when the alarm is over, in addition to those of the next attempts.
    fn requeue_originals(&mut self, mut late: Vec<(u64, Token)>, out: &mut Commands) {
        late.sort_unstable();
        for (_, token) in late {
            out.add(Command::Withdraw { token });
            self.give_back(token, Return::Unstarted, out);
        }
    }
}
