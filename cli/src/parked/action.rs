//! What is done with parked messages, and with which of them.

use std::time::Duration;

use clap::Args;

use super::{audit::AuditLog, selection::SelectionArgs};

/// The messages of one action, and how it is kept account of.
#[derive(Clone, Debug, Args)]
pub(super) struct Selected {
    /// The queue (its own name, not that of the parking queue)
    pub(super) queue: String,

    /// QUEUE is a dead-letter queue itself, whoever fills it: the broker, MassTransit, NServiceBus, Spring, Celery, Dramatiq, Watermill, …
    #[arg(long)]
    pub(super) dlq: bool,

    #[command(flatten)]
    pub(super) which: SelectionArgs,

    /// At most this many, the oldest of two thousand first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) limit: Option<u64>,

    /// Show what would be done, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    #[command(flatten)]
    pub(super) log: AuditLog,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// To the queue that was named, or each to its own.
    Replay(Option<String>),
    /// Kept for a while in the queue for dropped messages; none: gone for good.
    Drop(Option<Duration>),
    /// Parked again, after a drop.
    Restore,
}

impl Action {
    pub(super) fn done(&self) -> &'static str {
        match self {
            Self::Replay(_) => "replayed",
            Self::Drop(_) => "dropped",
            Self::Restore => "restored",
        }
    }

    /// The subcommand's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Replay(_) => "replay",
            Self::Drop(_) => "drop",
            Self::Restore => "restore",
        }
    }
}
