//! A pipe of its own on which a command says what is to become of its message.
//!
//! Standard error will not do for that: a handler whose error repeats the body of its message lets the publisher speak.

use std::{
    convert::Infallible,
    io,
    sync::{Mutex, MutexGuard},
};

use command_fds::{CommandFdExt, FdMapping};
use tokio::{
    net::unix::pipe::{Receiver, pipe},
    process::Command,
};

use super::last_line::{FirstLines, LastLine};

/// Its number in the command. Shells redirect to one digit only.
const NUMBER: i32 = 3;
/// The variable that holds the number.
pub(super) const NAME: &str = "RETRYRMQ_OUTCOME_FD";

/// Our end of the pipe.
pub(super) struct OutcomePipe {
    from: Receiver,
    said: Mutex<PipeContent>,
}

/// What is kept of what was said.
enum PipeContent {
    /// One word for one message.
    Last(LastLine),
    /// One for each.
    Each(FirstLines),
}

impl PipeContent {
    fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Last(line) => line.push(bytes),
            Self::Each(lines) => lines.push(bytes),
        }
    }
}

impl OutcomePipe {
    /// A pipe whose other end `command` has to itself; no other command inherits it. With `answers` so many lines are kept, and one more to
    /// know that there were too many; otherwise the last one.
    pub(super) fn to(command: &mut Command, answers: Option<usize>) -> io::Result<Self> {
        let (to, from) = pipe()?;
        let mapping = FdMapping {
            parent_fd: to.into_blocking_fd()?,
            child_fd: NUMBER,
        };
        command
            .fd_mappings(vec![mapping])
            .map_err(io::Error::other)?
            .env(NAME, NUMBER.to_string());
        let said = match answers {
            None => PipeContent::Last(LastLine::default()),
            Some(count) => PipeContent::Each(FirstLines::new(count + 1)),
        };
        let said = Mutex::new(said);
        Ok(Self { from, said })
    }

    /// Takes what comes, so that a command can write as much as it likes.
    pub(super) async fn listen(&self) -> Infallible {
        let mut chunk = [0; 4096];
        while self.from.readable().await.is_ok() {
            match self.from.try_read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => self.kept().push(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break, // an error is an end as well
            }
        }
        std::future::pending().await
    }

    /// What was said, now that the command is gone: it is in the pipe, and who was left behind is not waited for. Empty if nothing was;
    /// otherwise the last line, or the line of each message.
    pub(super) fn outcome_lines(&self) -> Vec<Vec<u8>> {
        let mut left = rustix::io::ioctl_fionread(&self.from).unwrap_or_default();
        let mut chunk = [0; 4096];
        // Read past tokio, which may not have heard yet that there is something.
        while left > 0
            && let Ok(read @ 1..) = rustix::io::read(&self.from, &mut chunk)
        {
            self.kept().push(&chunk[..read]);
            left = left.saturating_sub(read as u64);
        }
        match &*self.kept() {
            PipeContent::Last(line) => {
                Vec::from_iter(Some(line.bytes()).filter(|line| !line.is_empty()))
            }
            PipeContent::Each(lines) => lines.all(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, PipeContent> {
        self.said
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}
