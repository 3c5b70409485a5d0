//! What a consumer needs of the broker, which may have another version after each reconnect.

use crate::{
    Result, Server,
    consumer::Consumer,
    retry::{Counting, Rules},
    topology::{QueueType, Strategy, Target},
};

/// What the broker must be able to do, and what depends on its version.
pub(super) struct BrokerRequirements {
    queue: String,
    rules: Rules,
    strategy: Strategy,
    queue_type: QueueType,
    dlx: bool,
}

impl BrokerRequirements {
    pub(super) fn of(options: &Consumer, queue_type: QueueType) -> Self {
        Self {
            queue: options.queue.clone(),
            rules: options.rules.clone(),
            strategy: options.strategy,
            queue_type,
            dlx: options.has_dlx(),
        }
    }

    /// # Errors
    /// [`StrategyRefused`](crate::ErrorKind::StrategyRefused) if the broker cannot serve the strategy with these policies.
    pub(super) fn check(&self, server: &Server) -> Result<()> {
        if !self.dlx {
            return Ok(());
        }
        let target = Target {
            queue: &self.queue,
            rules: &self.rules,
            queue_type: self.queue_type,
        };
        self.strategy.scheme().check_server(server, &target)
    }

    /// How this broker counts attempts.
    pub(super) fn counting(&self, server: &Server) -> Counting {
        if self.dlx {
            self.strategy.scheme().counting(server)
        } else {
            Counting::Header
        }
    }
}
