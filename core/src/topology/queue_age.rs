//! How old a queue is, as far as a client can know.

use std::{ops::Add, time::Duration};

use crate::mutants::{self, Mutant};

/// How long after its declaration a queue keeps what it confirmed. A quorum queue younger than about a second can come back empty after its broker was
/// killed.
pub const SAFE_AGE: Duration = Duration::from_secs(2);

/// What is known of the age of a queue since it was found or created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueAge<T> {
    found: T,
    /// Whether its [marker](super::age_marker) has told that it was old when it was found.
    is_old: bool,
}

impl<T: Copy + Ord + Add<Duration, Output = T>> QueueAge<T> {
    /// Of a queue that was found or created just now.
    pub(crate) const fn found(now: T) -> Self {
        Self {
            found: now,
            is_old: false,
        }
    }

    /// From when on a message in it survives a crash of its broker.
    pub(crate) fn safe_from(self) -> T {
        if self.is_old {
            self.found
        } else {
            self.found + SAFE_AGE
        }
    }

    /// When a copy should be sent that there is now, if not at once: until it is safe, its original could not be acknowledged.
    pub(crate) fn sends_at(self, now: T) -> Option<T> {
        let safe = self.safe_from();
        (safe > now && !mutants::has(Mutant::CopiesToTheNew)).then_some(safe)
    }

    /// The answer of a look for its marker, which came now. Later than [`safe_from`](Self::safe_from) it is not needed, and might be about
    /// a queue that has come back empty since the copies were confirmed: whoever marks that one has known it for as long.
    pub(crate) fn note_marker(&mut self, is_marked: bool, now: T) {
        let is_marked = is_marked && !mutants::has(Mutant::ForgetsTheMarker);
        let is_marked = is_marked || mutants::has(Mutant::TrustsTheNew);
        self.is_old |= is_marked && now < self.safe_from();
    }

    /// Whether its marker may be set now.
    pub(crate) fn may_be_marked(self, now: T) -> bool {
        !self.is_old && now >= self.safe_from()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn a_queue_is_old_if_its_marker_says_so_in_time_and_is_marked_otherwise() {
        let found = Duration::from_secs(7);
        let age = QueueAge::found(found);
        let safe = found + SAFE_AGE;
        assert_eq!(age.safe_from(), safe);
        assert!(!age.may_be_marked(safe - MOMENT));
        assert!(age.may_be_marked(safe));
        for (is_marked, at, safe_from) in [
            (true, found, found),
            (true, safe - MOMENT, found),
            (true, safe, safe),
            (false, found, safe),
        ] {
            let mut age = age;
            age.note_marker(is_marked, at);
            assert_eq!(age.safe_from(), safe_from, "{is_marked} {at:?}");
            assert_eq!(age.sends_at(found), (safe_from > found).then_some(safe));
            assert_eq!(age.sends_at(safe), None);
            assert_eq!(age.may_be_marked(safe), safe_from == safe);
        }
        let mut age = age;
        age.note_marker(true, found);
        age.note_marker(false, found + MOMENT);
        assert_eq!(age.safe_from(), found, "it was old before");
    }
}
