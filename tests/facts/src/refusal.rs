//! How a broker says no: a code and a sentence, and a channel or a connection that is gone afterwards.

use crate::DEADLINE;
use lapin::{Channel, Error, ErrorKind};
use retryrmq_harness::eventually;

/// The code and the sentence with which a broker refused something.
///
/// # Panics
/// When it did not refuse, or something else than the broker did.
pub fn refusal<T>(result: Result<T, Error>) -> (u16, String) {
    match result.err().expect("the broker allowed it").kind() {
        ErrorKind::ProtocolError(error) => (error.get_id(), error.get_message().to_string()),
        other => panic!("this is not a refusal by the broker: {other:?}"),
    }
}

/// The code alone.
///
/// # Panics
/// As [`refusal`].
pub fn code<T>(result: Result<T, Error>) -> u16 {
    refusal(result).0
}

/// Waits until a channel that the broker closes is closed on our side too: dropped before that, it can take its
/// connection with it.
///
/// # Panics
/// When it stays open.
pub async fn closed(channel: &Channel) {
    eventually(DEADLINE, "the channel is closed", || async {
        !channel.status().connected()
    })
    .await;
}
