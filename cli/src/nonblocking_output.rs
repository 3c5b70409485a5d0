//! What a long-lived subcommand prints: written by a thread of its own, because a reader who stops reading, such as a pager
//! or a terminal that is scrolled back, stops whoever writes to it. Nobody else waits. What finds no room is dropped and counted, and the count
//! stands where the lines would.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::watch;

use retryrmq_operator::plural;

/// Bytes that may wait for a reader.
const ROOM: usize = 1024 * 1024;
/// How long a reader may do nothing, when there is still something for him, until nobody waits for him any more; and how long the
/// end waits for readers.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// How long the end waits at least for the reader of standard error, when that of standard output has taken all the time.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Between two looks whether there is room.
const PAUSE: Duration = Duration::from_millis(20);
/// A reader is seen to read by so many bytes.
const PIECE: usize = 4096;

/// Says in a line that so many were dropped.
type DroppedNotice = fn(u64) -> String;

static OUT: OnceLock<NonblockingOutput> = OnceLock::new();
static ERR: OnceLock<NonblockingOutput> = OnceLock::new();

/// From now on nobody waits for the readers of standard output and standard error.
pub(crate) fn start() {
    OUT.get_or_init(|| {
        let remark =
            |count| serde_json::json!({"event": "lines_dropped", "lines": count}).to_string();
        NonblockingOutput::to(io::stdout(), false, ROOM, remark)
    });
    ERR.get_or_init(|| {
        let remark = |count| {
            let lines = plural::word(count, "line is", "lines are");
            let them = plural::word(count, "it", "them");
            format!("{count} {lines} missing here: nobody read {them} in time")
        };
        NonblockingOutput::to(io::stderr(), true, ROOM, remark)
    });
}

/// The way to standard output, if it was started.
pub(crate) fn out() -> Option<&'static NonblockingOutput> {
    OUT.get()
}

/// The way to standard error, if it was started.
pub(crate) fn err() -> Option<&'static NonblockingOutput> {
    ERR.get()
}

/// Waits for the readers of both, and tells those of standard error what nobody read on standard output.
pub(crate) fn finish() {
    let until = Instant::now() + TIME_LIMIT;
    let missing = out().map_or(0, |nonblocking| nonblocking.finish(until));
    let Some(err) = err() else { return };
    if missing > 0 {
        let lines = plural::word(missing, "line is", "lines are");
        let them = plural::word(missing, "it", "them");
        let line = format!("{missing} {lines} not on standard output: nobody read {them}\n");
        let _ = err.say(line.into_bytes()); // when it is closed there is nobody left to tell
    }
    err.finish(until.max(Instant::now() + LAST_WORDS));
}

/// The way to one reader.
pub(crate) struct NonblockingOutput {
    shared: Arc<Shared>,
    broken: watch::Receiver<bool>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    room: usize,
    is_log: bool,
    remark: DroppedNotice,
}

struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Of those that came since the last in `lines`.
    dropped: u64,
    /// Whether the writer holds one that is not written yet.
    is_writing: bool,
    /// When the reader last took something, or found nothing to take.
    read_at: Instant,
    /// Why nothing more can be written.
    error: Option<(io::ErrorKind, String)>,
}

