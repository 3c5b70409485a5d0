//! Process 1 of a container inherits every process whose parent has ended, and must wait for its end; until then it stays a zombie, and
//! takes a place in the table of processes. Commands leave such processes behind when they start something in the background.
//!
//! The ends of our own children belong to whoever waits for them, so only other children are reaped.

use std::{
    fs, io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use tokio::{signal::unix::Signal, time::sleep};

/// Between two looks: many ends take one look.
const PAUSE: Duration = Duration::from_millis(100);

/// The children that somebody waits for.
static AWAITED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn awaited() -> MutexGuard<'static, Vec<Pid>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Somebody waits for this child, until this is dropped.
#[derive(Debug)]
pub(super) struct AwaitedChild(Option<Pid>);

impl Drop for AwaitedChild {
    fn drop(&mut self) {
        let mut awaited = awaited();
        // Only one: the number may be that of a new child already.
        if let Some(at) = awaited.iter().position(|pid| Some(*pid) == self.0) {
            awaited.swap_remove(at);
        }
    }
}

/// Starts a child that the caller waits for. Nobody else takes its end, even if it ends before this returns.
pub(super) fn spawn<C>(
    start: impl FnOnce() -> io::Result<C>,
    id: impl FnOnce(&C) -> Option<u32>,
) -> io::Result<(AwaitedChild, C)> {
    if !is_process_1() {
        return Ok((AwaitedChild(None), start()?));
    }
    let mut awaited = awaited();
    let child = start()?;
    let pid = id(&child).and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    awaited.extend(pid);
    Ok((AwaitedChild(pid), child))
}

fn is_process_1() -> bool {
    getpid().is_init()
}

/// Reaps children that nobody waits for, for as long as this process runs, if it is process 1. `ends` hears of each end.
pub(super) fn start(mut ends: Signal) {
    tokio::spawn(async move {
        while is_process_1() {
            reap();
            ends.recv().await;
            sleep(PAUSE).await;
        }
        // To listen no more would let the system forget the ends of commands.
        std::future::pending::<()>().await;
    });
}

fn reap() {
    let Ok(processes) = fs::read_dir("/proc") else {
        return; // it is not mounted
    };
    let awaited = awaited();
    for process in processes.flatten() {
        let pid = process
            .file_name()
            .to_str()
            .and_then(|name| Pid::from_raw(name.parse().ok()?));
        let Some(pid) = pid.filter(|pid| !awaited.contains(pid)) else {
            continue;
        };
        let stat = fs::read_to_string(process.path().join("stat"));
        if stat.is_ok_and(|stat| is_zombie_of_process_1(&stat)) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG); // somebody may have waited for its group
        }
    }
}

/// Reads `/proc/PID/stat`: the number, the name in parentheses, which may contain anything, the state, and the parent.
fn is_zombie_of_process_1(stat: &str) -> bool {
    let mut fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    fields.next() == Some("Z") && fields.next() == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_of_process_1_is_known_by_its_state_and_parent() {
        for (stat, is_one) in [
            ("7 (sleep) Z 1 7 7 0", true),
            ("7 (a) Z 1 (b) c) Z 1 7 7 0", true),
            ("7 (Z 1) S 1 7 7 0", false),
            ("7 (sleep) Z 12 7 7 0", false),
            ("7 (sleep) S 1 7 7 0", false),
            ("", false),
        ] {
            assert_eq!(is_zombie_of_process_1(stat), is_one, "{stat}");
        }
    }
}
