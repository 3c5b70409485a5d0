//! What a command writes to standard error: passed on as it comes, line by line, and its end kept.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::JoinHandle,
    time::timeout,
};

/// How much is kept.
const KEPT: usize = 8 * 1024;
/// Longer lines are passed on in pieces.
const LONGEST_LINE: usize = 64 * 1024;

/// Between two looks whether more comes from a pipe that something else still holds.
const PAUSE: Duration = Duration::from_millis(200);
/// How many looks, for what never stops writing.
const LOOKS: u32 = 25;

/// The end of what was written so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<State>);

#[derive(Debug, Default)]
struct State {
    kept: Mutex<VecDeque<u8>>,
    /// How often something came.
    reads: AtomicU64,
    /// Whether our own standard error is what it waits for.
    is_writing: AtomicBool,
}

impl Tail {
    fn push(&self, bytes: &[u8]) {
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

    async fn write(&self, bytes: &[u8], out: &mut (impl AsyncWrite + Unpin)) {
        self.0.is_writing.store(true, Ordering::SeqCst);
        // Where our own standard error is closed, the command may go on all the same.
        let _ = out.write_all(bytes).await;
        let _ = out.flush().await;
        self.0.is_writing.store(false, Ordering::SeqCst);
    }

    /// Waits for the rest once the command is gone: until `passing` ends, or nothing comes any more although something
    /// that the command started keeps the pipe open.
    pub(super) async fn settle(&self, passing: &mut JoinHandle<()>) {
        let mut before = None;
        for _ in 0..LOOKS {
            if timeout(PAUSE, &mut *passing).await.is_ok() {
                return;
            }
            let reads = self.0.reads.load(Ordering::SeqCst);
            if before == Some(reads) && !self.0.is_writing.load(Ordering::SeqCst) {
                return;
            }
            before = Some(reads);
        }
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

/// Passes `from` on until it ends. Whole lines, so that commands that run at the same time do not mix them up.
pub(super) async fn pass_on(mut from: impl AsyncRead + Unpin, tail: Tail) {
    let mut pending = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    let mut out = tokio::io::stderr();
    loop {
        let read = match from.read(&mut chunk).await {
            Ok(0) | Err(_) => break, // an error is an end as well
            Ok(read) => read,
        };
        tail.push(&chunk[..read]);
        pending.extend_from_slice(&chunk[..read]);
        let whole = match pending.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if pending.len() > LONGEST_LINE => pending.len(),
            None => continue,
        };
        tail.write(&pending[..whole], &mut out).await;
        pending.drain(..whole);
    }
    if !pending.is_empty() {
        pending.push(b'\n');
        tail.write(&pending, &mut out).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_end() {
        let tail = Tail::default();
        tail.push(b"short");
        assert_eq!(tail.bytes(), b"short");
        tail.push("ä".repeat(KEPT).as_bytes());
        tail.push(b"x");
        let kept = tail.bytes();
        assert!(kept.len() <= KEPT && kept.len() > KEPT - 3);
        assert!(std::str::from_utf8(&kept).unwrap().ends_with("äx"));
    }
}
