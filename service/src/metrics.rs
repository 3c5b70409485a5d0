//! What the service counts, for Prometheus.

use std::{
    collections::HashSet,
    fmt,
    sync::{Mutex, PoisonError},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text::encode},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};

use crate::{EventBus, alerting_runtime::RunningTasks};

/// How many queues have numbers of their own; the others share one name. Otherwise queues with random names would fill the
/// collector's memory.
const QUEUES: usize = 1_000;
const OTHERS: &str = "(others)";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    queue: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// The numbers of a service.
pub struct Metrics {
    registry: Registry,
    /// Of parts that are not always there.
    joined: Mutex<Vec<Registry>>,
    known: Mutex<HashSet<String>>,
    retried: Family<ReasonLabels, Counter>,
    parked: Family<ReasonLabels, Counter>,
    dropped: Family<ReasonLabels, Counter>,
    failures: Family<QueueLabels, Counter>,
    held: Family<QueueLabels, Gauge>,
    overflowed: Family<QueueLabels, Counter>,
    unroutable: Counter,
    reloads: Family<ResultLabels, Counter>,
    delayed: Family<ResultLabels, Counter>,
    ready: Gauge,
}

impl Metrics {
    /// All at zero. `event_bus` counts what its listeners miss, `reporting` what people were told.
    pub(crate) fn new(event_bus: &EventBus, reporting: RunningTasks) -> Self {
        let mut registry = Registry::with_prefix("retryrmq_serve");
        macro_rules! register {
            ($($name:ident = $metric:literal: $help:literal),* $(,)?) => {
                $(let $name = Default::default();
                registry.register($metric, $help, Clone::clone(&$name));)*
                Self {
                    $($name,)*
                    joined: Mutex::default(),
                    known: Mutex::default(),
                    registry,
                }
            };
        }
        registry.register_collector(Box::new(AlertMetrics(reporting)));
        registry.register(
            "events_dropped",
            "Events that a slow listener missed",
            event_bus.dropped_counter(),
        );
        registry.register(
            "bodies_left_out",
            "Parked messages that alerts were told of without their body, because there was no memory to decode it",
            event_bus.without_body_counter(),
        );
        register! {
            retried = "retried": "Dead letters sent to wait for another attempt, by the reason of their death",
            parked = "parked": "Dead letters parked, by the reason in their record",
            dropped = "dropped": "Dead letters dropped because the policy says so, or because a queue of the alerts let go of them, by the reason of their death",
            failures = "store_failures": "Copies that could not be stored at once; their originals are kept and tried again",
            held = "held": "Messages kept here because their waiting or parking queue does not take them",
            overflowed = "overflowed": "Messages parked for the intake because too many of their queue were held already",
            unroutable = "unroutable": "Messages in the intake that belong to no work queue, parked for the intake",
            reloads = "policy_loads": "Policy files read, by result: loaded or refused",
            delayed = "delayed": "Messages with a delay, by outcome: waits (each hop of a wait), published or parked",
            ready = "ready": "1 while /readyz says so",
        }
    }

    pub(crate) fn retried(&self, queue: &str, reason: &str) {
        // So that the counter is there before the first message is parked after its last retry.
        drop(self.parked.get_or_create(&self.why(queue, "exhausted")));
        self.retried.get_or_create(&self.why(queue, reason)).inc();
    }

    pub(crate) fn parked(&self, queue: &str, reason: &str) {
        self.parked.get_or_create(&self.why(queue, reason)).inc();
    }

    pub(crate) fn dropped(&self, queue: &str, reason: &str) {
        self.dropped.get_or_create(&self.why(queue, reason)).inc();
    }

    pub(crate) fn failed(&self, queue: &str) {
        self.failures.get_or_create(&self.at(queue)).inc();
    }

    pub(crate) fn held(&self, queue: &str) -> Gauge {
        self.held.get_or_create(&self.at(queue)).clone()
    }

    pub(crate) fn overflowed(&self, queue: &str) {
        self.overflowed.get_or_create(&self.at(queue)).inc();
    }

    pub(crate) fn unroutable(&self) {
        self.unroutable.inc();
    }

    pub(crate) fn delayed(&self, result: &'static str) {
        self.delayed.get_or_create(&ResultLabels { result }).inc();
    }

    pub(crate) fn loaded(&self, well: bool) {
        let result = if well { "loaded" } else { "refused" };
        self.reloads.get_or_create(&ResultLabels { result }).inc();
    }

    /// In the OpenMetrics text format, without the mark of its end.
    pub(crate) fn text(&self, ready: bool) -> String {
        self.ready.set(i64::from(ready));
        let mut text = String::new();
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        for registry in [&self.registry].into_iter().chain(&*joined) {
            let _ = encode(&mut text, registry); // a String takes it
            text.truncate(text.trim_end().trim_end_matches("# EOF").len());
        }
        text
    }

