//! The end of a delivery: acknowledged, given back, or the broker's again.

use std::sync::Arc;

use super::{
    super::{Token, session::Return},
    Copying, Engine, Phase,
};
use crate::{retry::returns_as_copy, telemetry::Event};

impl Engine {
    /// Done: acknowledged with the next flush, and remembered in case the acknowledgement gets lost.
    pub(super) fn release(&mut self, token: Token) {
        let Some(entry) = self.entries.remove(token) else {
            return;
        };
        self.counters.outstanding.dec();
        // Such a copy is the same attempt of the same message: remembered, its redelivery would never run.
        if !matches!(&entry.phase, Phase::Copying(copying) if matches!(copying.event, Event::Detoured { .. } | Event::Requeued { .. }))
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

    /// Back to the queue without any handler having begun with it, so that it is not blamed for that.
    pub(super) async fn put_back(&mut self, token: Token) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        let uncounted = self.client.server().at_least(4, 3);
        let copy = self.options.dlx
            && returns_as_copy(
                &received.state,
                &self.options.limits,
                self.counting,
                uncounted,
            );
        if !copy {
            return self.give_back(token, Return::Unstarted).await;
        }
        let event = Event::Requeued {
            queue: self.queue(),
            message_id: received.message_id(),
        };
        let properties = self.stamp(&received).detour(received.state.crashes, None);
        let routing_key = self.queue();
        self.counters.requeued.inc();
        self.copy(
            token,
            Copying {
                exchange: String::new(),
                routing_key,
                properties,
                mandatory: true,
                event,
                tries: 0,
            },
        );
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
