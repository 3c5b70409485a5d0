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

use super::last_line::LastLine;

/// Its number in the command. Shells redirect to one digit only.
const NUMBER: i32 = 3;
/// The variable that holds the number.
pub(super) const NAME: &str = "RETRYRMQ_OUTCOME_FD";

/// Our end of the pipe.
pub(super) struct Channel {
    from: Receiver,
    said: Mutex<LastLine>,
}

impl Channel {
    /// A pipe whose other end `command` has to itself; no other command inherits it.
    pub(super) fn to(command: &mut Command) -> io::Result<Self> {
        let (to, from) = pipe()?;
        let mapping = FdMapping {
            parent_fd: to.into_blocking_fd()?,
            child_fd: NUMBER,
        };
        command
            .fd_mappings(vec![mapping])
            .map_err(io::Error::other)?
            .env(NAME, NUMBER.to_string());
        let said = Mutex::default();
        Ok(Self { from, said })
    }

    /// Takes what comes, so that a command can write as much as it likes.
    pub(super) async fn listen(&self) -> Infallible {
        let mut chunk = [0; 4096];
        while self.from.readable().await.is_ok() {
            match self.from.try_read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => self.line().push(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break, // an error is an end as well
            }
        }
        std::future::pending().await
    }

    /// The last line of what was said, now that the command is gone: it is in the pipe, and who was left behind is not waited for.
    pub(super) fn said(&self) -> Vec<u8> {
        let mut left = rustix::io::ioctl_fionread(&self.from).unwrap_or_default();
        let mut chunk = [0; 4096];
        // Read past tokio, which may not have heard yet that there is something.
        while left > 0
            && let Ok(read @ 1..) = rustix::io::read(&self.from, &mut chunk)
        {
            self.line().push(&chunk[..read]);
            left = left.saturating_sub(read as u64);
        }
        self.line().bytes()
    }

    fn line(&self) -> MutexGuard<'_, LastLine> {
        self.said
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}
