//! The first steps on a broker, tried again while it is not all there.

use std::{future::Future, time::Duration};

use retryrmq::{Error, ErrorKind, Result, doubling_pause::DoublingPause};
use tokio::time::sleep;
use tracing::warn;

use crate::Health;

const PAUSE: DoublingPause =
    DoublingPause::new(Duration::from_millis(500), Duration::from_secs(15));

/// Tries until it succeeds, with a line of the log for each failure, and the reason for the probes.
///
/// # Errors
/// What does not pass by itself.
pub(crate) async fn begin<T, F>(health: &Health, mut step: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut next_pause = PAUSE;
    loop {
        let error = match step().await {
            Ok(done) => return Ok(done),
            Err(error) if passes(&error) => error,
            Err(error) => return Err(error),
        };
        let pause = next_pause.next_pause();
        warn!(%error, ?pause, "cannot set up the intake yet; trying again");
        health.set_intake(Err(error.to_string()));
        sleep(pause).await;
    }
}

/// Whether it may succeed later though nobody changes anything: a node that is starting refuses in many words.
fn passes(error: &Error) -> bool {
    error.is_transient()
        || matches!(error.kind(), ErrorKind::Broker | ErrorKind::QueueNotFound)
            && !error.is_permanent()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str) -> Error {
        let parsed: Result<retryrmq::Addresses> = text.parse();
        parsed.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_pass_ends_at_once() {
        let health = Health::default();
        let mut tries = 0;
        let result: Result<()> = begin(&health, || {
            tries += 1;
            async { Err(fails("no url")) }
        })
        .await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidUrl);
        assert_eq!(tries, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_waited_for_and_told_to_the_probes() {
        let port = retryrmq_harness::free_port();
        let url = format!("amqp://127.0.0.1:{port}");
        let health = Health::default();
        let mut tries = 0;
        let result = begin(&health, || {
            tries += 1;
            let (is_last, url) = (tries == 4, url.clone());
            async move {
                if is_last {
                    return Ok(7);
                }
                retryrmq::Client::connect(&url).await.map(|_| 0)
            }
        })
        .await;
        assert_eq!((result.unwrap(), tries), (7, 4));
        let why = health.intake_state().unwrap_err();
        assert!(why.contains(&port.to_string()), "{why}");
    }
}
