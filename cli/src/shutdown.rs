//! Ctrl-C, SIGTERM and SIGHUP end a walk cleanly: what is held goes back, and what was done is told.

use std::time::Duration;

use tokio::{sync::watch, time::sleep};

use crate::{error::CliError, exit::Exit, signals::Signals};

/// How long what is under way may take once somebody wants us to end: a broker with an alarm answers when that is over.
const GOODBYE: Duration = Duration::from_secs(5);

/// Whether somebody wants us to end.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// Listens from now on. The second signal ends the process at once; a broker then has everything back by itself.
    pub(crate) fn listen() -> Result<Self, CliError> {
        let mut signals = Signals::listen()?;
        let (set, shutdown) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                signals.next().await;
                if set.send_replace(true) {
                    std::process::exit(Exit::Interrupted as i32);
                }
            }
        });
        Ok(Self(shutdown))
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// What comes of it, or nothing where it is still under way a moment after somebody wanted us to end.
    pub(crate) async fn unless_cut<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut shutdown = self.clone();
        let cut = async {
            shutdown.wait().await;
            sleep(GOODBYE).await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = cut => None,
        }
    }

    pub(crate) async fn wait(&mut self) {
        if self.0.wait_for(|set| *set).await.is_err() {
            std::future::pending::<()>().await; // nobody can set it any more
        }
    }
}
