//! Limits warnings that repeat.

use std::time::Duration;

use tokio::time::Instant;

/// After this time a complaint is news again.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// What somebody who tries again and again has complained about. Of several hosts each may have a reason of its own.
#[derive(Debug, Default)]
pub(crate) struct WarnLimiter(Vec<(String, Instant)>);

impl WarnLimiter {
    /// Whether this reason is worth a warning: it was not told yet, or long ago.
    pub(crate) fn is_news(&mut self, reason: String) -> bool {
        self.0.retain(|(_, when)| when.elapsed() < TOLD_AGAIN);
        let is_news = self.0.iter().all(|(known, _)| *known != reason);
        if is_news {
            self.0.push((reason, Instant::now()));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_reason_is_told_once_and_again_after_a_while() {
        let mut warn_limiter = WarnLimiter::default();
        let mut is_news = |reason: &str| warn_limiter.is_news(reason.to_owned());
        assert!(is_news("nobody listens"));
        for _ in 0..5 {
            tokio::time::advance(TOLD_AGAIN / 8).await;
            assert!(!is_news("nobody listens"));
        }
        assert!(is_news("too many connections"));
        assert!(!is_news("nobody listens"), "another host");
        tokio::time::advance(TOLD_AGAIN / 2).await;
        assert!(is_news("nobody listens"));
        assert!(!is_news("too many connections"));
    }
}
