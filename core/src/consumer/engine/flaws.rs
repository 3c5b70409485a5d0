//! Defects that tests put back, to see that the simulation finds them. Elsewhere there are none.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Acknowledges a message before its copy is confirmed.
    AcknowledgesFirst,
    /// Takes whatever has the same id for the message that was handled.
    BelievesIds,
    /// Lets crashes spend the delivery limit of the queue.
    SpendsTheLimit,
    /// Replaces a consumer that may be the active one by another that has not been served.
    LosesItsPlace,
    /// Cancels a consumer before it consumes anew.
    CancelsFirst,
    /// Takes every return that the queue has counted for a crash.
    TrustsTheCount,
    /// A walk through a parking queue gives back whatever it was sent, as if no queue counted that.
    TrustsTheLimit,
    /// A walk acknowledges before the fresh copy is confirmed.
    LetsGoFirst,
    /// A walk that goes on by another channel settles there what came by the one before.
    ForgetsTheChannel,
    /// A suspect waits again for what took too long before.
    WaitsTwice,
    /// Publishes each copy of a failed message twice.
    PublishesTwice,
    /// Lets others run beside a suspect.
    HasCompany,
    /// Lets a suspect run before the broker has read what was settled.
    DoesNotAsk,
    /// Acknowledges a message whose copy is in a queue that is young.
    LetsGoEarly,
    /// Rejects a message into a queue that is young.
    RejectsEarly,
    /// Takes what is alike for the message that was handled, also where nothing has an id.
    BelievesLikeness,
    /// Does not withdraw the copies that an alarm has held up for long.
    KeepsWhatIsHeldUp,
    /// Puts back into its queue what is put off where there are no waiting queues.
    PutsBackDeferred,
    /// Acknowledges a message whose copy came back because its queue is away.
    TakesReturnedForStored,
}

/// Whether this defect is put back.
#[cfg(not(test))]
pub(crate) const fn has(_: Flaw) -> bool {
    false
}

#[cfg(test)]
pub(crate) use put_back::{has, with};

#[cfg(test)]
mod put_back {
    use std::cell::Cell;

    use super::Flaw;

    thread_local! {
        static FLAW: Cell<Option<Flaw>> = const { Cell::new(None) };
    }

    pub(crate) fn has(flaw: Flaw) -> bool {
        FLAW.get() == Some(flaw)
    }

    /// Does something on this thread with a defect put back.
    pub(crate) fn with<T>(flaw: Flaw, act: impl FnOnce() -> T) -> T {
        FLAW.set(Some(flaw));
        let done = act();
        FLAW.set(None);
        done
    }
}
