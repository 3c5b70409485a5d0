//! Where a setting is in force: a virtual host, or a node of its own, with a user that has the limits.

use crate::setting::Change;
use crate::{DEADLINE, QUEUE, Setting};
use retryrmq::{Client, Result};
use retryrmq_harness::lapin::{
    options::{BasicGetOptions, QueueDeclareOptions},
    types::FieldTable,
};
use retryrmq_harness::{Amqp, Broker, Message, Node, Permissions, QueueType, Vhost, eventually};
use serde_json::{Value, json};

/// A virtual host in which the setting is in force, and a connection to look around in it, as a user without limits.
pub(crate) struct Environment {
    pub(crate) kind: QueueType,
    untyped: bool,
    pub(crate) amqp: Amqp,
    pub(crate) vhost: Vhost,
    url: String,
    has_user: bool,
    // Dropped last, because the virtual host is on it.
    node: Option<Node>,
}

impl Environment {
    pub(crate) async fn with(setting: &Setting, broker: &Broker, kind: QueueType) -> Self {
        let node = if setting.needs_a_node() {
            Some(broker.own_node(&setting.node).await)
        } else {
            None
        };
        let vhost = node.as_deref().unwrap_or(broker).vhost().await;
        // Before the expressions: short heartbeats, for example, are for the consumer, and would cost this connection its life on a busy machine.
        let amqp = vhost.connect().await;
        if let Some(node) = &node {
            // How long a quorum queue waits before it offers messages again that came back to a missing queue; else three minutes.
            let again =
                "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 1000).";
            for expression in [Some(again), setting.eval].into_iter().flatten() {
                node.ctl(&["eval", expression]).await;
            }
        }
        let mut environment = Environment {
            kind,
            untyped: setting.untyped,
            amqp,
            url: vhost.url().to_owned(),
            vhost,
            has_user: false,
            node,
        };
        for change in &setting.changes {
            environment.change(change).await;
        }
        if let Some(query) = setting.query {
            environment.url = format!("{}?{query}", environment.url);
        }
        environment
    }

    async fn change(&mut self, change: &Change) {
        let vhost = self.vhost.name().to_owned();
        match change {
            Change::Policy {
                scope,
                pattern,
                definition,
            } => {
                let body =
                    json!({"pattern": pattern, "apply-to": "queues", "definition": definition});
                self.put(format!("{scope}/{vhost}/strange"), body).await;
            }
            Change::VhostLimit(name, value) => {
                let path = format!("vhost-limits/{vhost}/{name}");
                self.put(path, json!({ "value": value })).await;
            }
            Change::UserLimit(name, value) => {
                let user = self.user().await;
                let path = format!("user-limits/{user}/{name}");
                self.put(path, json!({ "value": value })).await;
            }
            Change::DefaultQueueType(kind) => {
                let body = json!({ "default_queue_type": kind });
                self.put(format!("vhosts/{vhost}"), body).await;
            }
        }
    }

    /// Another user for the consumer.
    async fn user(&mut self) -> String {
        let management = self.vhost.broker().management();
        let user = self.vhost.name().to_owned();
        let made = management.create_user(&user, "secret", "").await;
        made.expect("a user can be made");
        let allowed = management.set_permissions(self.vhost.name(), &user, Permissions::ALL);
        allowed.await.expect("permissions can be set");
        self.url = self.vhost.url_as(&user, "secret");
        self.has_user = true;
        user
    }

    async fn put(&self, path: String, body: Value) {
        let put = self.vhost.broker().management().put(path, body).await;
        put.unwrap_or_else(|why| panic!("{self}: {why}"));
    }

    /// A client as a program has it.
    pub(crate) async fn connect(&self) -> Result<Client> {
        Client::connect(&self.url).await
    }

    /// Whether messages whose queue was missing are offered again soon.
    pub(crate) fn offers_again_soon(&self) -> bool {
        self.node.is_some()
    }

    /// Declares the work queue as its owner does, if it has one. Otherwise the consumer makes it.
    pub(crate) async fn declare(&self) {
        if self.kind == QueueType::Classic || self.untyped {
            self.declare_plain().await;
        }
    }

    /// Declares the work queue without the consumer's arguments.
    pub(crate) async fn declare_plain(&self) {
        if !self.untyped {
            return self.amqp.declare(QUEUE, self.kind).await;
        }
        let channel = self.amqp.new_channel().await;
        let durable = QueueDeclareOptions::durable();
        let declared = channel.queue_declare(QUEUE.into(), durable, FieldTable::default());
        declared.await.expect("a queue without a type");
        channel.close(200, "done".into()).await.expect("it closes");
    }

    /// Closes every connection of retryrmq, as an operator would, and returns how many there were.
    pub(crate) async fn cut(&self) -> usize {
        let management = self.vhost.broker().management();
        let ours = eventually(DEADLINE, "connections of retryrmq are listed", || async {
            let open = management.connections(self.vhost.name()).await;
            let mut open = open.map_err(|why| why.to_string())?;
            open.retain(|one| one.raw["client_properties"]["product"] == "retryrmq");
            if open.is_empty() {
                Err("none".to_owned())
            } else {
                Ok(open)
            }
        })
        .await;
        for connection in &ours {
            // One that has gone meanwhile is as closed as it can be.
            let _ = management.close_connection(&connection.name).await;
        }
        ours.len()
    }

    /// All waiting queues.
    pub(crate) async fn waiting_queues(&self) -> Vec<String> {
        let all = self.vhost.queues().await;
        let names = all.iter().map(|queue| queue.name().to_owned());
        names.filter(|name| name.contains(".retry.")).collect()
    }

    /// Takes the ids of all messages that are ready in a queue, which may be deleted meanwhile.
    pub(crate) async fn take_all(&self, queue: &str) -> Vec<String> {
        let channel = self.amqp.new_channel().await;
        let mut ids = Vec::new();
        while let Ok(Some(got)) = channel
            .basic_get(queue.into(), BasicGetOptions { no_ack: true })
            .await
        {
            ids.push(Message::from(&got.delivery).text().trim_end().to_owned());
        }
        ids
    }

    /// Removes what a virtual host does not take along. Not in `Drop`, which cannot wait.
    pub(crate) async fn leave(self) {
        let management = self.vhost.broker().management();
        if self.has_user {
            let gone = management.delete_user(self.vhost.name()).await;
            gone.expect("the user can be deleted");
        }
        self.amqp.close().await;
    }
}

impl std::fmt::Display for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.vhost.broker(), self.kind)
    }
}