    /// Shows these numbers, too.
    pub(crate) fn join(&self, registry: Registry) {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        joined.push(registry);
    }

    fn why(&self, queue: &str, reason: &str) -> ReasonLabels {
        ReasonLabels {
            queue: self.name(queue),
            reason: reason.to_owned(),
        }
    }

    fn at(&self, queue: &str) -> QueueLabels {
        QueueLabels {
            queue: self.name(queue),
        }
    }

    fn name(&self, queue: &str) -> String {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(queue) {
            return queue.to_owned();
        }
        if known.len() >= QUEUES {
            return OTHERS.to_owned();
        }
        known.insert(queue.to_owned());
        queue.to_owned()
    }
}

/// What people were told, read when somebody asks.
#[derive(Debug)]
struct AlertMetrics(RunningTasks);

impl Collector for AlertMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some((alerts, watched)) = self.0.counts() else {
            return Ok(());
        };
        let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let counter = ConstCounter::<u64>::new;
        let help = "1 on the leader, the replica that sends notices";
        let is_leader = ConstGauge::new(i64::from(alerts.is_leader));
        is_leader.encode(encoder.encode_descriptor(
            "alerts_leader",
            help,
            None,
            MetricType::Gauge,
        )?)?;
        for (name, help, value) in [
            (
                "alerts_open",
                "Incidents that are open, on the leader",
                alerts.open,
            ),
            (
                "alerts_groups",
                "Groups of failures that are known, on the leader",
                alerts.groups,
            ),
            (
                "alerts_outbox",
                "Notices that wait for a channel, on the leader",
                alerts.outbox,
            ),
            (
                "watched_queues",
                "Queues that the last check saw",
                watched.queues,
            ),
        ] {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(value).encode(family)?;
        }
        for (name, help, value) in [
            (
                "alerts_received",
                "Events that the alerts received on this replica",
                alerts.received,
            ),
            (
                "alerts_dropped",
                "Events that this replica dropped before their rules were evaluated",
                alerts.dropped,
            ),
            (
                "alerts_unevaluated",
                "Messages for which the condition of a rule could not be evaluated, on this replica",
                alerts.unevaluated,
            ),
            (
                "alerts_incidents",
                "Incidents that were opened, on the leader",
                alerts.incidents,
            ),
            (
                "alerts_resolved",
                "Incidents that were resolved, on the leader",
                alerts.resolved,
            ),
            (
                "alerts_unsent",
                "Notices that were given up, on the leader",
                alerts.unsent,
            ),
            ("watch_checks", "Checks of the queues", watched.looks),
            (
                "watch_failures",
                "Checks of the queues that failed",
                watched.failed,
            ),
        ] {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(value).encode(family)?;
        }
        let mut sent = encoder.encode_descriptor(
            "alerts_sent",
            "Notices by channel and result: sent, retried, failed",
            None,
            MetricType::Counter,
        )?;
        for (channel, counts) in &alerts.channels {
            for (result, value) in [
                ("sent", counts.sent),
                ("retried", counts.retried),
                ("failed", counts.failed),
            ] {
                let labels = [("channel", channel.as_str()), ("result", result)];
                counter(value).encode(sent.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_by_queue_and_reason_and_the_text_has_no_end() {
        let metrics = Metrics::new(&EventBus::default(), RunningTasks::default());
        metrics.retried("orders", "rejected");
        metrics.retried("orders", "rejected");
        metrics.parked("orders", "exhausted");
        metrics.loaded(false);
        metrics.failed("orders");
        metrics.held("orders").inc();
        let text = metrics.text(true);
        for line in [
            "retryrmq_serve_retried_total{queue=\"orders\",reason=\"rejected\"} 2",
            "retryrmq_serve_parked_total{queue=\"orders\",reason=\"exhausted\"} 1",
            "retryrmq_serve_policy_loads_total{result=\"refused\"} 1",
            "retryrmq_serve_store_failures_total{queue=\"orders\"} 1",
            "retryrmq_serve_held{queue=\"orders\"} 1",
            "retryrmq_serve_ready 1",
            "retryrmq_serve_events_dropped_total 0",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}: {text}");
        }
        assert!(!text.contains("# EOF"), "{text}");
        assert!(text.ends_with('\n'), "{text}");
    }

    #[test]
    fn queues_beyond_the_thousandth_share_a_name() {
        let metrics = Metrics::new(&EventBus::default(), RunningTasks::default());
        for number in 0..QUEUES + 5 {
            metrics.retried(&format!("amq.gen-{number}"), "rejected");
        }
        metrics.retried("amq.gen-0", "rejected");
        let text = metrics.text(false);
        assert!(text.contains("{queue=\"(others)\",reason=\"rejected\"} 5"));
        assert!(text.contains("{queue=\"amq.gen-0\",reason=\"rejected\"} 2"));
    }
}
