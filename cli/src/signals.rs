//! The signals that ask for an end: Ctrl-C, SIGTERM, and SIGHUP (the terminal is gone) unless we were started with it ignored,
//! as `nohup` does.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::CliError;

/// Listens for termination signals.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Nothing where it is ignored, which to listen would undo.
    hangup: Option<Signal>,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, CliError> {
        let listen = |kind| {
            signal(kind)
                .map_err(|why| CliError::failed(format!("cannot listen for signals: {why}")))
        };
        let hangup = (!is_ignored()).then(|| listen(SignalKind::hangup()));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: hangup.transpose()?,
        })
    }

    /// Waits for the next of them.
    pub(crate) async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hangup => {}
        }
    }
}

/// Whether SIGHUP is. Only Linux tells it without a call that Rust cannot check; elsewhere it counts as not ignored.
fn is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

/// Whether `SigIgn` has the bit of signal 1.
fn ignores_hangup(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert!(ignores_hangup(
            "Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n"
        ));
        assert!(!ignores_hangup(
            "SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"
        ));
        assert!(!ignores_hangup("SigIgn:\tnone\n"));
        assert!(!ignores_hangup(""));
    }
}
