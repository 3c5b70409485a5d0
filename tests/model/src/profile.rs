//! Which broker is modelled, and how it is configured.

use std::time::Duration;

/// A series of RabbitMQ whose behaviour is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 3.10: no delivery limit by default, deaths are counted in the message's own headers.
    V3_10,
    /// 4.0: a delivery limit of 20, and every return counts.
    V4_0,
    /// 4.3: a return by nack does not count, and the count survives dead-lettering.
    V4_3,
}

impl Version {
    /// All of them, the oldest first.
    pub const ALL: [Version; 3] = [Version::V3_10, Version::V4_0, Version::V4_3];
}

/// The version and the settings of a broker. The defaults are those of a broker that nobody configured.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The series.
    pub version: Version,
    /// The largest body in bytes; one byte more costs the channel (406).
    pub largest_body: usize,
    /// The largest encoded properties in bytes; one byte more costs the connection (501).
    pub largest_properties: usize,
    /// How long a delivery may stay unsettled; `None` is for ever.
    pub consumer_timeout: Option<Duration>,
    /// After how long an at-least-once dead letter that could not be stored is tried again.
    pub dead_letter_patience: Duration,
    /// A quorum queue that is younger than this when the broker is killed comes back empty.
    pub young: Duration,
    /// The number of seconds since 1970 at which virtual time begins; it shows in `x-death`.
    pub epoch: u64,
    /// Whether the feature flag `stream_queue` is enabled, which a cluster that was upgraded from 3.8 lacks at first. Without
    /// it, quorum queues of 3.10 dead-letter at most once, whatever they ask for (91).
    pub stream_queue: bool,
    /// The most channels of a connection (`channel_max`). One more costs the connection (530).
    pub channel_max: Option<u16>,
    /// The most channels of all connections together, which is a limit of their user (`max-channels`). One more costs the
    /// connection (530).
    pub max_channels: Option<usize>,
    /// The user of every connection; a `user_id` that differs costs the channel (406).
    pub user: String,
    /// The name of the virtual host; it shows in the texts of refusals.
    pub vhost: String,
}

impl Profile {
    /// A broker of that series with its default settings.
    pub fn new(version: Version) -> Self {
        let mebibytes = if version == Version::V3_10 { 128 } else { 16 };
        Profile {
            version,
            largest_body: mebibytes * 1024 * 1024,
            largest_properties: 131_064 + 8,
            consumer_timeout: Some(Duration::from_secs(30 * 60)),
            dead_letter_patience: Duration::from_secs(180),
            young: Duration::from_secs(1),
            stream_queue: true,
            channel_max: None,
            max_channels: None,
            epoch: 1_700_000_000,
            user: "guest".into(),
            vhost: "/".into(),
        }
    }

    /// Whether quorum queues can dead-letter at least once.
    pub(crate) fn has_at_least_once(&self) -> bool {
        self.stream_queue || self.version >= Version::V4_0
    }

    /// The delivery limit of a quorum queue that names none.
    pub(crate) fn default_delivery_limit(&self) -> Option<i64> {
        (self.version >= Version::V4_0).then_some(20)
    }
}
