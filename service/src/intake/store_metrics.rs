//! The numbers of a store, for Prometheus.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        counter::ConstCounter,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};

use crate::store::DispatcherMetrics;

/// In seconds. A dispatcher is usually late by milliseconds; after an outage of the store or the broker, by minutes.
const LATE: [f64; 11] = [
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0,
];

/// What is counted around a store, beside what its dispatcher counts. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct StoreMetrics {
    late: Histogram,
    waiting: Gauge,
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            late: Histogram::new(LATE),
            waiting: Gauge::default(),
        }
    }
}

impl StoreMetrics {
    /// How late messages were when they were claimed; it counts the claims.
    pub(super) fn late(&self) -> Histogram {
        self.late.clone()
    }

    /// How many messages wait now.
    pub(super) fn waiting(&self, count: u64) {
        self.waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// All of them, and what a dispatcher has counted.
    pub(super) fn registry(self, dispatcher_metrics: Arc<DispatcherMetrics>) -> Registry {
        let mut registry = Registry::with_prefix("retryrmq_serve_store");
        registry.register(
            "late_seconds",
            "How late waiting messages were when they were claimed to be published",
            self.late,
        );
        registry.register("waiting", "Messages in the store", self.waiting);
        registry.register_collector(Box::new(DispatcherCounts(dispatcher_metrics)));
        registry
    }
}

/// Reads what a dispatcher has counted when somebody collects.
#[derive(Debug)]
struct DispatcherCounts(Arc<DispatcherMetrics>);

impl Collector for DispatcherCounts {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let dispatcher_metrics = &self.0;
        for (name, help, count) in [
            (
                "published",
                "Messages that came back to their queues, confirmed",
                dispatcher_metrics.published(),
            ),
            (
                "given_up",
                "Messages that were parked because no queue takes them",
                dispatcher_metrics.given_up(),
            ),
            (
                "refused",
                "Messages that went back into the store because they could not be published",
                dispatcher_metrics.refused(),
            ),
            (
                "claimed_again",
                "Messages claimed after somebody's lease had run out; they may come twice",
                dispatcher_metrics.again(),
            ),
            (
                "leases_lost",
                "Leases that ran out while their message was published; it may come twice",
                dispatcher_metrics.lost(),
            ),
            (
                "unreadable",
                "Times that a message was claimed which this program cannot read",
                dispatcher_metrics.unreadable(),
            ),
        ] {
            let counter = ConstCounter::new(count);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        let gauge =
            ConstGauge::new(i64::try_from(dispatcher_metrics.in_flight()).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor(
            "in_flight",
            "Messages that are claimed here now",
            None,
            gauge.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn every_figure_has_a_line() {
        let numbers = StoreMetrics::default();
        numbers.waiting(7);
        numbers.late().observe(0.2);
        let registry = numbers.registry(Arc::default());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "retryrmq_serve_store_waiting 7",
            "retryrmq_serve_store_late_seconds_count 1",
            "retryrmq_serve_store_published_total 0",
            "retryrmq_serve_store_given_up_total 0",
            "retryrmq_serve_store_refused_total 0",
            "retryrmq_serve_store_claimed_again_total 0",
            "retryrmq_serve_store_leases_lost_total 0",
            "retryrmq_serve_store_unreadable_total 0",
            "retryrmq_serve_store_in_flight 0",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}: {text}");
        }
        // Those that the dashboard and the rules name, beside the one that the intake counts.
        for file in ["grafana-dashboard.json", "alert-rules.yml"] {
            let examples =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/serve");
            let said = std::fs::read_to_string(examples.join(file)).unwrap();
            let words = said.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let ours = words.filter(|word| word.starts_with("retryrmq_serve_store_"));
            for name in ours.filter(|name| *name != "retryrmq_serve_store_failures_total") {
                assert!(text.contains(name), "{file}: {name}: {text}");
            }
        }
    }
}
