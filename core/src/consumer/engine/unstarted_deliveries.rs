//! Messages that wait for a handler for longer than the broker lets them be held.

use super::{Command, Commands, Engine, Now, delivery_state::Phase};

impl Engine {
    /// Takes messages back that no handler has begun in time. Nobody knows here which those are; who has them does.
    pub(super) fn requeue_expired_unstarted(&mut self, now: Now, out: &mut Commands) {
        if self.unstarted_check.is_none_or(|look| now.at < look) {
            return;
        }
        self.unstarted_check = None;
        let Some(session) = self.channel.as_ref().map(|channel| channel.session) else {
            return;
        };
        let longest = self.consumer_timeout.longest();
        let (mut late, mut next) = (Vec::new(), None::<super::EngineTime>);
        for (token, entry) in self.entries.iter() {
            if entry.session != session || !matches!(entry.phase, Phase::Out) {
                continue;
            }
            let until = entry.since + longest;
            if until <= now.at {
                late.push(token);
            } else {
                next = Some(next.map_or(until, |next| next.min(until)));
            }
        }
        // Those that are looked at again run, or are back by then. A look at many is not repeated every moment.
        self.unstarted_check = next.map(|next| next.max(now.at + longest / 4));
        if !late.is_empty() && self.drain.is_none() {
            out.add(Command::RecallThese { tokens: late });
        }
    }
}
