//! Tasks that others wait for, so a panic must not end them.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio::time::sleep;
use tracing::error;

/// So that a panic that repeats does not use a whole processor.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs a part of a task. Returns whether it completed; otherwise it panicked, and must be run again. State that outlives one run must be
/// consistent at every await.
pub(crate) async fn survives(what: &str, run: impl Future<Output = ()>) -> bool {
    let ended = AssertUnwindSafe(run).catch_unwind().await.is_ok();
    if !ended {
        error!("{what} panicked, which is a bug in retryrmq; it is started again");
        sleep(PAUSE).await;
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_survived() {
        let mut runs = 0;
        while !survives("a test's task", async {
            tokio::task::yield_now().await;
            runs += 1;
            assert!(runs > 3, "as it is meant");
        })
        .await
        {}
        assert_eq!(runs, 4);
    }
}
