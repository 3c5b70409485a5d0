//! What a store does.

use std::{future::Future, time::Duration};

use super::{Destination, Id, Result, StoredMessage};

/// Keeps messages until they are due, for any number of replicas at once. Time is the store's own: a clock that jumps on this
/// machine changes nothing.
pub trait Store: Send + Sync + 'static {
    /// Keeps messages, and returns once they are as safe as configured: then their originals may be acknowledged. One answer per
    /// message, in their order.
    ///
    /// Some milliseconds pass until then, or a second where the store syncs once a second. So call it with all that has come in, and
    /// again before the last call has returned. After an error keep the *same* values again after a pause: what was stored already is
    /// recognised.
    ///
    /// # Errors
    /// None of the messages may be acknowledged. Until one succeeds, take nothing more in.
    fn keep(
        &self,
        batch: &[StoredMessage],
    ) -> impl Future<Output = Result<Vec<StoreResult>>> + Send;

    /// Takes what is due, for the time of a lease. What is neither deleted nor [extended](Self::extend) by then is due again.
    ///
    /// # Errors
    /// Nothing was taken, or it is due again when its lease ends.
    fn claim(&self, request: &ClaimRequest) -> impl Future<Output = Result<Claim>> + Send;

    /// Deletes what was published and confirmed. Per lease whether it still was ours: where not, another replica has the message
    /// and publishes it a second time.
    ///
    /// # Errors
    /// What was not deleted is due again when its lease ends.
    fn delete(&self, leases: &[Lease]) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// Begins leases anew. Nothing in place of those that were not ours any more.
    ///
    /// # Errors
    /// The leases are as they were.
    fn extend(&self, leases: &[Lease]) -> impl Future<Output = Result<Vec<Option<Lease>>>> + Send;

    /// Gives messages back that could not be published, to be due after a pause. Per lease whether it still was ours.
    ///
    /// # Errors
    /// What was not given back is due again when its lease ends.
    fn release(
        &self,
        leases: &[Lease],
        pause: Duration,
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// What waits, by the time when it is due. Bodies are left out.
    ///
    /// # Errors
    /// The store cannot be asked now.
    fn list(&self, page: &Page) -> impl Future<Output = Result<Listing>> + Send;

    /// One message, whole.
    ///
    /// # Errors
    /// The store cannot be asked now.
    fn find(&self, id: &Id) -> impl Future<Output = Result<Option<ListedMessage>>> + Send;

    /// Deletes one message before it is due.
    ///
    /// # Errors
    /// It may or may not have been deleted.
    fn cancel(&self, id: &Id) -> impl Future<Output = Result<CancelResult>> + Send;

    /// Takes one message before it is due, for the time of a lease, as [`claim`](Self::claim) takes what is due.
    ///
    /// # Errors
    /// It was not taken, or it is due when its lease ends.
    fn take(&self, id: &Id) -> impl Future<Output = Result<TakeResult>> + Send;

    /// Makes messages due now. One answer per id, in their order.
    ///
    /// # Errors
    /// Some may be due now, and the others when they were.
    fn hasten(&self, ids: &[Id]) -> impl Future<Output = Result<Vec<CancelResult>>> + Send;

    /// How many messages wait, by where they go.
    ///
    /// # Errors
    /// The store cannot be asked now.
    fn count(&self) -> impl Future<Output = Result<Vec<(Destination, u64)>>> + Send;

    /// Whether messages can be kept now: reachable, set up safely, with room. It asks the store each time.
    ///
    /// # Errors
    /// What stands in the way, in one sentence.
    fn health(&self) -> impl Future<Output = Result<()>> + Send;

    /// How long a claim lasts.
    fn lease(&self) -> Duration;

    /// Returns when this process has kept something that is due too soon for [`DueDispatcher`](super::DueDispatcher) to see it in time by itself.
    fn hurry(&self) -> impl Future<Output = ()> + Send;
}

/// What became of a message that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreResult {
    /// It waits now.
    New,
    /// It waited already.
    Known,
}

/// What to claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// At most as many messages.
    pub limit: usize,
    /// At most as many bytes, but one message always.
    pub bytes: usize,
    /// What to leave out.
    pub exclusions: Vec<Exclusion>,
}

/// A line whose messages are not to be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclusion {
    /// The line.
    pub destination: Destination,
    /// When those of its messages that are due now are due again; without it they stay due, to be had as soon as the hold ends.
    pub pause: Option<Duration>,
}

/// What a store gave.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// The messages.
    pub due: Vec<DueMessage>,
    /// Those whose bytes this program cannot read, with what is wrong. They stay in the store.
    pub unreadable: Vec<(Lease, String)>,
    /// How long until the first of the others is due; zero if it is due now; nothing if none waits.
    pub next: Option<Duration>,
}

/// A message that is due, and ours for the time of a lease.
#[derive(Clone, Debug)]
pub struct DueMessage {
    /// The message.
    pub message: StoredMessage,
    /// The right to delete it.
    pub lease: Lease,
    /// How late it was when it was claimed, against the time that it was first to be due.
    pub late: Duration,
    /// Whether somebody has had it before, whose lease ran out: it may be published twice.
    pub again: bool,
}

/// The right to a message for some seconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The message.
    pub id: Id,
    /// Differs for each claim of the same message.
    pub(super) token: String,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct Page {
    /// [`Listing::next`] of the page before; nothing for the first one.
    pub from: Option<Position>,
    /// The most that are listed.
    pub limit: usize,
    /// Only what goes there.
    pub destination: Option<Destination>,
}

/// Part of what waits.
#[derive(Clone, Debug)]
pub struct Listing {
    /// In the order in which they are due.
    pub messages: Vec<ListedMessage>,
    /// How many wait in all, wherever they go.
    pub total: u64,
    /// Where the next page begins; nothing at the end. With a line that is rare a page may be short or empty and not the last.
    pub next: Option<Position>,
}

/// A place in the order in which messages are due. What comes or goes before it moves nothing behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The score of the last message before it, as the store writes it.
    pub(crate) score: String,
    /// The id of that message.
    pub(crate) id: String,
}

/// A message in a list.
#[derive(Clone, Debug)]
pub struct ListedMessage {
    /// The message; in a [`Listing`] without its body.
    pub message: StoredMessage,
    /// The bytes of its body.
    pub body_size: u64,
    /// When it is first to be due, in milliseconds since 1970, by the clock of the store.
    pub due: u64,
    /// How long until it is tried; zero if it is due.
    pub remaining: Duration,
    /// Whether a replica has claimed it and is publishing it.
    pub claimed: bool,
}

/// What became of a message that was to be taken.
#[derive(Clone, Debug)]
pub enum TakeResult {
    /// It is ours for the time of a lease.
    Taken {
        /// The message, whole.
        message: StoredMessage,
        /// The right to delete it.
        lease: Lease,
        /// How long it had still to wait.
        remaining: Duration,
    },
    /// There is no such message: it was published, cancelled, or never kept.
    Unknown,
    /// A replica is publishing it right now.
    TooLate,
}

/// What became of a message that was to be cancelled, or to be due now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelResult {
    /// It is as asked for.
    Done,
    /// There is no such message: it was published, cancelled, or never kept.
    Unknown,
    /// A replica is publishing it right now.
    TooLate,
}
