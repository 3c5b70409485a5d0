//! Ctrl-C, SIGTERM and SIGHUP end a walk in good order: what is held goes back, and what was done is told.

use tokio::sync::watch;

use crate::{exit::Exit, fault::Fault, signals::Signals};

/// Whether somebody wants us to end.
pub(super) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Listens from now on. The second signal ends the process at once; a broker then has everything back by itself.
    pub(super) fn listen() -> Result<Self, Fault> {
        let mut signals = Signals::listen()?;
        let (set, stop) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                signals.next().await;
                if set.send_replace(true) {
                    std::process::exit(Exit::Interrupted as i32);
                }
            }
        });
        Ok(Self(stop))
    }

    pub(super) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    pub(super) async fn wait(&mut self) {
        if self.0.wait_for(|set| *set).await.is_err() {
            std::future::pending::<()>().await; // nobody can set it any more
        }
    }
}
