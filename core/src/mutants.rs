//! Defects that tests put back, to see that the simulation finds them. There are none outside tests.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Acknowledges a message before its copy is confirmed.
    AcknowledgesFirst,
    /// Treats any message with the same id as the one that was handled.
    BelievesIds,
    /// Lets crashes spend the delivery limit of the queue.
    SpendsTheLimit,
    /// Replaces a consumer that may be the active one by one that was not served.
    LosesItsPlace,
    /// Cancels a consumer before it consumes anew.
    CancelsFirst,
    /// Counts every requeue that the queue has counted as a crash.
    TrustsTheCount,
    /// A walk through a parking queue requeues everything, as if no queue counted that.
    TrustsTheLimit,
    /// A walk acknowledges before the fresh copy is confirmed.
    LetsGoFirst,
    /// A walk that continues on another channel settles there what came on the one before.
    ForgetsTheChannel,
    /// A suspect waits again for messages that took too long before.
    WaitsTwice,
    /// Publishes each copy of a failed message twice.
    PublishesTwice,
    /// Runs other messages beside a suspect.
    HasCompany,
    /// Runs a suspect before the broker has read what was settled.
    DoesNotAsk,
    /// Acknowledges a message whose copy is in a young queue.
    LetsGoEarly,
    /// Copies a message to a young queue.
    CopiesToTheNew,
    /// Takes every queue for an old one, whether its marker is bound or not.
    TrustsTheNew,
    /// Marks a queue as soon as it is found, without a clock.
    #[cfg(test)]
    MarksTheNew,
    /// Believes that a broker was alive for as long as nothing was heard of its death.
    BelievesSilence,
    /// Rejects a message into a young queue.
    RejectsEarly,
    /// Treats an equal message as the one that was handled, also without an id.
    BelievesRedeliveryHash,
    /// Does not withdraw copies that an alarm has held up for long.
    KeepsWhatIsHeldUp,
    /// Does not believe the broker's timeout for what is not settled.
    ForgetsTheTimeout,
    /// Consumes on while originals wait for copies that cannot be stored, and their queue counts.
    ConsumesOn,
    /// Requeues a deferred message if there are no waiting queues.
    PutsBackDeferred,
    /// Lets a message whose copy is refused as it is keep its place in the prefetch.
    KeepsItsPlace,
    /// Acknowledges a message whose copy was returned because its queue is away.
    TakesReturnedForStored,
    /// Does not try out whether the broker dead-letters at least once.
    TrustsTheArguments,
    /// Tries it out when the waiting queues are created already.
    #[cfg(test)]
    ProbesLast,
    /// A publishing lane never lets go of its channel, and others get none where the broker allows few.
    KeepsItsChannel,
    /// Takes every queue for a young one, also if its marker is bound.
    ForgetsTheMarker,
    /// Takes every message, however many bytes are held.
    IgnoresBytes,
    /// Lets copies that an alarm holds up take the room of what can be handled.
    CountsWhatIsHeldUp,
    /// Never gives a message its turn that was kept.
    StarvesTheKept,
    /// Does not look for a message that the broker cannot deliver.
    DoesNotLook,
    /// Consumes on while such a message cannot be moved.
    NeverStops,
}

/// Whether this defect is put back.
#[cfg(not(test))]
pub(crate) const fn has(_: Mutant) -> bool {
    false
}

#[cfg(test)]
pub(crate) use put_back::{has, with};

#[cfg(test)]
mod put_back {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(crate) fn has(mutant: Mutant) -> bool {
        MUTANT.get() == Some(mutant)
    }

    /// Runs `act` on this thread with a defect put back.
    pub(crate) fn with<T>(mutant: Mutant, act: impl FnOnce() -> T) -> T {
        MUTANT.set(Some(mutant));
        let done = act();
        MUTANT.set(None);
        done
    }
}