impl NonblockingOutput {
    fn to(
        to: impl Write + Send + 'static,
        is_log: bool,
        room: usize,
        remark: DroppedNotice,
    ) -> Self {
        let (broken_sender, broken) = watch::channel(false);
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Waiting {
                lines: VecDeque::new(),
                bytes: 0,
                dropped: 0,
                is_writing: false,
                read_at: Instant::now(),
                error: None,
            }),
            changed: Condvar::new(),
            room,
            is_log,
            remark,
        });
        let writer = Arc::clone(&shared);
        std::thread::spawn(move || {
            writer.write_to(to);
            broken_sender.send_replace(true);
        });
        Self { shared, broken }
    }

    /// Hands over a line, with its end. Never waits.
    ///
    /// # Errors
    /// Why an earlier one could not be written: nobody reads any more.
    pub(crate) fn say(&self, line: Vec<u8>) -> io::Result<()> {
        let mut waiting = self.shared.lock();
        waiting.check()?;
        if self.shared.has_room(&waiting, &line) {
            self.shared.take(&mut waiting, line);
        } else {
            waiting.dropped += 1;
        }
        Ok(())
    }

    /// Like [`say`](Self::say), but waits for room while the reader reads.
    pub(crate) async fn offer(&self, lines: Vec<u8>) -> io::Result<()> {
        loop {
            {
                let mut waiting = self.shared.lock();
                waiting.check()?;
                if self.shared.has_room(&waiting, &lines) {
                    self.shared.take(&mut waiting, lines);
                    return Ok(());
                }
                if waiting.read_at.elapsed() >= TIME_LIMIT {
                    waiting.dropped += lines.iter().filter(|byte| **byte == b'\n').count() as u64;
                    return Ok(());
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether anybody reads.
    ///
    /// # Errors
    /// Why an earlier line could not be written.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.shared.lock().check()
    }

    /// Waits until nobody reads any more.
    pub(crate) async fn broken(&self) {
        let _ = self.broken.clone().wait_for(|broken| *broken).await;
    }

    /// Waits until everything is written, but not beyond `until`. How many lines were not.
    fn finish(&self, until: Instant) -> u64 {
        let mut waiting = self.shared.lock();
        self.shared.remark(&mut waiting);
        self.shared.changed.notify_all();
        while waiting.is_pending() && Instant::now() < until {
            let rest = until.saturating_duration_since(Instant::now());
            let woken = self.shared.changed.wait_timeout(waiting, rest);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        if waiting.error.is_some() {
            return 0; // whoever closes a pipe wants no more
        }
        waiting.lines.len() as u64 + u64::from(waiting.is_writing)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it fits. What is larger than all of the room has it alone.
    fn has_room(&self, waiting: &Waiting, line: &[u8]) -> bool {
        waiting.lines.is_empty() || waiting.bytes + line.len() <= self.room
    }

    fn take(&self, waiting: &mut Waiting, line: Vec<u8>) {
        self.remark(waiting);
        waiting.push(line);
        self.changed.notify_all();
    }

    /// Puts down how many are missing.
    fn remark(&self, waiting: &mut Waiting) {
        if waiting.dropped > 0 {
            let count = std::mem::take(&mut waiting.dropped);
            waiting.push(format!("{}\n", (self.remark)(count)).into_bytes());
        }
    }

    /// Until it cannot.
    fn write_to(&self, mut to: impl Write) {
        loop {
            let line = self.next();
            let written = line.chunks(PIECE).try_for_each(|piece| -> io::Result<()> {
                write(&mut to, piece)?;
                self.lock().read_at = Instant::now();
                Ok(())
            });
            let mut waiting = self.lock();
            waiting.is_writing = false;
            match written {
                Ok(()) => {}
                // The next line may be written: a full disk is emptied again.
                Err(error) if self.is_log && error.kind() != io::ErrorKind::BrokenPipe => {
                    waiting.dropped += 1;
                }
                Err(error) => {
                    waiting.error = Some((error.kind(), error.to_string()));
                    waiting.lines.clear();
                }
            }
            let is_over = waiting.error.is_some();
            drop(waiting);
            self.changed.notify_all();
            if is_over {
                return;
            }
        }
    }

    /// Waits for the next line.
    fn next(&self) -> Vec<u8> {
        let mut waiting = self.lock();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                waiting.is_writing = true;
                return line;
            }
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Writes all of it. A descriptor that somebody else has made non-blocking says that it would block: it is asked again.
fn write(to: &mut impl Write, mut piece: &[u8]) -> io::Result<()> {
    loop {
        let written = if piece.is_empty() {
            to.flush().map(|()| 0)
        } else {
            to.write(piece)
        };
        match written {
            Ok(_) if piece.is_empty() => return Ok(()),
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => piece = &piece[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Waiting {
    fn push(&mut self, line: Vec<u8>) {
        if !self.is_pending() {
            self.read_at = Instant::now();
        }
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    fn check(&self) -> io::Result<()> {
        match &self.error {
            Some((kind, why)) => Err(io::Error::new(*kind, why.clone())),
            None => Ok(()),
        }
    }

    fn is_pending(&self) -> bool {
        self.error.is_none() && (self.is_writing || !self.lines.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader who takes one piece after the other, when it is told to.
    struct SlowReader(mpsc::Receiver<()>, mpsc::Sender<Vec<u8>>);

    impl Write for SlowReader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let gone = |_| io::ErrorKind::BrokenPipe;
            self.0.recv().map_err(|error| gone(error.to_string()))?;
            self.1
                .send(bytes.to_vec())
                .map_err(|error| gone(error.to_string()))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow(room: usize) -> (NonblockingOutput, mpsc::Sender<()>, mpsc::Receiver<Vec<u8>>) {
        let (go, may) = mpsc::channel();
        let (came, comes) = mpsc::channel();
        (
            NonblockingOutput::to(SlowReader(may, came), false, room, |count| {
                format!("-{count}")
            }),
            go,
            comes,
        )
    }

    #[test]
    fn what_finds_no_room_is_counted_where_it_is_missing() {
        let (nonblocking, read, lines) = slow(8);
        for line in ["one\n", "two\n"] {
            nonblocking.say(line.into()).unwrap();
        }
        // The first is with the writer now, or will be: with one line read, there is room for two.
        read.send(()).unwrap();
        assert_eq!(lines.recv().unwrap(), b"one\n");
        for line in ["3\n", "4\n", "a long one\n", "five\n", "6\n"] {
            nonblocking.say(line.into()).unwrap();
        }
        assert!(nonblocking.finish(Instant::now()) > 0, "nobody reads");
        (0..9).for_each(|_| read.send(()).unwrap());
        assert_eq!(
            nonblocking.finish(Instant::now() + Duration::from_secs(60)),
            0
        );
        let rest: Vec<u8> = lines.try_iter().flatten().collect();
        // The last one had room if the writer was quick.
        let rest = String::from_utf8(rest).unwrap();
        assert!(
            ["two\n3\n4\n-2\n6\n", "two\n3\n4\n-3\n"].contains(&&*rest),
            "{rest}"
        );
    }

    #[tokio::test]
    async fn a_reader_who_left_is_told_of_at_the_next_line() {
        let (nonblocking, read, _) = slow(8);
        nonblocking.say(b"one\n".to_vec()).unwrap();
        read.send(()).unwrap();
        nonblocking.broken().await;
        let error = nonblocking.say(b"two\n".to_vec()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(
            nonblocking.finish(Instant::now() + Duration::from_secs(60)),
            0
        );
    }
}
