//! Why a message waits in a store, as its record says.

use crate::store::MessageDraft;

/// The record of what comes back for the attempt that it was waiting for before: no exchange of `[delayed]`, whose name is the record of what was
/// published with a delay, may begin so.
pub(crate) const SAME_ATTEMPT: &[u8] = b"retryrmq.same-attempt";

/// Why a message waits in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// For its next attempt.
    Next,
    /// For the attempt that it did not have: it was deferred, or took a detour.
    Same,
    /// It was published to this exchange with a delay.
    Delayed(String),
}

impl WaitReason {
    pub(crate) fn of(draft: &MessageDraft) -> Self {
        match draft.record.as_slice() {
            [] => Self::Next,
            SAME_ATTEMPT => Self::Same,
            from => Self::Delayed(String::from_utf8_lossy(from).into_owned()),
        }
    }
}
