//! Tasks that others wait for, and that must therefore not end by a panic.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio::time::sleep;
use tracing::error;

/// So that a panic that comes each time does not take a whole processor.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs a part of a task, and returns whether it came to its end; otherwise it has panicked, and is to be run again. What it
/// holds beyond one run must be whole whenever it waits.
pub(crate) async fn survives(what: &str, run: impl Future<Output = ()>) -> bool {
    let ended = AssertUnwindSafe(run).catch_unwind().await.is_ok();
    if !ended {
        error!("{what} panicked, which is a defect; it is started again");
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
