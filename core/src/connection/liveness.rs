//! Whether the broker at the other end still lives. A connection to a host that died without a word stays open until two heartbeats are
//! missed, so time alone proves nothing: only an answer does.

use tokio::{sync::Mutex, time::Instant};

use super::weak_connection::WeakConnection;
use crate::{Error, ErrorKind, Result};

/// The answers of one connection: one round trip for all who ask while another one is on its way.
#[derive(Default)]
pub(super) struct LivenessCheck(Mutex<Option<(Instant, Result<()>)>>);

impl LivenessCheck {
    /// Asks, or shares the answer to a question that began after this call. A question runs to its end even if nobody waits any more, so
    /// that lapin does not lose a channel over it.
    ///
    /// # Errors
    /// That of the question.
    pub(super) async fn feel(
        &self,
        question: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let since = Instant::now();
        let mut last = self.0.lock().await;
        let (began, answer) = match last.take() {
            Some(shared) if shared.0 >= since => shared,
            _ => {
                let began = Instant::now();
                let broken = |_| Err(Error::new(ErrorKind::Closed, "the runtime ended"));
                (began, tokio::spawn(question).await.unwrap_or_else(broken))
            }
        };
        let shared_answer = answer.as_ref().copied().map_err(Error::duplicate);
        *last = Some((began, answer));
        shared_answer
    }
}

/// Opens a channel and closes it. During an alarm, which may begin meanwhile, the broker reads nothing, and that time does not count.
///
/// # Errors
/// Those of [`WeakConnection::channel`].
pub(super) async fn beat(line: WeakConnection) -> Result<()> {
    loop {
        line.unblocked().await;
        match line.channel().await {
            Ok(channel) => {
                channel.close().await;
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Timeout && line.is_blocked() => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use futures_util::future::join_all;
    use tokio::time::sleep;

    use super::*;

    const ROUND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_shared_by_those_who_asked_before_its_question() {
        for is_alive in [true, false] {
            let (liveness, asked) = (LivenessCheck::default(), Arc::new(AtomicUsize::new(0)));
            let all = (0..100).map(|number| {
                let (liveness, asked) = (&liveness, Arc::clone(&asked));
                async move {
                    // The first half comes before the first question, the others while it is on its way.
                    sleep(ROUND / 2 * (number / 50)).await;
                    let answer = liveness.feel(async move {
                        asked.fetch_add(1, Ordering::Relaxed);
                        sleep(ROUND).await;
                        let lost = || Err(Error::new(ErrorKind::Timeout, "no answer"));
                        if is_alive { Ok(()) } else { lost() }
                    });
                    assert_eq!(answer.await.is_ok(), is_alive);
                }
            });
            join_all(all).await;
            assert_eq!(asked.load(Ordering::Relaxed), 2);
        }
    }
}
