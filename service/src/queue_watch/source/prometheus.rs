//! `/metrics/detailed` of the plugin `rabbitmq_prometheus`: every node tells of the queues that it leads, without the statistics of
//! the management API.

use std::{collections::BTreeMap, path::Path, time::Duration};

use reqwest::{Client, Url, redirect::Policy};

use crate::{
    queue_watch::{QueueView, Snapshot},
    tls::tls,
};

/// The largest answer of a node.
const MOST_BYTES: usize = 64 << 20;
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The last is there from 4.0 on; before, the one of the channels says the same.
const FAMILIES: [&str; 4] = [
    "queue_coarse_metrics",
    "queue_consumer_count",
    "channel_queue_metrics",
    "queue_delivery_metrics",
];

/// The nodes of a cluster.
#[derive(Debug)]
pub(in crate::queue_watch) struct Prometheus {
    client: Client,
    nodes: Vec<Url>,
}

impl Prometheus {
    pub(in crate::queue_watch) fn new(nodes: &[String], ca: Option<&Path>) -> Result<Self, String> {
        let client = Client::builder()
            .user_agent(concat!("retryrmq-serve/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls(ca)?)
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(TIME_LIMIT)
            .timeout(TIME_LIMIT)
            .build()
            .map_err(|why| format!("cannot speak HTTP: {}", why.without_url()))?;
        let nodes = nodes.iter().map(|node| {
            let mut url = Url::parse(node).map_err(|_| "an address in `prometheus` is none")?;
            let path = format!("{}/metrics/detailed", url.path().trim_end_matches('/'));
            url.set_path(&path);
            for family in FAMILIES {
                url.query_pairs_mut().append_pair("family", family);
            }
            Ok(url)
        });
        Ok(Self {
            client,
            nodes: nodes.collect::<Result<_, String>>()?,
        })
    }

    /// Asks all nodes. Where one does not answer the snapshot is not complete.
    ///
    /// # Errors
    /// No node answers.
    pub(in crate::queue_watch) async fn list(&self, vhost: &str) -> Result<Snapshot, String> {
        let answers = self.nodes.iter().map(|node| self.ask(node));
        let answers = futures_util::future::join_all(answers).await;
        let mut counted = BTreeMap::new();
        let (mut complete, mut last) = (true, None);
        for answer in answers {
            match answer {
                Ok(text) => take(&text, vhost, &mut counted),
                Err(why) => {
                    complete = false;
                    last = Some(why);
                }
            }
        }
        match last {
            Some(why) if counted.is_empty() => Err(why),
            why => {
                if let Some(why) = why {
                    tracing::warn!(why, "the queues of one node are not known");
                }
                let queues = counted
                    .into_iter()
                    .map(|(name, counts)| (name, counts.view()));
                Ok(Snapshot {
                    queues: queues.collect(),
                    complete,
                    ..Snapshot::default()
                })
            }
        }
    }

    async fn ask(&self, node: &Url) -> Result<String, String> {
        let place = format!(
            "{}:{}",
            node.host_str().unwrap_or_default(),
            node.port_or_known_default().unwrap_or(0)
        );
        let failed = |why: reqwest::Error| {
            let what = if why.is_timeout() {
                "does not answer in time"
            } else {
                "does not answer"
            };
            format!("the Prometheus endpoint at {place} {what}")
        };
        let mut response = self.client.get(node.clone()).send().await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(format!(
                "{place} answers {}: is the plugin on (`rabbitmq-plugins enable rabbitmq_prometheus`)?",
                response.status().as_u16()
            ));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MOST_BYTES {
                return Err(format!("the answer of {place} is larger than 64 MiB"));
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match text.contains("rabbitmq_identity_info") {
            true => Ok(text),
            false => Err(format!(
                "what answers at {place} is not RabbitMQ's Prometheus endpoint"
            )),
        }
    }
}

#[derive(Debug, Default, PartialEq)]
struct Counts {
    ready: Option<u64>,
    held: Option<u64>,
    all: Option<u64>,
    consumers: Option<u64>,
    /// By the queue, or by the channels that consume it.
    acknowledged: Option<u64>,
    acknowledged_by_channels: u64,
    is_stream: bool,
}

impl Counts {
    fn view(self) -> QueueView {
        // Of what is dead-lettered at least once and cannot arrive, only the sum knows.
        let ready = match (self.ready, self.all) {
            (Some(ready), Some(all)) => Some(ready.max(all.saturating_sub(self.held.unwrap_or(0)))),
            (ready, _) => ready,
        };
        QueueView {
            ready,
            unacknowledged: self.held,
            consumers: self.consumers,
            acknowledged: self
                .acknowledged
                .or_else(|| self.ready.map(|_| self.acknowledged_by_channels)),
            bound: None,
            temporary: self.is_stream,
        }
    }
}

/// Adds what one node says.
fn take(text: &str, vhost: &str, queues: &mut BTreeMap<String, Counts>) {
    const PREFIX: &str = "rabbitmq_detailed_";
    for line in text.lines() {
        let Some((name, labels, value)) = line.strip_prefix(PREFIX).and_then(sample) else {
            continue;
        };
        let label = |names: [&str; 2]| {
            let found = labels.iter().find(|(name, _)| names.contains(name));
            found.map(|(_, value)| value.as_str())
        };
        if label(["vhost", "queue_vhost"]) != Some(vhost) {
            continue;
        }
        let Some(queue) = label(["queue", "queue"]) else {
            continue;
        };
        // A follower may know an older number.
        let most = |known: &mut Option<u64>| *known = Some(known.unwrap_or(0).max(value));
        let is_known = matches!(
            name,
            "queue_messages_ready"
                | "queue_messages_unacked"
                | "queue_messages"
                | "queue_consumers"
                | "queue_messages_acked_total"
                | "channel_messages_acked_total"
                | "queue_info"
        );
        if !is_known {
            continue;
        }
        let counts = queues.entry(queue.to_owned()).or_default();
        match name {
            "queue_messages_ready" => most(&mut counts.ready),
            "queue_messages_unacked" => most(&mut counts.held),
            "queue_messages" => most(&mut counts.all),
            "queue_consumers" => most(&mut counts.consumers),
            "queue_messages_acked_total" => most(&mut counts.acknowledged),
            "channel_messages_acked_total" => {
                counts.acknowledged_by_channels =
                    counts.acknowledged_by_channels.wrapping_add(value);
            }
            _ => {
                counts.is_stream |=
                    label(["queue_type", "queue_type"]) == Some("rabbit_stream_queue")
            }
        }
    }
    // A channel may consume a queue that is led elsewhere, and says nothing else of it.
}

/// Name, labels and value.
type Sample<'t> = (&'t str, Vec<(&'t str, String)>, u64);

/// `name{label="value",…} 12`, as the text format of Prometheus has it.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, mut rest) = line.split_once('{')?;
    let mut labels = Vec::new();
    while !rest.starts_with('}') {
        let (label, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    c => value.push(c),
                },
                (_, c) => value.push(c),
            }
        };
        labels.push((label.trim_start_matches(','), value));
        rest = after[end..].trim_start_matches(',');
    }
    let value: f64 = rest[1..].split_whitespace().next()?.parse().ok()?;
    let is_count = value.is_finite() && value >= 0.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    is_count.then_some((name, labels, value as u64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_versions_are_read() {
        let old = r#"
# TYPE rabbitmq_detailed_queue_messages_ready gauge
rabbitmq_detailed_queue_messages_ready{vhost="/",queue="q\"1\\"} 2
rabbitmq_detailed_queue_messages_unacked{vhost="/",queue="q\"1\\"} 1
rabbitmq_detailed_queue_messages{vhost="/",queue="q\"1\\"} 3
rabbitmq_detailed_queue_consumers{vhost="/",queue="q\"1\\"} 1
rabbitmq_detailed_channel_messages_acked_total{channel="<0.1.0>",queue_vhost="/",queue="q\"1\\"} 4
rabbitmq_detailed_channel_messages_acked_total{channel="<0.2.0>",vhost="/",queue="q\"1\\"} 5
rabbitmq_detailed_queue_messages_ready{vhost="other",queue="x"} 2
"#;
        let mut queues = BTreeMap::new();
        take(old, "/", &mut queues);
        let view = queues.remove("q\"1\\").unwrap().view();
        assert!(queues.is_empty());
        assert_eq!(
            view,
            QueueView {
                ready: Some(2),
                unacknowledged: Some(1),
                consumers: Some(1),
                acknowledged: Some(9),
                ..QueueView::default()
            }
        );
        let new = r#"
rabbitmq_detailed_queue_messages_ready{vhost="/",queue="w.retry.1"} 0
rabbitmq_detailed_queue_messages{vhost="/",queue="w.retry.1"} 7
rabbitmq_detailed_queue_messages_acked_total{vhost="/",queue="w.retry.1"} 3.0e2
rabbitmq_detailed_queue_info{vhost="/",queue="s",queue_type="rabbit_stream_queue",membership="leader"} 1
"#;
        take(new, "/", &mut queues);
        let view = queues.remove("w.retry.1").unwrap().view();
        assert_eq!((view.ready, view.acknowledged), (Some(7), Some(300)));
        assert!(queues.remove("s").unwrap().view().temporary);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(rabbitmq_detailed_[a-z_]{0,8}[{}=\",\\\\a-z 0-9.é]{0,60}\n?){0,5}") {
            take(&text, "/", &mut BTreeMap::new());
        }
    }
}
