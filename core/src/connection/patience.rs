//! How long a broker may take to answer.

use std::time::Duration;

/// For any single question. Long enough for a quorum queue that elects a leader.
pub(crate) const ANSWER: Duration = Duration::from_secs(20);

/// For a host, while there are others to try.
pub(super) const IMPATIENT: Duration = Duration::from_secs(3);
