//! What a broker looks like at one moment, as far as the rules need it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Map, Value};

use crate::management::{
    Binding, Channel, Consumer, Deprecated, Error, Exchange, Management, ManagementErrorKind,
    Policy, Queue, QueueKind, Scope, Version, settings,
};

/// How the queues of retryrmq are named: the library that uses it says so.
#[derive(Clone, Copy, Debug)]
pub struct QueueNames {
    /// The work queue of a waiting or parking queue's name.
    pub work_queue_of: fn(&str) -> Option<&str>,
    /// The parking queue of a work queue.
    pub parking_queue: fn(&str) -> String,
    /// The queue of a work queue for messages that AMQP 0-9-1 cannot carry.
    pub unreadable_queue: fn(&str) -> String,
    /// The queue that tells for two seconds that a work queue has new queues.
    pub clock_queue: fn(&str) -> String,
    /// The exchange from which the service takes dead letters.
    pub dead_exchange: &'static str,
}

impl QueueNames {
    /// Whether a queue of this name is a clock, which goes by itself.
    fn is_clock(&self, name: &str) -> bool {
        (self.work_queue_of)(name).is_some_and(|work| (self.clock_queue)(work) == name)
    }
}

/// What a queue is to retryrmq, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole<'a> {
    /// Messages of this work queue wait in it.
    Waiting(&'a str),
    /// Messages of this work queue are parked in it.
    Parking(&'a str),
    /// Messages of this work queue that AMQP 0-9-1 cannot carry are in it.
    Unreadable(&'a str),
    /// Dropped messages of this work queue are kept in it for a while.
    Dropped(&'a str),
}

/// Where the queue of dropped messages sends what its time to live ends: nowhere.
const NOBODY: &str = "retryrmq.nobody";

/// What could not be looked at, and why in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownPart {
    /// Who consumes.
    Consumers(String),
    /// What operators bound.
    OperatorPolicies(String),
    /// Which deprecated features are in use.
    Deprecated(String),
    /// Which feature flags are enabled.
    FeatureFlags(String),
}

impl UnknownPart {
    /// The sentence.
    #[must_use]
    pub fn sentence(&self) -> &str {
        match self {
            Self::Consumers(why)
            | Self::OperatorPolicies(why)
            | Self::Deprecated(why)
            | Self::FeatureFlags(why) => why,
        }
    }
}

/// A virtual host at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) version: Version,
    pub(super) vhost: String,
    pub(super) names: QueueNames,
    pub(super) queues: BTreeMap<String, Queue>,
    /// What policies come to, by queue.
    pub(super) effective: BTreeMap<String, Map<String, Value>>,
    pub(super) exchanges: BTreeMap<String, Exchange>,
    /// Of the exchanges that dead letters may pass.
    pub(super) bindings: BTreeMap<String, Vec<Binding>>,
    /// By queue; `None` when nobody knows.
    pub(super) consumers: Option<BTreeMap<String, Vec<Consumer>>>,
    /// Of consumers that may be stuck, by name.
    pub(super) channels: BTreeMap<String, Channel>,
    pub(super) policies: Vec<Policy>,
    pub(super) deprecated: Vec<Deprecated>,
    /// Feature flags that are not enabled, as far as they are known.
    pub(super) disabled_flags: Vec<String>,
    /// How long handlers may take.
    pub(super) handler_timeout: Duration,
    /// How long a consumer may do nothing until it counts as stuck.
    pub(super) stuck_after: Duration,
    /// Now, in seconds since 1970.
    pub(super) now: i64,
    /// What could not be looked at.
    pub unknown: Vec<UnknownPart>,
}

/// Without it quorum queues dead-letter at most once.
pub(super) const STREAM_FLAG: &str = "stream_queue";

/// From here on every broker has it.
const FLAG_REQUIRED: Version = Version(3, 12, 0);

/// How many channels are looked at: each takes a request.
const MOST_CHANNELS: usize = 200;

impl Snapshot {
    /// Looks at a virtual host. `handler_timeout` is how long handlers may take, `stuck_after` how long a consumer that holds all it may
    /// can do nothing.
    ///
    /// # Errors
    /// Those of the management API, where nothing can be said without.
    pub async fn take(
        management: &Management,
        vhost: &str,
        names: QueueNames,
        handler_timeout: Duration,
        stuck_after: Duration,
    ) -> Result<Self, Error> {
        let overview = management.overview().await?;
        let mut unknown = Vec::new();
        let mut queues = management.queues(vhost).await?;
        queues.retain(|name, _| !names.is_clock(name));
        let policies = management.policies(vhost, Scope::Users).await?;
        let operator_policies = match management.policies(vhost, Scope::Operators).await {
            Ok(all) => all,
            Err(error) if error.kind() == ManagementErrorKind::Forbidden => {
                unknown.push(UnknownPart::OperatorPolicies(format!(
                    "operator policies were not looked at: {error}"
                )));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let effective = queues
            .values()
            .map(|queue| {
                let all = settings::effective(queue, &policies, &operator_policies);
                (queue.name.clone(), all)
            })
            .collect();
        let consumers = match who_consumes(management, vhost, overview.is_without_metrics).await? {
            Ok(all) => Some(by_queue(all)),
            Err(why) => {
                unknown.push(UnknownPart::Consumers(format!(
                    "{why}: RQ114 and RQ119 were not looked at, and RQ112 is judged by what is taken"
                )));
                None
            }
        };
        let deprecated = match management.deprecated_in_use().await {
            Ok(all) => all,
            Err(error) if error.kind() == ManagementErrorKind::Forbidden => {
                unknown.push(UnknownPart::Deprecated(format!(
                    "deprecated features (RQ116) were not looked at: {error}"
                )));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let disabled_flags = if overview.version < FLAG_REQUIRED {
            match management.disabled_feature_flags().await {
                Ok(flags) => flags.unwrap_or_default(),
                // RabbitMQ refuses who may not ask in the words for a wrong password, which would have failed before.
                Err(error)
                    if matches!(
                        error.kind(),
                        ManagementErrorKind::Forbidden | ManagementErrorKind::Login
                    ) =>
                {
                    let why = "whether the feature flag `stream_queue` is enabled (RQ108) shows only to a user with the tag `administrator`";
                    unknown.push(UnknownPart::FeatureFlags(why.to_owned()));
                    Vec::new()
                }
                Err(error) => return Err(error),
            }
        } else {
            Vec::new()
        };
        let mut snapshot = Self {
            version: overview.version,
            vhost: vhost.to_owned(),
            names,
            queues,
            effective,
            exchanges: management.exchanges(vhost).await?,
            bindings: BTreeMap::new(),
            consumers,
            channels: BTreeMap::new(),
            policies,
            deprecated,
            disabled_flags,
            handler_timeout,
            stuck_after,
            now: jiff::Timestamp::now().as_second(),
            unknown,
        };
        snapshot.follow_routes(management).await?;
        snapshot.read_channels(management).await?;
        snapshot.recount(management).await?;
        Ok(snapshot)
    }

    /// Reads the bindings of every exchange that a dead letter may pass.
    async fn follow_routes(&mut self, management: &Management) -> Result<(), Error> {
        let mut next: BTreeSet<String> = self
            .queues
            .values()
            .filter_map(|queue| self.text(queue, "dead-letter-exchange"))
            .filter(|exchange| !exchange.is_empty())
            .map(str::to_owned)
            .collect();
        while let Some(exchange) = next.pop_first() {
            if self.bindings.contains_key(&exchange) || !self.exchanges.contains_key(&exchange) {
                continue;
            }
            let bindings = management.bindings(&self.vhost, &exchange).await?;
            let further = bindings.iter().filter(|binding| !binding.is_to_queue);
            next.extend(further.map(|binding| binding.destination.clone()));
            next.extend(self.alternate(&exchange).map(str::to_owned));
            self.bindings.insert(exchange, bindings);
        }
        Ok(())
    }

    /// Looks at the channels of consumers that hold messages while more wait.
    async fn read_channels(&mut self, management: &Management) -> Result<(), Error> {
        let Some(consumers) = &self.consumers else {
            return Ok(());
        };
        let holding = |queue: &str| {
            let totals = self.queues.get(queue).map(|queue| queue.totals);
            totals.is_some_and(|totals| totals.unacknowledged.is_none_or(|count| count > 0))
        };
        let names: BTreeSet<String> = consumers
            .iter()
            .filter(|(queue, _)| holding(queue))
            .flat_map(|(_, all)| all.iter().filter(|consumer| consumer.acknowledges))
            .map(|consumer| consumer.channel.clone())
            .filter(|name| !name.is_empty())
            .take(MOST_CHANNELS)
            .collect();
        for name in names {
            if let Some(channel) = management.channel(&name).await? {
                self.channels.insert(name, channel);
            }
        }
        Ok(())
    }

    /// Whether messages are still not taken, where nobody knows who consumes, and whether dead letters have still not left, after the broker
    /// has counted anew.
    async fn recount(&mut self, management: &Management) -> Result<(), Error> {
        let is_unknown = self.consumers.is_none();
        let untaken = |queue: &Queue| {
            is_unknown
                && queue.totals.ready.is_some_and(|ready| ready > 0)
                && queue.totals.unacknowledged == Some(0)
        };
        let held = |queue: &Queue| queue.totals.dead_lettering.is_some_and(|count| count > 0);
        if !(self.queues.values()).any(|queue| untaken(queue) || held(queue)) {
            return Ok(());
        }
        // Counts are renewed every five seconds.
        tokio::time::sleep(Duration::from_millis(5_500)).await;
        let later = management.queues(&self.vhost).await?;
        for (name, queue) in &mut self.queues {
            let before = queue.totals.dead_lettering;
            let after = later.get(name).and_then(|it| it.totals.dead_lettering);
            queue.totals.dead_lettering = before.filter(|_| after >= before);
            if untaken(queue) {
                match later.get(name) {
                    Some(later) if untaken(later) && later.totals.ready >= queue.totals.ready => {}
                    _ => queue.totals = Default::default(),
                }
            }
        }
        Ok(())
    }

    /// Whether it has that queue.
    #[must_use]
    pub fn has_queue(&self, name: &str) -> bool {
        self.queues.contains_key(name)
    }

    /// Whether it has that queue, or one where messages of it wait or are parked.
    #[must_use]
    pub fn has_any_of(&self, name: &str) -> bool {
        let belongs = |other: &str| (self.names.work_queue_of)(other) == Some(name);
        self.has_queue(name) || self.queues.keys().any(|other| belongs(other))
    }

    /// How many queues it has.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// What a queue is to retryrmq. Others name queues as we do, so a waiting queue must also lead back to its work queue.
    #[must_use]
    pub fn role<'a>(&self, name: &'a str) -> Option<QueueRole<'a>> {
        let stem = name.rsplit_once('.').map(|(stem, _)| stem);
        let of_work = |stem: &&str| (self.names.unreadable_queue)(stem) == name;
        if let Some(work) = stem.filter(of_work) {
            return Some(QueueRole::Unreadable(work));
        }
        let work = (self.names.work_queue_of)(name)?;
        if (self.names.parking_queue)(work) == name {
            return Some(QueueRole::Parking(work));
        }
        let key = self
            .queues
            .get(name)?
            .arguments
            .get("x-dead-letter-routing-key");
        if name.ends_with(".parked.dropped") {
            return key
                .is_some_and(|key| key == NOBODY)
                .then_some(QueueRole::Dropped(work));
        }
        key.is_some_and(|key| key == work)
            .then_some(QueueRole::Waiting(work))
    }

    /// What applies to a queue by that name, such as `message-ttl`.
    pub(super) fn setting<'a>(&'a self, queue: &'a Queue, name: &str) -> Option<&'a Value> {
        settings::setting(queue, self.effective.get(&queue.name)?, name)
    }

    pub(super) fn text<'a>(&'a self, queue: &'a Queue, name: &str) -> Option<&'a str> {
        self.setting(queue, name)?.as_str()
    }

    pub(super) fn number(&self, queue: &Queue, name: &str) -> Option<i64> {
        self.setting(queue, name)?.as_i64()
    }

    /// Whether it asks for at-least-once dead-lettering.
    pub(super) fn wants_at_least_once(&self, queue: &Queue) -> bool {
        self.text(queue, "dead-letter-strategy") == Some("at-least-once")
            && self.setting(queue, "dead-letter-exchange").is_some()
    }

    /// Whether it is of the type and has the settings that at-least-once dead-lettering takes. A feature flag may take it away.
    pub(super) fn may_do_at_least_once(&self, queue: &Queue) -> bool {
        self.wants_at_least_once(queue)
            && queue.kind == QueueKind::Quorum
            && self.text(queue, "overflow") == Some("reject-publish")
    }

    /// Whether a feature flag without which at-least-once dead-lettering is at most once is disabled.
    pub(super) fn lacks_the_flag(&self) -> bool {
        self.disabled_flags.iter().any(|flag| flag == STREAM_FLAG)
    }

    /// After how many deliveries in vain a message is given up; `None` for never.
    pub(super) fn delivery_limit(&self, queue: &Queue) -> Option<i64> {
        if queue.kind != QueueKind::Quorum {
            return None;
        }
        let default = (self.version >= Version(4, 0, 0)).then_some(20);
        match self.number(queue, "delivery-limit") {
            None => default,
            Some(limit) if limit < 0 => None,
            said => said,
        }
    }

    /// What an exchange passes on that it has no binding for.
    pub(super) fn alternate(&self, exchange: &str) -> Option<&str> {
        let exchange = self.exchanges.get(exchange)?;
        let policy = || {
            let name = exchange.policy.as_ref()?;
            let policy = self.policies.iter().find(|policy| policy.name == *name)?;
            policy.definition.get("alternate-exchange")?.as_str()
        };
        exchange.alternate.as_deref().or_else(policy)
    }

    /// The program for declaring something in this virtual host.
    pub(super) fn rabbitmqadmin(&self) -> String {
        format!("rabbitmqadmin --vhost {}", shell_words::quote(&self.vhost))
    }

    /// The virtual host, for a shell.
    pub(super) fn in_vhost(&self) -> String {
        format!("-p {}", shell_words::quote(&self.vhost))
    }
}

/// All consumers, or why they are not known.
async fn who_consumes(
    management: &Management,
    vhost: &str,
    is_without_metrics: bool,
) -> Result<Result<Vec<Consumer>, &'static str>, Error> {
    // Others are left out for whoever lacks the tag, and a consumed queue would look forsaken.
    let tags = management.tags().await?;
    if !tags
        .iter()
        .any(|tag| tag == "monitoring" || tag == "administrator")
    {
        return Ok(Err(
            "who consumes shows only to a user with the tag `monitoring`",
        ));
    }
    let found = management.consumers(vhost).await?;
    Ok(found
        .filter(|_| !is_without_metrics)
        .ok_or("the metrics collector is off, so nobody knows who consumes"))
}

fn by_queue(all: Vec<Consumer>) -> BTreeMap<String, Vec<Consumer>> {
    let mut by_queue: BTreeMap<String, Vec<Consumer>> = BTreeMap::new();
    for consumer in all {
        by_queue
            .entry(consumer.queue.clone())
            .or_default()
            .push(consumer);
    }
    by_queue
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::management::Totals;

    /// A quorum queue, unless its arguments say otherwise.
    pub(crate) fn queue(name: &str, arguments: Value) -> Queue {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        Queue {
            name: name.to_owned(),
            kind: match arguments.get("x-queue-type").and_then(Value::as_str) {
                Some("classic") => QueueKind::Classic,
                Some("stream") => QueueKind::Stream,
                _ => QueueKind::Quorum,
            },
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments,
            policy: None,
            operator_policy: None,
            effective: Some(Map::new()),
            totals: Totals::default(),
        }
    }

    pub(crate) fn policy(name: &str, pattern: &str, priority: i64, definition: Value) -> Policy {
        Policy {
            name: name.to_owned(),
            pattern: pattern.to_owned(),
            apply_to: "queues".to_owned(),
            priority,
            definition: definition.as_object().cloned().unwrap_or_default(),
        }
    }

    fn work_queue_of(name: &str) -> Option<&str> {
        name.strip_suffix(".parked")
            .or_else(|| name.strip_suffix(".parked.dropped"))
            .or_else(|| name.split_once(".retry.").map(|(work, _)| work))
    }

    /// RabbitMQ 4.3 with these queues, and the default exchange alone.
    pub(in crate::doctor) fn snapshot(queues: impl IntoIterator<Item = Queue>) -> Snapshot {
        let queues: BTreeMap<_, _> = queues
            .into_iter()
            .map(|queue| (queue.name.clone(), queue))
            .collect();
        Snapshot {
            version: Version(4, 3, 0),
            vhost: "/".to_owned(),
            names: QueueNames {
                work_queue_of,
                parking_queue: |work| format!("{work}.parked"),
                unreadable_queue: |work| format!("{work}.unreadable"),
                clock_queue: |work| format!("{work}.retry.80000000000"),
                dead_exchange: "retryrmq.dead",
            },
            effective: queues
                .values()
                .map(|queue| {
                    (
                        queue.name.clone(),
                        queue.effective.clone().unwrap_or_default(),
                    )
                })
                .collect(),
            queues,
            exchanges: BTreeMap::new(),
            bindings: BTreeMap::new(),
            consumers: Some(BTreeMap::new()),
            channels: BTreeMap::new(),
            policies: Vec::new(),
            deprecated: Vec::new(),
            disabled_flags: Vec::new(),
            handler_timeout: Duration::from_secs(60),
            stuck_after: Duration::from_secs(60),
            now: 0,
            unknown: Vec::new(),
        }
    }

    #[test]
    fn a_limit_below_zero_is_none_and_none_said_is_twenty_since_4() {
        let mut all = snapshot([]);
        let quorum = queue("q", json!({}));
        all.effective.insert("q".into(), Map::new());
        assert_eq!(all.delivery_limit(&quorum), Some(20));
        all.version = Version(3, 13, 0);
        assert_eq!(all.delivery_limit(&quorum), None);
        assert_eq!(
            all.delivery_limit(&queue("q", json!({"x-delivery-limit": -1}))),
            None
        );
        let classic = queue(
            "q",
            json!({"x-queue-type": "classic", "x-delivery-limit": 3}),
        );
        assert_eq!(all.delivery_limit(&classic), None);
    }
}
