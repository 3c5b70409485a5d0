//! How long a broker may take to answer, and how long to wait before it is asked again.

use std::time::Duration;

use crate::doubling_pause::DoublingPause;

/// For any single question. Long enough for a quorum queue that elects a leader.
pub(crate) const ANSWER: Duration = Duration::from_secs(20);

/// For a host, while there are others to try.
pub(super) const IMPATIENT: Duration = Duration::from_secs(3);

/// For the answer to a close, and for what is written before it. After that, it is closed without.
pub(crate) const GOODBYE: Duration = Duration::from_secs(2);

/// While a broker is away, or a queue has no leader.
pub(crate) const BROKER_AWAY_PAUSE: DoublingPause =
    DoublingPause::new(Duration::from_millis(500), Duration::from_secs(10));
