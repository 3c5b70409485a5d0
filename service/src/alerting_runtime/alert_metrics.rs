//! What people were told, for Prometheus: read when somebody asks, and nothing where alerts are off.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::RunningTasks;

/// What people were told, read when somebody asks.
#[derive(Debug)]
pub(super) struct AlertMetrics(pub(super) RunningTasks);

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
