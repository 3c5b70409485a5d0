//! The end of a delivery: acknowledged, given back, or the broker's again.

use super::{
    super::{Token, session::Return},
    Engine, Phase,
};
use crate::telemetry::Event;

impl Engine {
    /// Done: acknowledged with the next flush, and remembered in case the acknowledgement gets lost.
    pub(super) fn release(&mut self, token: Token) {
        let Some(entry) = self.entries.remove(token) else {
            return;
        };
        self.counters.outstanding.dec();
        // A detour's copy is the same attempt of the same message: remembered, its redelivery would never run.
        if !matches!(&entry.phase, Phase::Copying(copying) if matches!(copying.event, Event::Detoured { .. }))
        {
            self.memory.remember(&entry.received);
        }
        self.suspect_ended(token);
        match &mut self.session {
            Some(session) if session.id == entry.session => session.ack(entry.tag),
            _ => {
                self.counters.stale.inc();
            }
        }
    }

    /// Back to the queue, or to its dead-letter route.
    pub(super) async fn give_back(&mut self, token: Token, how: Return) {
        let Some(entry) = self.entries.remove(token) else {
            return;
        };
        self.counters.outstanding.dec();
        self.suspect_ended(token);
        if matches!(how, Return::Requeue | Return::Unstarted) {
            self.counters.requeued.inc();
        }
        if let Some(session) = &mut self.session
            && session.id == entry.session
        {
            let given = session.give_back(entry.tag, how).await;
            self.survive(given);
        }
    }

    /// Belongs to a lost channel: the broker sends it again.
    pub(super) fn forget(&mut self, token: Token) {
        if self.entries.remove(token).is_some() {
            self.counters.outstanding.dec();
            self.suspect_ended(token);
        }
    }

    pub(super) fn suspect_ended(&mut self, token: Token) {
        if self.suspect == Some(token) {
            (self.suspect, self.cautious) = (None, true);
        }
    }
}
