//! Whether the broker has read what was settled.
//!
//! An acknowledgement that was not written when a message takes its process down is none, and the message that it was for comes
//! again. For one whose copy is in its queue already that makes two of it, and among many such messages every crash makes more.
//! So before one runs that may take its consumer down, the broker is asked something: it reads a channel's methods in their
//! order, and its answer says that it has read the acknowledgements.

use super::{Command, Commands, Engine, Now, sessions::Channel};

/// What was asked of the broker on the current channel, by number, and answered.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    asked: u64,
    answered: u64,
    /// The original of a detour was settled since the last one was asked for.
    unread: bool,
}

impl Syncs {
    /// The original of a detour is settled, and its copy comes.
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

    /// What an earlier channel held is the broker's again.
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
            // What is kept back while a consumer is replaced is not sent yet.
            self.syncs.unread &= self.intake.is_changing();
            self.syncs.asked += 1;
            let number = self.syncs.asked;
            out.add(Command::Sync { session, number });
        }
        self.syncs.asked
    }

    /// Asks for the sake of copies that have come from a detour and are kept until their originals are gone.
    pub(super) fn sync_detours(&mut self, now: Now, out: &mut Commands) {
        let wanted = self.syncs.unread && self.detours == 0 && !self.spares.is_empty();
        if wanted && !self.intake.is_changing() {
            self.sync(now, out);
        }
    }

    pub(super) fn synced(&mut self, number: u64, now: Now, out: &mut Commands) {
        self.syncs.answered = self.syncs.answered.max(number);
        self.suspect_synced(now, out);
    }
}
