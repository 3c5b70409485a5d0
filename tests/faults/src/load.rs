//! The load: messages whose attempts fail by a rule that depends on nothing but the message and the attempt, so that
//! what has to become of each is known beforehand.

use retryrmq::{Policy, Publish};
use std::time::Duration;

/// How many attempts a message has.
pub const ATTEMPTS: u32 = 4;

/// The policy of the load: short delays, so that a message goes through all of them while things are killed.
///
/// # Panics
/// Never: the text is a policy.
pub fn policy() -> Policy {
    "list(50ms, 100ms, 200ms)"
        .parse()
        .expect("the text is a policy")
}

/// Whether this attempt fails: 30 of 100 do.
pub fn fails(id: &str, attempt: u32) -> bool {
    hash(id, attempt) % 100 < 30
}

/// How long this attempt takes.
pub fn duration(id: &str, attempt: u32) -> Duration {
    Duration::from_millis(hash(id, attempt + 1_000) % 12)
}

/// Whether all attempts of this message fail, so that it is parked in the end.
pub fn is_doomed(id: &str) -> bool {
    (1..=ATTEMPTS).all(|attempt| fails(id, attempt))
}

/// The message: its body is its id, and every second one has a message id too.
pub fn message(queue: &str, number: usize) -> Publish {
    let id = number.to_string();
    let message = Publish::to_queue(queue, id.as_str());
    if number.is_multiple_of(2) {
        message.message_id(&id)
    } else {
        message
    }
}

/// FNV-1a, with a last stir because neighbours differ in few bits.
fn hash(id: &str, attempt: u32) -> u64 {
    let bytes = id.bytes().chain(attempt.to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_a_third_of_the_attempts_fail_and_some_messages_are_doomed() {
        let ids: Vec<String> = (0..10_000).map(|number: u32| number.to_string()).collect();
        let failing = ids.iter().filter(|id| fails(id, 1)).count();
        assert!((2_800..3_200).contains(&failing), "{failing}");
        let doomed = ids.iter().filter(|id| is_doomed(id)).count();
        assert!((50..120).contains(&doomed), "{doomed}");
    }
}
