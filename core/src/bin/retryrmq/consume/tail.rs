//! What a command writes to standard error: passed on as it comes, line by line, and its end kept.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// How much is kept.
const KEPT: usize = 8 * 1024;
/// Longer lines are passed on in pieces.
const LONGEST_LINE: usize = 64 * 1024;

/// The end of what was written so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(|poison| poison.into_inner());
        kept.extend(bytes);
        let over = kept.len().saturating_sub(KEPT);
        kept.drain(..over);
    }

    /// The end as it is now, without a character that was cut in two at its beginning.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let kept: Vec<u8> = self
            .0
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .iter()
            .copied()
            .collect();
        let torn = if kept.len() < KEPT {
            0
        } else {
            kept.iter()
                .take(3)
                .take_while(|byte| **byte & 0xc0 == 0x80)
                .count()
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
        // Where our own standard error is closed, the command may go on all the same.
        let _ = out.write_all(&pending[..whole]).await;
        let _ = out.flush().await;
        pending.drain(..whole);
    }
    if !pending.is_empty() {
        pending.push(b'\n');
        let _ = out.write_all(&pending).await;
        let _ = out.flush().await;
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
