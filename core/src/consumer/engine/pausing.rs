//! The retry budget at work: stop taking messages, and let one probe decide when to go on.

use tokio::time::Instant;
use tracing::{info, warn};

use super::Engine;
use crate::telemetry::Event;

impl Engine {
    pub(super) async fn note_attempt(&mut self, failed: bool) {
        let Some(budget) = &mut self.budget else {
            return;
        };
        let pause = budget.pause();
        if self.probing {
            self.probing = false;
            budget.reset();
            if !failed {
                self.cautious = false;
                info!(queue = %self.name, "the probe succeeded; taking messages again");
                let queue = self.queue();
                self.options.listener.tell(|| Event::Resumed { queue });
                return;
            }
        } else if self.paused_until.is_some() || !budget.note(failed) {
            return;
        }
        if let Some(budget) = &mut self.budget {
            budget.reset();
        }
        warn!(queue = %self.name, ?pause, "too many attempts fail; pausing");
        self.counters.pauses.inc();
        self.paused_until = Some(Instant::now() + pause);
        let unstarted = self.take_back_the_unstarted();
        let queue = self.queue();
        self.options
            .listener
            .tell(|| Event::Paused { queue, pause });
        self.stop_and_return(unstarted).await;
    }
}
