//! How the delay grows from one retry to the next.

use std::time::Duration;

use super::{
    Policy,
    duration::{MINUTE, SECOND},
};

/// The shape of a policy's delays. Its constructors make a [`Policy`], which has all other settings.
///
/// ```
/// use retryrmq::{Backoff, MINUTE, SECOND};
///
/// let policy = Backoff::exponential(SECOND).max(5 * MINUTE).retries(5);
/// assert_eq!(policy.to_string(), "exponential(1s, factor=4, max=5m, retries=5)");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Backoff {
    /// The same delay before every retry.
    #[non_exhaustive]
    Fixed {
        /// The delay.
        delay: Duration,
    },
    /// Grows by `step` with each retry, from `initial` up to `max`.
    #[non_exhaustive]
    Linear {
        /// The delay before the first retry.
        initial: Duration,
        /// What is added for each further retry.
        step: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// The delays as listed. The last one repeats if there are more retries than delays.
    #[non_exhaustive]
    List {
        /// The delays before the first, second, … retry.
        delays: Vec<Duration>,
    },
    /// Multiplied by `factor` with each retry, from `initial` up to `max`.
    #[non_exhaustive]
    Exponential {
        /// The delay before the first retry.
        initial: Duration,
        /// By what each further delay is multiplied: 1, or at least 1.001.
        factor: f64,
        /// The longest delay.
        max: Duration,
    },
}

impl Backoff {
    /// The same delay before every retry; 5 retries by default.
    #[must_use]
    pub fn fixed(delay: Duration) -> Policy {
        Policy::new(Self::Fixed { delay })
    }

    /// Delays that grow by one second, up to five minutes; 5 retries. Change that with [`Policy::step`], [`Policy::max`] and
    /// [`Policy::retries`].
    #[must_use]
    pub fn linear(initial: Duration) -> Policy {
        Policy::new(Self::Linear {
            initial,
            step: SECOND,
            max: 5 * MINUTE,
        })
    }

    /// The delays as listed, and by default as many retries as delays.
    #[must_use]
    pub fn list(delays: impl Into<Vec<Duration>>) -> Policy {
        let delays = delays.into();
        let retries = u32::try_from(delays.len()).unwrap_or(u32::MAX);
        Policy::new(Self::List { delays }).retries(retries)
    }

    /// Delays that grow fourfold, up to five minutes; 5 retries. Change that with [`Policy::factor`], [`Policy::max`] and
    /// [`Policy::retries`].
    #[must_use]
    pub fn exponential(initial: Duration) -> Policy {
        Policy::new(Self::Exponential {
            initial,
            factor: 4.0,
            max: 5 * MINUTE,
        })
    }

    /// The delay before retry number `retry` (1 is the first), without jitter, rounded up to whole milliseconds.
    #[must_use]
    pub fn delay(&self, retry: u32) -> Duration {
        let steps = retry.saturating_sub(1);
        let delay = match self {
            Self::Fixed { delay } => *delay,
            Self::Linear { initial, step, max } => {
                initial.saturating_add(step.saturating_mul(steps)).min(*max)
            }
            Self::List { delays } => {
                let index = usize::try_from(steps)
                    .unwrap_or(usize::MAX)
                    .min(delays.len().saturating_sub(1));
                delays.get(index).copied().unwrap_or_default()
            }
            Self::Exponential {
                initial,
                factor,
                max,
            } => {
                let grown =
                    initial.as_secs_f64() * factor.powi(i32::try_from(steps).unwrap_or(i32::MAX));
                // A large count can grow to infinity; `min` catches that too.
                Duration::try_from_secs_f64(grown.min(max.as_secs_f64())).unwrap_or(*max)
            }
        };
        Duration::from_millis(
            u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
        )
    }
}
