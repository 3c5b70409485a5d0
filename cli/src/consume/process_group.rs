//! The process group of a command: all that it started and that did not leave on purpose.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid,
};
use tokio::{process::Child, time::sleep};

use super::orphan_reaper::OrphanReaper;

/// Between two looks whether a group is empty.
const PAUSE: Duration = Duration::from_millis(20);

/// How many groups there are.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessGroups(Arc<AtomicUsize>);

impl ProcessGroups {
    pub(super) fn are_none(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// A process group. Unless it was let go, all of it is killed when this is dropped.
pub(super) struct ProcessGroup {
    id: Option<Pid>,
    all: ProcessGroups,
    orphan_reaper: OrphanReaper,
    /// Whether nothing is killed at the end: it was let go, or has ended.
    is_over: bool,
}

impl ProcessGroup {
    pub(super) fn of(child: &Child, all: &ProcessGroups, orphan_reaper: &OrphanReaper) -> Self {
        let id = child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(id) = id {
            orphan_reaper.began(id);
        }
        all.0.fetch_add(1, Ordering::SeqCst);
        Self {
            id,
            all: all.clone(),
            orphan_reaper: orphan_reaper.clone(),
            is_over: false,
        }
    }

    /// What `child` left behind may go on.
    pub(super) fn let_go(&mut self) {
        self.is_over = true;
    }

    /// Asks the whole group to end, and kills what is left of it when its grace is over, or at once when `now` comes. A group of
    /// which nothing is left is not signalled: its number may be another's by then.
    pub(super) async fn end(&mut self, child: &mut Child, grace: Duration, now: impl Future) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT); // a stopped process takes no SIGTERM
        let gone = async {
            let _ = child.wait().await;
            while !self.is_empty() {
                sleep(PAUSE).await;
            }
        };
        let is_left = tokio::select! {
            () = gone => false,
            () = sleep(grace) => true,
            _ = now => true,
        };
        if is_left {
            self.signal(Signal::KILL);
            let _ = child.wait().await;
        }
        self.is_over = true;
    }

    /// Whether nobody is left, now that the command itself has been waited for.
    fn is_empty(&self) -> bool {
        self.id.is_none_or(|group| {
            // Whose parents are gone are ours where we are process 1, as in a container: the dead count until they are
            // waited for. `zombie_reaper` does that as well, but later.
            while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
            test_kill_process_group(group).is_err()
        })
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.id {
            let _ = kill_process_group(group, signal); // it may be gone
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if !self.is_over {
            self.signal(Signal::KILL);
        }
        if let Some(group) = self.id {
            self.orphan_reaper.ended(group);
        }
        self.all.0.fetch_sub(1, Ordering::SeqCst);
    }
}
