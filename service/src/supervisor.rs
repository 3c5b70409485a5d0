//! Runs what must not end by itself, and begins it anew when it does.

use std::{future::Future, time::Duration};

use retryrmq::doubling_pause::DoublingPause;
use tokio::{sync::watch, task::JoinSet, time::Instant, time::sleep};
use tracing::{error, info};

use crate::Health;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What has run for so long since it ended works again.
const PROVEN: Duration = Duration::from_secs(5);

/// Runs `task` until `stop` says true, then lets it come to its own end. One that ends before, or panics, is told in the log and to the probes, and
/// restarts after a pause that grows. Dropped, it ends the task at once.
pub(crate) async fn watch_over<F>(
    name: &'static str,
    health: Health,
    stop: watch::Receiver<bool>,
    mut task: impl FnMut() -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut pause = DoublingPause::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut red = false;
    loop {
        let start = Instant::now();
        // A set ends what is in it when it is dropped.
        let mut running = JoinSet::new();
        running.spawn(task());
        let ended = loop {
            tokio::select! {
                ended = running.join_next() => break ended,
                () = sleep(PROVEN), if red => {
                    info!(task = name, "works again");
                    health.ended(name, None);
                    red = false;
                }
            }
        };
        if *stop.borrow() {
            return;
        }
        let why = match ended {
            Some(Err(why)) => format!("{name} has failed and restarts: {why}"),
            Some(Ok(())) | None => format!("{name} has ended unexpectedly and restarts"),
        };
        error!(task = name, why);
        health.ended(name, Some(why));
        red = true;
        if start.elapsed() >= LONGEST_PAUSE {
            pause.reset();
        }
        let mut stopped = stop.clone();
        tokio::select! {
            () = sleep(pause.next_pause()) => {}
            _ = stopped.wait_for(|stop| *stop) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_or_ends_is_told_and_begun_anew() {
        let (health, starts) = (Health::default(), Arc::new(AtomicUsize::new(0)));
        let (stop, stopped) = watch::channel(false);
        let counted = Arc::clone(&starts);
        let watched = tokio::spawn(watch_over(
            "the ticker",
            health.clone(),
            stopped,
            move || {
                let turn = counted.fetch_add(1, Ordering::Relaxed);
                async move {
                    assert!(turn != 0, "the first one panics");
                    if turn > 1 {
                        std::future::pending().await
                    }
                }
            },
        ));
        let heard = async |words: &str| {
            while !health
                .troubles()
                .iter()
                .any(|why| why.contains("the ticker") && why.contains(words))
            {
                sleep(Duration::from_millis(10)).await;
            }
        };
        heard("panicked").await;
        heard("ended unexpectedly").await;
        while !health.troubles().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(starts.load(Ordering::Relaxed), 3, "the third one stays");
        watched.abort();
        drop(stop);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_that_was_asked_for_is_no_trouble() {
        let health = Health::default();
        let (stop, stopped) = watch::channel(false);
        let heard = stopped.clone();
        let watched = watch_over("the ticker", health.clone(), stopped, move || {
            let mut heard = heard.clone();
            async move {
                let _ = heard.wait_for(|stop| *stop).await;
            }
        });
        let asked = async {
            sleep(Duration::from_secs(60)).await;
            stop.send_replace(true);
        };
        tokio::join!(watched, asked);
        assert!(health.troubles().is_empty());
    }
}
