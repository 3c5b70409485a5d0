//! The fixed series of delay steps, for delays that a handler chooses.
//!
//! A queue for each delay ever chosen would make queues without end. One queue for all delays would hold short delays behind long ones. The
//! steps are the R10 series of preferred numbers: ten steps per decade, each at most about a quarter longer than the one before.

use std::time::Duration;

/// The R10 series in hundredths.
const R10: [u64; 10] = [100, 125, 160, 200, 250, 320, 400, 500, 630, 800];

/// The shortest delay step that is not shorter than `delay`: 1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3 or 8 × 10ⁿ ms, rounded up to
/// whole milliseconds.
///
/// A message waits there with the exact delay as its own `expiration`; RabbitMQ takes the shorter of the two. So the message is never
/// early, on time when its queue is empty, and behind an earlier message at most one step late.
#[must_use]
pub fn delay_step(delay: Duration) -> Duration {
    let wanted = delay.as_nanos().div_ceil(1_000_000).max(1);
    let mut power = 1u128;
    loop {
        for hundredths in R10 {
            let step = (u128::from(hundredths) * power).div_ceil(100);
            if step >= wanted {
                return Duration::from_millis(u64::try_from(step).unwrap_or(u64::MAX));
            }
        }
        power *= 10;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MAX_DELAY;

    #[test]
    fn delay_steps_are_the_preferred_numbers() {
        for (asked, got) in [
            (0, 1),
            (1, 1),
            (2, 2),
            (9, 10),
            (100, 100),
            (101, 125),
            (126, 160),
            (30_000, 32_000),
            (6_301, 8_000),
        ] {
            assert_eq!(
                delay_step(Duration::from_millis(asked)).as_millis(),
                got,
                "{asked}"
            );
        }
    }

    proptest! {
        #[test]
        fn never_shorter_and_at_most_a_quarter_longer(ms in 100u64..31_536_000_000) {
            let delay = Duration::from_millis(ms);
            prop_assert!(delay_step(delay) >= delay);
            prop_assert!(delay_step(delay).as_millis() <= delay.as_millis() * 13 / 10 + 1);
            prop_assert_eq!(delay_step(delay_step(delay)), delay_step(delay));
        }
    }

    #[test]
    fn the_number_of_delay_steps_is_bounded() {
        let mut steps = std::collections::BTreeSet::new();
        let mut delay = Duration::from_millis(1);
        while delay < MAX_DELAY {
            steps.insert(delay_step(delay));
            delay = delay_step(delay) + Duration::from_millis(1);
        }
        assert!(steps.len() < 110, "{}", steps.len());
    }
}
