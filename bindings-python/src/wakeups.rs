//! A socket that is readable when something has happened, for whoever waits in an event loop of greenlets (gevent, eventlet): such a loop
//! can wait for a file descriptor, but not for a condition variable.

use std::io;

#[cfg(unix)]
use std::{
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
};

/// Both ends. It keeps the one that others wait for, so that no byte is ever sent to a closed socket, which would be a signal.
pub(crate) struct Wakeups {
    #[cfg(unix)]
    sending: UnixStream,
    #[cfg(unix)]
    receiving: UnixStream,
}

#[cfg(unix)]
impl Wakeups {
    pub(crate) fn new() -> io::Result<Self> {
        let (sending, receiving) = UnixStream::pair()?;
        sending.set_nonblocking(true)?;
        receiving.set_nonblocking(true)?;
        Ok(Self { sending, receiving })
    }

    /// The file descriptor to wait for, until it is readable. It stays ours.
    pub(crate) fn readable(&self) -> i32 {
        self.receiving.as_raw_fd()
    }

    /// Makes it readable. Never waits.
    pub(crate) fn send(&self) {
        // If the socket is full, it is readable already.
        let _ = (&self.sending).write(&[0]);
    }

    /// Makes it unreadable until the next [`send`](Self::send).
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 1024];
        while matches!((&self.receiving).read(&mut bytes), Ok(read) if read == bytes.len()) {}
    }
}

#[cfg(not(unix))]
impl Wakeups {
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn readable(&self) -> i32 {
        -1
    }

    pub(crate) fn send(&self) {}

    pub(crate) fn clear(&self) {}
}
