//! Ends running commands when we cannot do it ourselves, because we were killed.
//!
//! Their messages are with another consumer then, and a command that goes on would work on them at the same time. The
//! operating system tells nobody of our end except through a pipe that closes: a second process of ours waits for that.

use std::{
    collections::{HashSet, VecDeque},
    io,
    os::fd::OwnedFd,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::unix::pipe::Sender,
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::zombie_reaper;
use crate::{error::CliError, exit::Exit};

/// The subcommand as which the second process runs.
pub(crate) const NAME: &str = "__orphan-reaper";

/// The line to the second process. It ends when the last clone is gone.
#[derive(Clone, Debug)]
pub(super) struct OrphanReaper(Option<Arc<ReaperPipe>>);

impl OrphanReaper {
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
            let (awaited, mut child) =
                zombie_reaper::spawn(|| command.spawn(), |child| Some(child.id()))?;
            let line = child
                .stdin
                .take()
                .ok_or_else(|| io::Error::other("a pipe is missing"))?;
            // Leaves no zombie if it ends before us.
            std::thread::spawn(move || {
                let _ = child.wait();
                drop(awaited);
            });
            Ok(ReaperPipe::to(Sender::from_owned_fd(OwnedFd::from(line))?))
        });
        match started {
            Ok(line) => Self(Some(line)),
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
            line.say(sign, group);
        }
    }
}

/// A pipe to a process that may be slow to read, or stopped: nobody waits for it.
#[derive(Debug)]
struct ReaperPipe {
    to: Sender,
    pending: Mutex<PendingNotices>,
}

/// What does not fit into the pipe now. As much as there are groups: what began and ended unsaid is forgotten.
#[derive(Debug, Default)]
struct PendingNotices {
    news: VecDeque<(char, Pid)>,
    /// Whether a task waits to say it.
    is_waiting: bool,
    is_broken: bool,
}

impl ReaperPipe {
    fn to(to: Sender) -> Arc<Self> {
        let pending = Mutex::default();
        Arc::new(Self { to, pending })
    }

    fn say(self: &Arc<Self>, sign: char, group: Pid) {
        let mut pending = self.pending();
        if sign == '-'
            && let Some(at) = pending.news.iter().position(|news| *news == ('+', group))
        {
            pending.news.remove(at);
            return;
        }
        pending.news.push_back((sign, group));
        // Past tokio, which may not know yet that there is room: it is said when this returns, if it can be.
        pending.flush(|line| Ok(rustix::io::write(&self.to, line)?));
        if !pending.news.is_empty() && !pending.is_waiting {
            pending.is_waiting = true;
            let line = Arc::clone(self);
            tokio::spawn(async move {
                while line.to.writable().await.is_ok() {
                    let mut pending = line.pending();
                    pending.flush(|bytes| line.to.try_write(bytes));
                    if pending.news.is_empty() {
                        pending.is_waiting = false;
                        break;
                    }
                }
            });
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, PendingNotices> {
        self.pending
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

impl PendingNotices {
    /// Says as much as there is room for. A line is short enough that it is written whole or not at all.
    fn flush(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) {
        while let Some((sign, group)) = self.news.front() {
            match write(format!("{sign}{}\n", group.as_raw_nonzero()).as_bytes()) {
                Ok(_) => {
                    self.news.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.news.clear();
                    if !std::mem::replace(&mut self.is_broken, true) {
                        tracing::warn!(%error, "commands will go on if this process is killed: the process that would end them is gone");
                    }
                }
            }
        }
    }
}

/// The second process: remembers which groups run, and ends them when the pipe closes.
pub(crate) async fn watch(grace: Duration) -> Result<Exit, CliError> {
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

#[cfg(test)]
mod tests {
    use tokio::{
        io::AsyncReadExt,
        net::unix::pipe::{Receiver, pipe},
    };

    use super::*;

    fn group(id: i32) -> Pid {
        Pid::from_raw(id).expect("a process id")
    }

    async fn said(from: &mut Receiver, expected: &str) {
        let mut said = vec![0; expected.len()];
        from.read_exact(&mut said).await.unwrap();
        assert_eq!(String::from_utf8(said).unwrap(), expected);
    }

    #[tokio::test]
    async fn what_finds_no_room_is_said_later_and_in_order() {
        let (to, mut from) = pipe().unwrap();
        let line = ReaperPipe::to(to);
        line.say('+', group(1));
        said(&mut from, "+1\n").await;
        let mut filling = String::new();
        while rustix::io::write(&line.to, b"\n").is_ok() {
            filling.push('\n');
        }
        for (sign, id) in [('+', 2), ('+', 3), ('-', 2), ('-', 1), ('+', 4), ('+', 2)] {
            line.say(sign, group(id));
        }
        let orphan_reaper = OrphanReaper(Some(line));
        said(&mut from, &format!("{filling}+3\n-1\n+4\n+2\n")).await;
        orphan_reaper.ended(group(3));
        said(&mut from, "-3\n").await;
        drop(orphan_reaper);
        assert_eq!(from.read(&mut [0]).await.unwrap(), 0, "the line ends");
    }

    #[tokio::test]
    async fn a_line_that_is_cut_stops_nobody() {
        let (to, from) = pipe().unwrap();
        drop(from);
        let line = ReaperPipe::to(to);
        for id in 1..10_000 {
            line.say('+', group(id));
        }
        assert!(line.pending().news.is_empty());
    }
}
