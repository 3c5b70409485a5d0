//! Tells systemd how it stands: when the service is ready, that it lives, and when it ends (`sd_notify(3)`, `Type=notify`).

use std::time::Duration;

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::time::sleep;
use tracing::{debug, info};

use crate::Health;

/// How often the service is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Tells systemd, where it has started the program, until it is dropped: `READY=1` once the probes would be told so, a `STATUS` with the
/// sentence of the probes, and `WATCHDOG=1` at least four times in the time that the unit allows. Elsewhere it does nothing.
pub async fn notify_systemd(health: Health) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let beat = watchdog_enabled().map(|allowed| allowed / 4);
    if let Some(beat) = beat {
        info!(?beat, "systemd watches");
    }
    let (mut was_ready, mut said) = (false, String::new());
    loop {
        let ready = health.ready();
        if ready.is_ok() && !was_ready {
            was_ready = true;
            send_state(&[NotifyState::Ready]);
        }
        let status = ready.map_or_else(|why| why, |()| "retries and parks what dies".to_owned());
        if status != said {
            send_state(&[NotifyState::Status(&status)]);
            said = status;
        }
        if beat.is_some() {
            send_state(&[NotifyState::Watchdog]);
        }
        sleep(beat.map_or(LOOK, |beat| beat.min(LOOK))).await;
    }
}

/// Tells systemd that the service is stopping (`STOPPING=1`). The watchdog keeps running until the last copy is confirmed.
pub fn notify_stopping() {
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
        send_state(&[NotifyState::Stopping]);
    }
}

fn send_state(state: &[NotifyState]) {
    if let Err(why) = notify(state) {
        debug!(%why, "systemd was not reached");
    }
}
