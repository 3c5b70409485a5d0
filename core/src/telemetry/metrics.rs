//! Counters of a consumer, as numbers and in the Prometheus text format.

use std::sync::atomic::AtomicU64;

use super::Event;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    queue: String,
}

impl Labels {
    fn of(queue: &str) -> Self {
        Self {
            queue: queue.to_owned(),
        }
    }
}

macro_rules! counters {
    ($($name:ident = $metric:literal: $help:literal),* $(,)?) => {
        /// The counters of one queue, shared by everything that counts.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter<u64, AtomicU64>,)*
            pub(crate) outstanding: Gauge,
        }

        /// The counters of one queue, from the start of its client. All consumers of the queue on that client share them.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = $help] pub $name: u64,)*
            #[doc = "Messages delivered and not settled yet."]
            pub outstanding: u64,
        }

        impl Stats {
            /// All of them with their names, in a fixed order: for logs, tables and other languages.
            #[must_use]
            pub fn numbers(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)* ("outstanding", self.outstanding)]
            }
        }

        impl Counters {
            pub(crate) fn stats(&self) -> Stats {
                Stats {
                    $($name: self.$name.get(),)*
                    outstanding: u64::try_from(self.outstanding.get()).unwrap_or(0),
                }
            }
        }

        struct Families {
            $($name: Family<Labels, Counter<u64, AtomicU64>>,)*
            outstanding: Family<Labels, Gauge>,
        }

        impl Families {
            fn register(registry: &mut Registry) -> Self {
                let families = Self { $($name: Family::default(),)* outstanding: Family::default() };
                $(registry.register(
                    concat!("retryrmq_", $metric),
                    $help.trim_end_matches('.'),
                    families.$name.clone(),
                );)*
                registry.register("retryrmq_messages_outstanding", "Messages delivered and not settled yet", families.outstanding.clone());
                families
            }

            fn of(&self, queue: &str) -> Counters {
                let labels = Labels::of(queue);
                Counters {
                    $($name: self.$name.get_or_create(&labels).clone(),)*
                    outstanding: self.outstanding.get_or_create(&labels).clone(),
                }
            }
        }
    };
}

counters! {
    delivered = "messages_delivered": "Messages delivered to the consumer.",
    acked = "messages_acked": "Messages handled and acknowledged.",
    failed = "messages_failed": "Attempts that failed.",
    retried = "messages_retried": "Messages sent to wait for another attempt.",
    deferred = "messages_deferred": "Messages that a handler deferred.",
    parked = "messages_parked": "Messages parked.",
    handed_over = "messages_handed_over": "Failed messages handed over to the service, whose policy decides.",
    rejected = "messages_rejected": "Failed messages rejected without requeue, because `dlx` is off.",
    detoured = "messages_detoured": "Messages redelivered because their consumer never settled them, or too early with `native`; a copy waits, so that no crash is missed and no delay is skipped.",
    already_handled = "messages_already_handled": "Redeliveries of handled messages, acknowledged and not handled again.",
    requeued = "messages_requeued": "Messages requeued.",
    unreadable = "messages_unreadable": "Messages moved to `<queue>.unreadable`, because RabbitMQ cannot deliver them over AMQP 0-9-1.",
    stale = "stale_settlements": "Settlements without effect, because the message was already settled or belongs to a lost connection.",
    publish_failures = "publish_failures": "Copies that could not be stored at once.",
    reconnects = "consumer_reconnects": "How often the consumer consumed again after a lost connection or channel.",
    pauses = "consumer_pauses": "How often the consumer paused because too many attempts failed.",
}

impl Counters {
    /// Counts an event.
    pub(crate) fn note(&self, event: &Event) {
        let mut count = 1;
        let counter = match event {
            Event::Retried { .. } => &self.retried,
            Event::Deferred { .. } => &self.deferred,
            Event::Parked { .. } => &self.parked,
            Event::Detoured { .. } => &self.detoured,
            Event::HandedOver { .. } => &self.handed_over,
            Event::Rejected { .. } => &self.rejected,
            Event::AlreadyHandled { .. } => &self.already_handled,
            Event::PublishFailed { .. } => &self.publish_failures,
            Event::Requeued { .. } => &self.requeued,
            Event::Paused { .. } => &self.pauses,
            Event::UnreadableMoved { count: moved, .. } => {
                count = u64::from(*moved);
                &self.unreadable
            }
            Event::Replayed { .. }
            | Event::Disconnected { .. }
            | Event::LoginRefused { .. }
            | Event::ConsumingStopped { .. }
            | Event::Reconnected { .. }
            | Event::Resumed { .. } => return,
        };
        counter.inc_by(count);
    }
}

/// The metrics of one client.
pub(crate) struct Metrics {
    registry: Registry,
    families: Families,
    handling: Family<Labels, Histogram, fn() -> Histogram>,
    depth: ParkedDepth,
    connections: Family<Purpose, Gauge>,
}

/// Bucket limits in seconds, from a moment to longer than most handler timeouts.
const SECONDS: [f64; 12] = [
    0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0,
];

/// How many messages are parked, per work queue.
#[derive(Clone, Default)]
pub(crate) struct ParkedDepth(Family<Labels, Gauge>);

impl ParkedDepth {
    pub(crate) fn is(&self, queue: &str, parked: u32) {
        self.0.get_or_create(&Labels::of(queue)).set(parked.into());
    }

    pub(crate) fn unknown(&self, queue: &str) {
        self.0.remove(&Labels::of(queue));
    }
}

/// What a connection is for.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Purpose {
    purpose: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        let handling =
            Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        registry.register(
            "retryrmq_handler_seconds",
            "Seconds from taking a message for a handler to its outcome",
            handling.clone(),
        );
        let depth = ParkedDepth::default();
        registry.register(
            "retryrmq_parked_depth",
            "Ready messages in the parking queue, as of the previous scrape",
            depth.0.clone(),
        );
        let connections = Family::<Purpose, Gauge>::default();
        registry.register(
            "retryrmq_connection_up",
            "Whether the connection is open: 1, or 0",
            connections.clone(),
        );
        Self {
            registry,
            families,
            handling,
            depth,
            connections,
        }
    }
}

impl Metrics {
    /// The counters of `queue`, shared by all its consumers.
    pub(crate) fn of(&self, queue: &str) -> Counters {
        self.families.of(queue)
    }

    /// How long handlers of `queue` take.
    pub(crate) fn handling(&self, queue: &str) -> Histogram {
        self.handling.get_or_create(&Labels::of(queue)).clone()
    }

    pub(crate) fn depth(&self) -> ParkedDepth {
        self.depth.clone()
    }

    /// All metrics in the OpenMetrics text format, which Prometheus reads, and which connections are open.
    pub(crate) fn text(&self, connections: [(&'static str, bool); 2]) -> String {
        for (purpose, open) in connections {
            let gauge = self.connections.get_or_create(&Purpose { purpose });
            gauge.set(open.into());
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
