//! What a command writes to standard error: passed on as it comes, line by line, and its end kept.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    process::ChildStderr,
    sync::oneshot,
    time::{sleep, timeout},
};

use crate::nonblocking_output;

/// How much is kept.
const KEPT: usize = 8 * 1024;
/// Longer lines are passed on in pieces.
const LONGEST_LINE: usize = 64 * 1024;

/// How long our own standard error may hold up a command that has ended.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks whether more comes from a pipe that something else still holds.
const PAUSE: Duration = Duration::from_millis(200);
/// How many looks, for what never stops writing.
const LOOKS: u32 = 5;

/// The end of what was written so far.
#[derive(Clone, Debug, Default)]
pub(super) struct StderrTail(Arc<State>);

#[derive(Debug, Default)]
struct State {
    kept: Mutex<VecDeque<u8>>,
    /// How often something came.
    reads: AtomicU64,
}

impl StderrTail {
    pub(super) fn push(&self, bytes: &[u8]) {
        self.0.reads.fetch_add(1, Ordering::SeqCst);
        let mut kept = self
            .0
            .kept
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        kept.extend(bytes);
        let over = kept.len().saturating_sub(KEPT);
        kept.drain(..over);
    }

    fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::SeqCst)
    }

    /// The end as it is now, without a character that was cut in two at its beginning.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let kept = self
            .0
            .kept
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        let kept: Vec<u8> = kept.iter().copied().collect();
        let is_torn = |byte: &&u8| **byte & 0xc0 == 0x80;
        let torn = if kept.len() < KEPT {
            0
        } else {
            kept.iter().take(3).take_while(is_torn).count()
        };
        kept[torn..].to_vec()
    }
}

/// A standard error that is passed on until it ends, for as long as anybody writes to it.
pub(super) struct StderrForward {
    tail: StderrTail,
    /// To be told that the command has ended, and to answer when all that it wrote is passed on.
    ended: oneshot::Sender<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

impl StderrForward {
    pub(super) fn of(from: ChildStderr) -> Self {
        let tail = StderrTail::default();
        let (ended, end_notice) = oneshot::channel();
        let task = tokio::spawn(pass_on(from, tail.clone(), end_notice));
        Self { tail, ended, task }
    }

    /// What the command wrote, now that it is gone. It is in the pipe, so that nobody has to be waited for who writes to
    /// the same pipe later.
    ///
    /// `with_rest`: also what comes shortly after from those who have not finished yet, such as `2> >(sed …)` in a shell.
    pub(super) async fn settle(self, with_rest: bool) -> Vec<u8> {
        let Self {
            tail,
            ended,
            mut task,
        } = self;
        let (passed, is_passed) = oneshot::channel();
        if ended.send(passed).is_ok() {
            let _ = timeout(TIME_LIMIT, is_passed).await; // no answer: the pipe has ended, and all is passed on
        }
        for _ in 0..if with_rest { LOOKS } else { 0 } {
            let before = tail.reads();
            tokio::select! {
                _ = &mut task => break,
                () = sleep(PAUSE) => {}
            }
            if before == tail.reads() {
                break;
            }
        }
        tail.bytes()
    }
}

/// Passes `from` on until it ends, and answers when all that the command wrote itself is through.
async fn pass_on(
    from: ChildStderr,
    tail: StderrTail,
    mut ended: oneshot::Receiver<oneshot::Sender<()>>,
) {
    let mut lines = Lines {
        from,
        tail,
        chunk: vec![0; 16 * 1024],
        pending: Vec::new(),
    };
    let passed = loop {
        tokio::select! {
            biased;
            end_notice = &mut ended => break end_notice.ok(),
            read = lines.read() => match read {
                Some(_) => lines.pass_whole().await,
                None => return lines.pass_all().await,
            }
        }
    };
    let mut left = rustix::io::ioctl_fionread(&lines.from).unwrap_or_default();
    while left > 0
        && let Some(read) = lines.read().await
    {
        left = left.saturating_sub(read);
        lines.pass_whole().await;
    }
    lines.pass_all().await;
    if let Some(passed) = passed {
        let _ = passed.send(()); // it may have lost its patience
    }
    while lines.read().await.is_some() {
        lines.pass_whole().await;
    }
    lines.pass_all().await;
}

/// Whole lines where possible, so that commands that run at the same time do not mix them up.
struct Lines {
    from: ChildStderr,
    tail: StderrTail,
    chunk: Vec<u8>,
    pending: Vec<u8>,
}

impl Lines {
    /// How much came; nothing at the end.
    async fn read(&mut self) -> Option<u64> {
        // An error is an end as well.
        let read = self
            .from
            .read(&mut self.chunk)
            .await
            .ok()
            .filter(|n| *n > 0)?;
        self.tail.push(&self.chunk[..read]);
        self.pending.extend_from_slice(&self.chunk[..read]);
        Some(read as u64)
    }

    async fn pass_whole(&mut self) {
        let whole = match self.pending.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if self.pending.len() > LONGEST_LINE => self.pending.len(),
            None => return,
        };
        let rest = self.pending.split_off(whole);
        write(&std::mem::replace(&mut self.pending, rest)).await;
    }

    async fn pass_all(&mut self) {
        let mut all = std::mem::take(&mut self.pending);
        if all.last().is_some_and(|byte| *byte != b'\n') {
            all.push(b'\n');
        }
        write(&all).await;
    }
}

async fn write(bytes: &[u8]) {
    if let Some(nonblocking) = nonblocking_output::err().filter(|_| !bytes.is_empty()) {
        // Where our own standard error is closed, the command may go on all the same.
        let _ = nonblocking.offer(bytes.to_vec()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_end() {
        let tail = StderrTail::default();
        tail.push(b"short");
        assert_eq!(tail.bytes(), b"short");
        tail.push("ä".repeat(KEPT).as_bytes());
        tail.push(b"x");
        let kept = tail.bytes();
        assert!(kept.len() <= KEPT && kept.len() > KEPT - 3);
        assert!(std::str::from_utf8(&kept).unwrap().ends_with("äx"));
    }
}
