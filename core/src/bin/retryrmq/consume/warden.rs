//! Ends running commands when we cannot do it ourselves, because we were killed.
//!
//! Their messages are with another consumer then, and a command that goes on would work on them at the same time. The
//! operating system tells nobody of our end except through a pipe that closes: a second process of ours waits for that.

use std::{
    collections::HashSet,
    io::{self, Write},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use crate::{exit::Exit, fault::Fault};

/// The subcommand as which the second process runs.
pub(crate) const NAME: &str = "__warden";

/// The line to the second process. It ends when the last clone is gone.
#[derive(Clone, Debug)]
pub(super) struct Warden(Option<Arc<Mutex<std::process::ChildStdin>>>);

impl Warden {
    /// Starts the second process. Without it everything works; only after a SIGKILL commands would go on.
    pub(super) fn start(grace: Duration) -> Self {
        let started = std::env::current_exe().and_then(|own| {
            let mut command = std::process::Command::new(own);
            command.args([NAME, &grace.as_millis().to_string()]);
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            // What the terminal tells us is not meant for it.
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            let mut child = command.spawn()?;
            let line = child
                .stdin
                .take()
                .ok_or_else(|| io::Error::other("a pipe is missing"))?;
            std::thread::spawn(move || child.wait()); // leaves no zombie if it ends before us
            Ok(line)
        });
        match started {
            Ok(line) => Self(Some(Arc::new(Mutex::new(line)))),
            Err(error) => {
                tracing::warn!(%error, "commands will go on if this process is killed: the process that would end them cannot be started");
                Self(None)
            }
        }
    }

    /// A process group began.
    pub(super) fn began(&self, group: Pid) {
        self.say('+', group);
    }

    /// A process group ended, or is to be left alone.
    pub(super) fn ended(&self, group: Pid) {
        self.say('-', group);
    }

    fn say(&self, sign: char, group: Pid) {
        if let Some(line) = &self.0 {
            let mut line = line.lock().unwrap_or_else(|poison| poison.into_inner());
            let _ = line.write_all(format!("{sign}{}\n", group.as_raw_nonzero()).as_bytes()); // it may be gone
        }
    }
}

/// The second process: remembers which groups run, and ends them when the pipe closes.
pub(crate) async fn watch(grace: Duration) -> Result<Exit, Fault> {
    // A service manager signals all processes of a service; this one ends when the pipe does, and not before.
    let ignored = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ]
    .map(signal);
    let mut groups = HashSet::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(group) = line
            .get(1..)
            .and_then(|id| id.parse().ok())
            .and_then(Pid::from_raw)
        else {
            continue;
        };
        if line.starts_with('+') {
            groups.insert(group);
        } else {
            groups.remove(&group);
        }
    }
    let end = Instant::now() + grace;
    for (signal, until) in [(Signal::TERM, end), (Signal::KILL, end + grace)] {
        for group in &groups {
            let _ = kill_process_group(*group, signal); // it may have ended by itself
        }
        while groups
            .iter()
            .any(|group| test_kill_process_group(*group).is_ok())
            && Instant::now() < until
        {
            sleep(Duration::from_millis(20)).await;
        }
        groups.retain(|group| test_kill_process_group(*group).is_ok());
    }
    drop(ignored);
    Ok(Exit::Ok)
}
