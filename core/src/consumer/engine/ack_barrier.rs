//! Whether the broker has read what was settled.
//!
//! If a message crashes the process before an acknowledgement was written, the acknowledged message comes again. If its copy is already in
//! its queue, it exists twice then; among many crashing messages, every crash would add more. So before a message runs that may crash its
//! consumer, the broker is asked something. It reads a channel's methods in order, so its answer shows that it has read the
//! acknowledgements.

use super::{Command, Commands, Engine, Now, sessions::Channel};

/// The questions on the current channel and their answers, by number.
#[derive(Debug, Default)]
pub(super) struct AckBarrier {
    asked: u64,
    answered: u64,
    /// The original of a detour was settled since the last question.
    unread: bool,
}

impl AckBarrier {
    /// The original of a detour is settled, and its copy will come.
    pub(super) fn settled_a_detour(&mut self) {
        self.unread = true;
    }

    /// Whether no original can come again beside its copy.
    pub(super) fn are_done(&self) -> bool {
        !self.unread && self.answered == self.asked
    }

    pub(super) fn has_answered(&self, number: u64) -> bool {
        self.answered >= number
    }

    /// Messages of an earlier channel are back in the queue.
    pub(super) fn lost(&mut self) {
        self.answered = self.asked;
        self.unread = false;
    }
}

impl Engine {
    /// Sends every acknowledgement, and asks whether they were read.
    pub(super) fn sync(&mut self, now: Now, out: &mut Commands) -> u64 {
        if let Some(Channel { session, .. }) = self.channel {
            self.flush(now, true, out);
            // Acknowledgements kept back while a consumer is replaced are not sent yet.
            self.syncs.unread &= self.prefetch_control.is_changing();
            self.syncs.asked += 1;
            let number = self.syncs.asked;
            out.add(Command::Sync { session, number });
        }
        self.syncs.asked
    }

    /// Asks for copies that came from a detour and are kept until their originals are gone.
    pub(super) fn sync_detours(&mut self, now: Now, out: &mut Commands) {
        let wanted = self.syncs.unread && self.detours == 0 && !self.spares.is_empty();
        if wanted && !self.prefetch_control.is_changing() {
            self.sync(now, out);
        }
    }

    pub(super) fn synced(&mut self, number: u64, now: Now, out: &mut Commands) {
        self.syncs.answered = self.syncs.answered.max(number);
        self.suspect_synced(now, out);
    }
}
