//! The sizes, and lengths of names, that one connection's broker accepts, as far as they are known. They are learned once, and forgotten with
//! the connection.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::NameLimit;

/// The largest frame we accept. If the server sets no limit, lapin would allocate without bound.
pub(super) const FRAME_MAX: u32 = 131_072;

/// Type, channel, size and end octet of a frame.
const FRAME_OVERHEAD: usize = 8;
/// Bytes of a frame that a copy leaves for headers that the broker adds (`x-death`, `x-delivery-count`): this many of a usual frame, and
/// this share of a small one.
const ROOM: usize = 2 * 1024;
const ROOM_SHARE: usize = 8;

/// The most bytes of a message's headers and properties with frames of this size.
pub(crate) const fn header_room(frame_max: u32) -> usize {
    let frame = frame_max as usize;
    let share = frame / ROOM_SHARE;
    frame - if share < ROOM { share } else { ROOM }
}

/// The most bytes for a copy with RabbitMQ's default frame size.
pub(crate) const USUAL_HEADER_ROOM: usize = header_room(FRAME_MAX);

/// The sizes that a broker accepts.
#[derive(Debug)]
pub(crate) struct Limits {
    frame_max: u32,
    names: NameLimit,
    /// The largest body that it has accepted.
    taken: AtomicUsize,
    /// The largest body that it would accept; known after it has refused one.
    largest: AtomicUsize,
}

impl Limits {
    /// With frames of this size; nothing is known about bodies.
    pub(crate) fn new(frame_max: u32) -> Self {
        Self {
            frame_max,
            names: NameLimit::NONE,
            taken: AtomicUsize::new(0),
            largest: AtomicUsize::new(usize::MAX),
        }
    }

    /// With this limit of names.
    pub(super) fn with_names(mut self, names: NameLimit) -> Self {
        self.names = names;
        self
    }

    /// How long the names of queues and exchanges may be.
    pub(crate) fn names(&self) -> NameLimit {
        self.names
    }

    pub(crate) fn frame_max(&self) -> u32 {
        self.frame_max
    }

    /// The most bytes of a content header. A larger one closes the connection (AMQP 501).
    pub(crate) fn content_header_max(&self) -> usize {
        self.frame_max as usize - FRAME_OVERHEAD
    }

    /// Whether a body of this size was accepted before, so that this one cannot close the channel.
    pub(crate) fn is_proven(&self, body: usize) -> bool {
        body <= self.taken.load(Ordering::Relaxed)
    }

    /// The largest body that the broker accepts, if this one is larger.
    pub(crate) fn refuses(&self, body: usize) -> Option<usize> {
        Some(self.largest.load(Ordering::Relaxed)).filter(|largest| body > *largest)
    }

    /// A body of this size was accepted.
    pub(crate) fn took(&self, body: usize) {
        if !self.is_proven(body) {
            self.taken.fetch_max(body, Ordering::Relaxed);
        }
    }

    /// The broker said that it accepts bodies up to this size.
    pub(crate) fn limited(&self, largest: usize) {
        self.largest.store(largest, Ordering::Relaxed);
        self.taken.fetch_min(largest, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_leaves_room_in_frames_of_every_size() {
        assert_eq!(header_room(131_072), 126 * 1024);
        assert_eq!(header_room(8_192), 7 * 1024);
        assert_eq!(header_room(4_096), 3_584);
        for frame_max in [4_096, 8_192, 65_536, 131_072] {
            let limits = Limits::new(frame_max);
            assert!(header_room(frame_max) < limits.content_header_max());
        }
    }

    #[test]
    fn what_was_refused_once_is_known() {
        let limits = Limits::new(131_072);
        assert!(limits.is_proven(0) && !limits.is_proven(1));
        assert_eq!(limits.refuses(usize::MAX), None);
        limits.took(500);
        limits.took(100);
        assert!(limits.is_proven(500) && !limits.is_proven(501));
        limits.limited(400);
        assert_eq!(limits.refuses(401), Some(400));
        assert_eq!(limits.refuses(400), None);
        assert!(limits.is_proven(400) && !limits.is_proven(401));
    }
}
